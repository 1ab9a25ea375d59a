"""Group relative policy optimization: rewards of sampled completions."""

from .configs import grpo
from .task import GrpoTask

__all__ = ['GrpoTask', 'grpo']
