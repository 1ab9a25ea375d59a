"""A decoder that learns to continue text, from nothing."""

from .configs import language_model
from .task import LanguageModelTask

__all__ = ['LanguageModelTask', 'language_model']
