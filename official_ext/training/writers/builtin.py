"""The writers that `trainer.writers` can name: this library's own and all that are registered."""

from collections.abc import Sequence

from official_ext.base import errors
from official_ext.base import package_imports
from official_ext.training.writers import registry
from official_ext.training.writers import tensorboard
from official_ext.training.writers import trackers
from official_ext.training.writers import writers

OF_TRAINING = ('mlflow', 'wandb')  # They write nothing in modes that do not train.

registry.register('csv')(trackers.make)
registry.register('mlflow', needs={'mlflow': 'mlflow'})(trackers.make_mlflow)
registry.register('tensorboard')(tensorboard.make)
registry.register('wandb', needs={'wandb': 'wandb'})(trackers.make_wandb)


def make(name: str, run: registry.RunInfo) -> writers.Writer:
  """Makes the writer of a name that has passed `check`."""
  return registry.WRITERS[name].make(run)


def check(names: Sequence[str]) -> None:
  """Makes sure that writers can be made.

  Args:
    names: the value of `trainer.writers`.

  Raises:
    UserError: one does not exist, is named twice, or needs a package that is missing.
  """
  for number, name in enumerate(names):
    registered = registry.WRITERS.find(name, 'trainer.writers')
    if name in names[:number]:
      raise errors.UserError(f'trainer.writers: {name}: is named twice')
    for package, extra in registered.needs.items():
      package_imports.require(package, extra, f'trainer.writers: {name}')
