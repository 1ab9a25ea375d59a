"""Learning from preferences: DPO, ORPO."""

from experiments.preference.configs import preference
from experiments.preference.task import PreferenceTask

__all__ = ['PreferenceTask', 'preference']
