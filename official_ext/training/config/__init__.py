"""Configurations: the dataclasses, and their values from files, flags and overrides.

Start with `definitions.py`, then `parser.py`.
"""
