"""Submits a run or a sweep to SLURM, Ray, JobSet, Vertex AI or SkyPilot.

Start with `submission.py`; `jobs.py` describes a job.
"""
