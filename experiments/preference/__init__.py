"""Learning from preferences: DPO, ORPO."""

from .configs import preference
from .task import PreferenceTask

__all__ = ['PreferenceTask', 'preference']
