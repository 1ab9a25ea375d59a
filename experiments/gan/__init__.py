"""A generative adversarial network on handwritten digits: two models, two optimizers, manual optimization."""

from experiments.gan.configs import gan
from experiments.gan.task import GanTask

__all__ = ['GanTask', 'gan']
