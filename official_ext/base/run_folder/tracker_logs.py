"""Logs a run to trackers (MLflow, Weights & Biases): names and values as they accept them, and their clients.

The packages of the trackers take seconds to import, so functions import them when they are called.
"""

from collections.abc import Iterable, Mapping, Sequence
import hashlib
import json
import logging
import os
import posixpath
from typing import Any

from official_ext.base import errors
from official_ext.base import package_imports
from official_ext.base import safe_text
from official_ext.base.files import paths
from official_ext.base.run_folder import run_files

STEP = 'global_step'  # W&B's axis of all metrics.
RESUMED = 'resumed_from'  # The metric that marks a return to an earlier step.
MLFLOW_MAX_NAME, MLFLOW_MAX_VALUE = 250, 6000  # MLflow refuses longer parameters.
MLFLOW_MAX_TAG = 5000
MLFLOW_BATCH = 100  # And more parameters at once.
MLFLOW_STATUSES = {
  'finished': 'FINISHED',
  'failed': 'FAILED',
  'diverged': 'FAILED',
  'preempted': 'KILLED',
  'hung': 'KILLED',
  'dead': 'KILLED',
}
MLFLOW_NOTE = 'mlflow.json'  # In a run's folder: which MLflow run it writes to, of which store.
WANDB_NOTE = 'wandb_run_id'
_WANDB_BAD_ENDS = ('failed', 'hung', 'diverged', 'dead')


def tracked_numbers(event: str, step: int, flat: Mapping[str, object]) -> dict[str, float]:
  """The numbers of an event for a tracker, which keeps superseded values: a return to an earlier step is RESUMED."""
  return {RESUMED: step} if event in run_files.GO_BACK else numbers_of(event, flat)


def numbers_of(event: str, flat: Mapping[str, object]) -> dict[str, float]:
  """The numbers among the values of an event: of 'eval' as `validation/<name>`; {} for other events."""
  if event not in ('train', 'eval'):
    return {}
  prefix = 'validation/' if event == 'eval' else ''
  return {prefix + name: value for name, value in flat.items() if isinstance(value, (bool, int, float))}


def mlflow_points(event: str, step: int, time: float, flat: Mapping[str, Any]) -> list[tuple[str, int, int, float]]:
  """The metrics of an event for MLflow: name, step, time in milliseconds and value of each number.

  Raises:
    UserError: MLflow, which allows fewer characters, would have one name for two of them.
  """
  originals: dict[str, str] = {}
  points = []
  for name, value in tracked_numbers(event, step, flat).items():
    allowed = mlflow_name(name)
    if originals.setdefault(allowed, name) != name:
      raise errors.UserError(
        f'MLflow: {allowed!r} would be the name of {originals[allowed]!r} and {name!r}; rename one'
      )
    points.append((allowed, step, round(time * 1000), float(value)))
  return points


def wandb_row(event: str, step: int, flat: Mapping[str, Any]) -> dict[str, float]:
  """The values of an event for W&B; {} if it has no numbers.

  Raises:
    UserError: one of them has the name of the axis.
  """
  numbers = tracked_numbers(event, step, flat)
  if STEP in numbers:
    raise errors.UserError(f'W&B: {STEP!r} is the axis of all logs; rename the log of this name')
  return {**numbers, STEP: step} if numbers else {}


def wandb_exit_code(status: str) -> int:
  """The exit status with which W&B marks a run as finished or crashed."""
  return int(status in _WANDB_BAD_ENDS)


def csv_cell(value: Any) -> Any:
  """A value in a table: numbers as Python reads them again, lists as JSON."""
  if isinstance(value, (list, dict)):
    return json.dumps(value)
  return '' if value is None else repr(value) if isinstance(value, (bool, int, float)) else value


def flatten_params(values: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """A nested configuration as a flat one, with names joined by '/'."""
  flat: dict[str, object] = {}
  for key, value in values.items():
    flat |= flatten_params(value, f'{prefix}{key}/') if isinstance(value, Mapping) else {f'{prefix}{key}': value}
  return flat


def mlflow_name(name: str) -> str:
  """A name with the characters that MLflow allows."""
  return ''.join(c if c.isalnum() or c in '_-. /' else '_' for c in name)


def mlflow_params(params: Mapping[str, object]) -> tuple[dict[str, str], list[str]]:
  """The parameters of a nested configuration, as MLflow takes them, and a line for each that it does not take whole.

  Example:

    >>> mlflow_params({'task': {'a:b': 1, 'a_b': 2}})
    ({'task/a_b': '1'}, ["task/a_b: left out: 'task/a:b' has this name in MLflow"])
  """
  found: dict[str, str] = {}
  originals: dict[str, str] = {}
  lines = []
  for name, value in flatten_params(params).items():
    allowed, text = mlflow_name(name), str(value)
    shown = name if len(name) <= 100 else f'{name[:97]}...'
    if allowed in originals:
      lines.append(f'{shown}: left out: {originals[allowed]!r} has this name in MLflow')
    elif len(allowed) > MLFLOW_MAX_NAME:
      lines.append(f'{shown}: left out: a name of {len(allowed)} characters; MLflow takes {MLFLOW_MAX_NAME}')
    elif posixpath.normpath(allowed) != allowed or allowed.startswith(('..', '/')):
      lines.append(f'{shown}: left out: MLflow takes no name with empty or dotted parts')
    else:
      found[allowed], originals[allowed] = text[:MLFLOW_MAX_VALUE], name
      if len(text) > MLFLOW_MAX_VALUE:
        lines.append(f'{shown}: cut from {len(text)} to {MLFLOW_MAX_VALUE} characters')
  return found, lines


def mlflow_store_sum(uri: str) -> str:
  """A checksum that distinguishes the addresses of stores, but not by the passwords in them."""
  return hashlib.sha256(safe_text.mask(uri).encode()).hexdigest()


DEFAULT_PROJECT = 'official_ext'
_FILES, _DATABASE, _ARTIFACTS = 'mlruns', 'mlflow.db', 'mlartifacts'
_MOST_METRICS = 1000  # MLflow takes no more at once.
_ROOT = '_MLFLOW_SERVER_ARTIFACT_ROOT'  # Without it MLflow makes a folder mlruns in the current one.


def mlflow_uri(folder: str, uri: str = '') -> str:
  """The address of MLflow's store.

  Args:
    folder: of the default store.
    uri: the configured address.

  Returns:
    `uri`, or else MLFLOW_TRACKING_URI, or else the store in `folder`: the SQLite database mlflow.db, unless there is
    only the folder mlruns, as earlier versions wrote it.
  """
  uri = uri or os.environ.get('MLFLOW_TRACKING_URI', '')
  if uri:
    return uri
  files, database = (os.path.join(folder, name) for name in (_FILES, _DATABASE))
  if paths.is_remote(folder) or (os.path.isdir(files) and not os.path.exists(database)):
    return files
  return f'sqlite:///{database}'


def mlflow_client(uri: str) -> Any:
  """MLflow's client. For SQLite it creates a database, which takes seconds, and a folder of artifacts next to it."""
  os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')
  if '://' not in uri or uri.startswith('file:'):
    os.environ.setdefault('MLFLOW_ALLOW_FILE_STORE', 'true')  # MLflow maintains its file store no longer.
  from mlflow import tracking  # pylint: disable=g-import-not-at-top

  if not uri.startswith('sqlite:///'):
    return tracking.MlflowClient(uri)
  for package in ('sqlalchemy', 'alembic'):
    package_imports.require(package, 'mlflow', f'{safe_text.mask(uri)}: the SQLite store of MLflow')
  logging.getLogger('mlflow.store.db.utils').setLevel(logging.WARNING)  # One line for each table.
  artifacts = os.path.join(os.path.dirname(uri.removeprefix('sqlite:///')), _ARTIFACTS)
  from unittest import mock  # pylint: disable=g-import-not-at-top  # Imports asyncio.

  with mock.patch.dict(os.environ, {_ROOT: os.environ.get(_ROOT, artifacts)}):
    return tracking.MlflowClient(uri)


class MlflowLog:
  """An MLflow run."""

  def __init__(self, client: Any, run_id: str):
    """Logs nothing yet.

    Args:
      client: see `mlflow_client`.
      run_id: MLflow's id of the run.
    """
    self.client = client
    self.run_id = run_id

  @classmethod
  def create(cls, client: Any, project: str, name: str) -> 'MlflowLog':
    """Creates the run in an experiment of MLflow, which is created if it does not exist."""
    project = project or DEFAULT_PROJECT
    experiment = client.get_experiment_by_name(project)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(project)
    return cls(client, client.create_run(experiment_id, run_name=name).info.run_id)

  def log_params(self, params: Mapping[str, str]) -> None:
    """Logs parameters; see `mlflow_params`."""
    from mlflow import entities  # pylint: disable=g-import-not-at-top

    found = [entities.Param(*item) for item in params.items()]
    for part in _parts(found, MLFLOW_BATCH):
      self.client.log_batch(self.run_id, params=part)

  def log_metrics(self, points: Iterable[tuple[str, int, int, float]]) -> None:
    """Logs metrics: name (see `mlflow_name`), step, time in milliseconds, and value of each point."""
    from mlflow import entities  # pylint: disable=g-import-not-at-top

    found = [entities.Metric(name, float(value), time, step) for name, step, time, value in points]
    for part in _parts(found, _MOST_METRICS):
      self.client.log_batch(self.run_id, metrics=part)

  def set_tag(self, name: str, value: str) -> None:
    """Sets a tag, cut to the length that MLflow takes."""
    self.client.set_tag(self.run_id, name, value[:MLFLOW_MAX_TAG])

  def set_status(self, status: str | None) -> None:
    """Sets the end of the run by its status in run.json; None: it runs."""
    if status is None:
      self.client.update_run(self.run_id, status='RUNNING')
    else:
      self.client.set_terminated(self.run_id, MLFLOW_STATUSES.get(status, 'KILLED'))


def _parts(values: Sequence[Any], count: int) -> Iterable[Sequence[Any]]:
  return (values[start : start + count] for start in range(0, len(values), count))


def wandb_run(
  run_id: str, folder: str, project: str, entity: str, name: str, params: Mapping[str, Any], mode: str, **values: Any
) -> Any:
  """Begins or resumes a run of W&B, whose metrics are over `global_step`.

  Args:
    run_id: W&B's id of the run.
    folder: of the folder `wandb` with its files.
    project: of W&B.
    entity: the user or team; '' for the default one.
    name: of the run.
    params: the configuration, nested.
    mode: 'offline' or 'online'.
    **values: arguments of wandb.init.
  """
  if mode == 'offline':
    os.environ.setdefault('WANDB_ERROR_REPORTING', 'false')
  import wandb  # pylint: disable=g-import-not-at-top

  run = wandb.init(
    id=run_id,
    dir=folder,
    project=project or DEFAULT_PROJECT,
    entity=entity or None,
    name=name,
    config=dict(params),
    mode=mode,  # type: ignore[arg-type]
    settings=wandb.Settings(silent=True, console='off'),  # The progress bar owns the terminal.
    **values,
  )
  run.define_metric('*', step_metric=STEP)
  return run
