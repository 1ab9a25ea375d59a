"""Optimizers, schedules, moving averages of weights, parameter groups.

Start with `optimizer_configs.py`.
"""
