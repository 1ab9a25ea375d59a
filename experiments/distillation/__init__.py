"""A small network that learns from a large one."""

from experiments.distillation.configs import distillation
from experiments.distillation.configs import distillation_teacher
from experiments.distillation.task import DistillationTask

__all__ = ['DistillationTask', 'distillation', 'distillation_teacher']
