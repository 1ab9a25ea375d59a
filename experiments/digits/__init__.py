"""Handwritten digits with a small convolutional network."""

from .configs import digits
from .task import DigitsTask

__all__ = ['DigitsTask', 'digits']
