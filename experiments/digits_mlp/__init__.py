"""Handwritten digits with a multi-layer perceptron, for measuring the overhead of the training loop."""

from experiments.digits_mlp.configs import digits_mlp
from experiments.digits_mlp.task import DigitsMlpTask

__all__ = ['DigitsMlpTask', 'digits_mlp']
