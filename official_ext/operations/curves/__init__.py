"""Curves, time line, images and profile of a run, read from its files.

Start with `curves.py`.
"""
