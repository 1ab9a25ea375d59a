"""Workers of a run on this machine: their processes, and a network of their own.

Start with `local_workers.py`.
"""
