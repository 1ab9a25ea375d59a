"""Metrics of a classifier by name: see classification.py."""

from official_ext.metrics.classification import build
from official_ext.metrics.classification import updates

__all__ = ['build', 'updates']
