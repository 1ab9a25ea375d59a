"""A decoder that classifies texts by topic."""

from experiments.text_classifier.configs import text_classifier
from experiments.text_classifier.task import TextClassifierTask

__all__ = ['TextClassifierTask', 'text_classifier']
