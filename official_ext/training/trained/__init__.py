"""Models of runs: loading them by the run's folder, and serving them as a SavedModel.

Start with `trained_model.py`, whose `load` is `official_ext.load`.
"""
