"""Checkpoints: saving, manifests that verify them, retention, the best ones, warm starts, rollbacks.

Start with `manager.py`; `manifests.py` decides which checkpoint counts.
"""
