"""One trunk, several heads: classes, pixels and strokes of handwritten digits."""

from experiments.multi_task.configs import multi_task
from experiments.multi_task.task import MultiTask

__all__ = ['MultiTask', 'multi_task']
