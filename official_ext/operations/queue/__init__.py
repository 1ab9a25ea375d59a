"""A queue of jobs as files, which survives the end of any of its processes.

Start with `dispatcher.py`; `job_files.py` defines the files.
"""
