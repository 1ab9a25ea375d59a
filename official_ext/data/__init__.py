"""Input of any task: sources, the order of examples, batches, their faults.

Start with `step_indexed.py`, which makes the batch of a step from its number alone. `sources.py` holds the sources,
`service/` makes batches on other machines, and `prepare/` writes shards.
"""
