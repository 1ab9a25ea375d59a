"""The loop: task, trainer, evaluator, controller, recovery, and the record of a run.

Start with `train_lib.py:run_experiment`, then `controller.py` and `base_trainer.py`.
"""
