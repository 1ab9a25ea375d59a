"""What --experiment can name. One import a line; the only module that is imported for its side effect."""
# ruff: noqa: F401

from experiments import contrastive
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

# Model Garden's own take seconds to import: only for a name that nothing above has, and for who wants to see all.
IMPORTED_LAST = ('official.common.registry_imports',)
