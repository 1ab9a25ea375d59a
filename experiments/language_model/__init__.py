"""A decoder that learns to continue text, from nothing."""

from experiments.language_model.configs import language_model
from experiments.language_model.task import LanguageModelTask

__all__ = ['LanguageModelTask', 'language_model']
