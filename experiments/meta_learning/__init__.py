"""Model-agnostic meta-learning (MAML): initial weights from which a few gradient steps fit a new sinusoid."""

from .configs import meta_learning
from .configs import meta_learning_fomaml
from .configs import meta_learning_joint
from .task import MetaLearningTask

__all__ = ['MetaLearningTask', 'meta_learning', 'meta_learning_fomaml', 'meta_learning_joint']
