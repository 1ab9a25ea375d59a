"""The experiments that --experiment can name. One import a line; the only module imported for its side effects."""
# ruff: noqa: F401

from experiments import contrastive
from experiments import diabetes
from experiments import digits
from experiments import digits_mlp
from experiments import distillation
from experiments import gan
from experiments import grpo
from experiments import language_model
from experiments import meta_learning
from experiments import multi_task
from experiments import preference
from experiments import reinforcement
from experiments import reward_model
from experiments import script
from experiments import sft
from experiments import text_classifier

# Model Garden's own take seconds to import: only for a name that is not registered above, and to list all.
IMPORTED_LAST = ('official.common.registry_imports',)
