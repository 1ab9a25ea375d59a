"""A queue of jobs as files, which survives the end of any of its processes.

Start with `dispatcher.py`; `queued_jobs.py` defines the files.
"""
