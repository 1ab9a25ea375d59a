"""Handwritten digits with a small convolutional network."""

from experiments.digits.configs import digits
from experiments.digits.task import DigitsTask

__all__ = ['DigitsTask', 'digits']
