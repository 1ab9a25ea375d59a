"""A custom Python file as a method of training."""

from experiments.script.configs import script
from experiments.script.task import ScriptTask

__all__ = ['ScriptTask', 'script']
