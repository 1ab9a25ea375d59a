"""One update: gradients, accumulation, all-reduce, the finite test, clipping, the optimizer.

Start with `task_step.py`; `gradient_tap.py` records a task's own `apply_gradients`.
"""
