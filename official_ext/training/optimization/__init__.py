"""Optimizers, schedules, moving averages of weights, parameter groups.

Start with `configs.py`.
"""
