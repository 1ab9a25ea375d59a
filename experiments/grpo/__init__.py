"""Group relative policy optimization: rewards of sampled completions."""

from experiments.grpo.configs import grpo
from experiments.grpo.task import GrpoTask

__all__ = ['GrpoTask', 'grpo']
