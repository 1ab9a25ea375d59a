"""Reinforcement learning: PPO, with environments in TensorFlow or on the host."""

from experiments.reinforcement.configs import reinforcement
from experiments.reinforcement.configs import reinforcement_gymnasium
from experiments.reinforcement.task import ReinforcementTask

__all__ = ['ReinforcementTask', 'reinforcement', 'reinforcement_gymnasium']
