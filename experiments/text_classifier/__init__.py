"""A decoder that tells what a text is about."""

from .configs import text_classifier
from .task import TextClassifierTask

__all__ = ['TextClassifierTask', 'text_classifier']
