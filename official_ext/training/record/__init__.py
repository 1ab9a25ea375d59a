"""The record of a run: run.json, its events, its code, its profile. Start with `run_record.py`."""
