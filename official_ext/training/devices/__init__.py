"""Devices, distribution strategies, workers, signals and failures.

Start with `distribute.py`.
"""
