"""Triggers and actions: called every n steps, at an event, at the best evaluation, or at the end.

Start with `triggers.py`.
"""
