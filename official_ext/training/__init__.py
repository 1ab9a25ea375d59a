"""One run: from its configuration to logs and checkpoints.

Start with `loop/train_lib.py`, whose `run_experiment` names the steps of a run in their order.
"""
