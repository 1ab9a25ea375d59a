"""Runs as folders: lists, status, start, stop, notes, trash.

Start with `run_index.py`.
"""
