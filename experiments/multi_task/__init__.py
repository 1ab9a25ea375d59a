"""One trunk, several heads: classes, pixels and strokes of handwritten digits."""

from .configs import multi_task
from .task import MultiTask

__all__ = ['MultiTask', 'multi_task']
