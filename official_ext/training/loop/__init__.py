"""The loop: trainer, evaluator, controller, recovery.

Start with `train_lib.py:run_experiment`, then `controller.py` and `base_trainer.py`.
"""
