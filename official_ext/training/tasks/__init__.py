"""What a user derives from: tasks, and tasks that own their loop. Start with `base_task.py`."""
