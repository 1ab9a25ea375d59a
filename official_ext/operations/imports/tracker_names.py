"""The trackers whose runs can be imported. The command line reads them at its start, so nothing here imports NumPy."""

# Tracker -> its name for people.
NAMES = {'tensorboard': 'TensorBoard', 'wandb': 'W&B', 'trackio': 'trackio'}
*_FIRST, _LAST = NAMES.values()
LISTED = f'{", ".join(_FIRST)} or {_LAST}'
