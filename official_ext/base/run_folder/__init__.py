"""The one definition of a run's files, statuses and events, written by `training` and read by `operations`.

Start with `run_status.py`: run.json and the rule for a dead process. `run_files.py` lists the events of events.jsonl.
"""
