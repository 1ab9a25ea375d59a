"""Reinforcement learning: PPO, with environments in TensorFlow or on the host."""

from .configs import reinforcement
from .configs import reinforcement_gymnasium
from .task import ReinforcementTask

__all__ = ['ReinforcementTask', 'reinforcement', 'reinforcement_gymnasium']
