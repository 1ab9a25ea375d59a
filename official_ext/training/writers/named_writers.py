"""The writers that `trainer.writers` can name: this library's own and all that are registered."""

from collections.abc import Sequence

from official_ext.base import errors
from official_ext.base import optional_packages
from official_ext.base import suggestions
from official_ext.training.writers import csv_writer
from official_ext.training.writers import mlflow_writer
from official_ext.training.writers import tensorboard
from official_ext.training.writers import wandb_writer
from official_ext.training.writers import writer_registry
from official_ext.training.writers import writers

OF_TRAINING = ('mlflow', 'wandb')  # They write nothing in modes that do not train.

writer_registry.register('csv')(csv_writer.make)
writer_registry.register('mlflow', needs={'mlflow': 'mlflow'})(mlflow_writer.make)
writer_registry.register('tensorboard')(tensorboard.make)
writer_registry.register('wandb', needs={'wandb': 'wandb'})(wandb_writer.make)


def make(name: str, run: writer_registry.RunInfo) -> writers.Writer:
  """Makes the writer of a name that has passed `check`."""
  return writer_registry.get(name)(run)


def check(names: Sequence[str]) -> None:
  """Makes sure that writers can be made.

  Args:
    names: the value of `trainer.writers`.

  Raises:
    UserError: one does not exist, is named twice, or needs a package that is missing.
  """
  known = writer_registry.names()
  for number, name in enumerate(names):
    if name not in known:
      hint = suggestions.did_you_mean(name, known, after=' ')
      raise errors.UserError(f'trainer.writers: {name}: no such writer; {hint}There are {", ".join(known)}')
    if name in names[:number]:
      raise errors.UserError(f'trainer.writers: {name}: is named twice')
    for package, extra in writer_registry.needs_of(name).items():
      optional_packages.require(package, extra, f'trainer.writers: {name}')
