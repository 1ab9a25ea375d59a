"""Supervised fine-tuning: a language model learns to answer as examples do."""

from .configs import sft
from .task import SftTask

__all__ = ['SftTask', 'sft']
