"""A custom Python file as a method of training."""

from .configs import script
from .task import ScriptTask

__all__ = ['ScriptTask', 'script']
