"""Features of handwritten digits that are learned without labels, by SimCLR."""

from .configs import contrastive
from .task import ContrastiveTask

__all__ = ['ContrastiveTask', 'contrastive']
