"""Supervised fine-tuning: a language model learns to answer as examples do."""

from experiments.sft.configs import sft
from experiments.sft.task import SftTask

__all__ = ['SftTask', 'sft']
