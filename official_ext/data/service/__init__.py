"""A tf.data service whose batches are those of a run without it.

Start with `ServedInput` in `worker.py`; `client.py` runs in the training, `worker.py` on the other machines.
"""
