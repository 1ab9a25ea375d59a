"""Workers of a run on this machine: their processes, and a private network.

Start with `local_workers.py`.
"""
