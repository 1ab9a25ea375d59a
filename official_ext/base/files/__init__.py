"""Reading and writing files: atomic and durable writes, locks, caches, limits on what is read.

Start with `paths.py`; `regular_files.py` opens every file that somebody else may have written.
"""
