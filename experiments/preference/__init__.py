"""Learning from preferences: DPO, IPO, SimPO, CPO, ORPO, KTO."""

from .configs import preference
from .task import PreferenceTask

__all__ = ['PreferenceTask', 'preference']
