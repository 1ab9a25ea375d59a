"""Reading and writing files: atomic and durable writes, locks, caches, limits on input sizes.

Start with `paths.py`; `local_files.py` opens every file that another program may have written.
"""
