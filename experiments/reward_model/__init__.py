"""A model that scores answers, trained on preferences."""

from .configs import reward_model
from .task import RewardModelTask

__all__ = ['RewardModelTask', 'reward_model']
