"""Features of handwritten digits that are learned without labels, by SimCLR."""

from experiments.contrastive.configs import contrastive
from experiments.contrastive.task import ContrastiveTask

__all__ = ['ContrastiveTask', 'contrastive']
