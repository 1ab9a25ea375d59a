"""Pictures of the batches that a task's input pipeline yields. Start with `previewing.py`."""
