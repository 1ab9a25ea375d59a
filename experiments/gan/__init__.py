"""A generative adversarial network on handwritten digits: two models, two optimizers, manual optimization."""

from .configs import gan
from .task import GanTask

__all__ = ['GanTask', 'gan']
