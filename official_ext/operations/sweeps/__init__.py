"""Searches over parameters: the file of a sweep, its proposals, its controller, its results.

Start with `sweep_file.py`, then `sweep_controller.py`.
"""
