"""Model-agnostic meta-learning (MAML): initial weights from which a few gradient steps fit a new sinusoid."""

from experiments.meta_learning.configs import meta_learning
from experiments.meta_learning.configs import meta_learning_fomaml
from experiments.meta_learning.configs import meta_learning_joint
from experiments.meta_learning.task import MetaLearningTask

__all__ = ['MetaLearningTask', 'meta_learning', 'meta_learning_fomaml', 'meta_learning_joint']
