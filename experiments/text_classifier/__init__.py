"""A decoder that classifies texts by topic."""

from .configs import text_classifier
from .task import TextClassifierTask

__all__ = ['TextClassifierTask', 'text_classifier']
