"""A model that scores answers, trained on preferences."""

from experiments.reward_model.configs import reward_model
from experiments.reward_model.task import RewardModelTask

__all__ = ['RewardModelTask', 'reward_model']
