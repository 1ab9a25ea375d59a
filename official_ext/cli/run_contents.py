"""The output of a run, for `official-ext runs`: configuration, checkpoints, events, an evaluation, TensorBoard."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.operations.runs import commands
from official_ext.operations.runs import default_fields
from official_ext.operations.runs import driver as driver_lib
from official_ext.operations.runs import given_fields
from official_ext.operations.runs import params
from official_ext.operations.runs import run_checkpoints
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import tensorboard_server

if TYPE_CHECKING:
  from official_ext.operations.curves import timeline


def config(one: run_folder.Run, given: bool, changed: bool, registry: Sequence[str]) -> json_types.JsonObject:
  """The configuration of a run, flat.

  Args:
    one: the run.
    given: only the values that its command sets.
    changed: only the values that differ from the experiment's own, which a process with TensorFlow reports.
    registry: modules that register experiments.

  Raises:
    UserError: the run has none, or the experiment's own is unknown.
  """
  values = params.read(one)
  if values is None:
    raise errors.UserError(f'{one.name}: has no {run_folder.PARAMS} that can be read')
  paths = list(values)
  if given:
    paths = given_fields.of_run(one, values)
  if changed:
    with driver_lib.Driver(registry=registry) as driver:
      try:
        others = default_fields.of_run(one, values, driver)
      except driver_lib.DriverError as error:
        raise errors.UserError(f'{one.name}: {error}') from error
    paths = [path for path in paths if path in others]
  return {path: values[path] for path in paths}


def checkpoints(one: run_folder.Run) -> list[run_checkpoints.Checkpoint]:
  """The checkpoints of a run."""
  return run_checkpoints.find(one)


def events(one: run_folder.Run) -> 'timeline.Timeline':
  """The events of a run."""
  from official_ext.operations.curves import column_store  # pylint: disable=g-import-not-at-top  # NumPy, as the next.
  from official_ext.operations.curves import timeline  # pylint: disable=g-import-not-at-top

  return timeline.read(column_store.ColumnStore(), one)


def evaluation(one: run_folder.Run, checkpoint: str | None) -> commands.Command:
  """The command that evaluates a checkpoint of a run, by default the newest one to resume from.

  Raises:
    UserError: there is no such checkpoint, or it is damaged.
  """
  newest = [each for each in run_checkpoints.find(one) if each.kind == 'training' and not each.damage][-1:]
  if not checkpoint and not newest:
    raise errors.UserError(f'{one.name}: has no checkpoint to evaluate; --checkpoint=NAME names one of another kind')
  return commands.to_evaluate(one, run_checkpoints.path_of(one, checkpoint or newest[0].name))


def tensorboard(one: run_folder.Run, stop: bool) -> str:
  """Starts TensorBoard for a run, or ends it; returns its address, or its state."""
  if stop:
    return f'{one.name}: TensorBoard {"ends" if tensorboard_server.stop(one) else "does not run"}'
  return tensorboard_server.start(one).url
