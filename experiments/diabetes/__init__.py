"""A table: the progression of diabetes from nine numbers and a category of each patient."""

from .configs import diabetes
from .task import DiabetesTask

__all__ = ['DiabetesTask', 'diabetes']
