"""Handwritten digits with a multi-layer perceptron, for measuring the overhead of the training loop."""

from .configs import digits_mlp
from .task import DigitsMlpTask

__all__ = ['DigitsMlpTask', 'digits_mlp']
