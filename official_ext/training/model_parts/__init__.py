"""Building blocks of models that the step knows: clusters, stacked layers, rematerialization, frozen weights.

Start with `stacked.py`.
"""
