"""A small network that learns from a large one."""

from .configs import distillation
from .configs import distillation_teacher
from .task import DistillationTask

__all__ = ['DistillationTask', 'distillation', 'distillation_teacher']
