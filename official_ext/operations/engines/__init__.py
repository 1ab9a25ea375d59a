"""Submits a run or a sweep to SLURM, Ray or JobSet.

Start with `submission.py`; `jobs.py` describes a job.
"""
