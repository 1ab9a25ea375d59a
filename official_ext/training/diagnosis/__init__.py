"""One run or step to find mistakes: `official-ext check`, `--dry_run`, `--debug`.

Start with `task_checks.py`.
"""
