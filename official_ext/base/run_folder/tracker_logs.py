"""Logs a run to trackers (MLflow, Weights & Biases), as it trains or from its files. No TensorFlow.

Training logs each event when it happens; an export logs those of the past. Packages of trackers take seconds to import.
"""

from collections.abc import Iterable, Mapping, Sequence
import logging
import os
from typing import Any
from unittest import mock

from official_ext.base import credentials
from official_ext.base import optional_packages
from official_ext.base.files import paths
from official_ext.base.run_folder import tracker_values

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
  """MLflow's client. A SQLite database is created, which takes seconds, with a folder of artifacts beside it."""
  os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')
  if '://' not in uri or uri.startswith('file:'):
    os.environ.setdefault('MLFLOW_ALLOW_FILE_STORE', 'true')  # MLflow maintains its file store no longer.
  from mlflow import tracking  # pylint: disable=g-import-not-at-top

  if not uri.startswith('sqlite:///'):
    return tracking.MlflowClient(uri)
  for package in ('sqlalchemy', 'alembic'):
    optional_packages.require(package, 'mlflow', f'{credentials.mask(uri)}: the SQLite store of MLflow')
  logging.getLogger('mlflow.store.db.utils').setLevel(logging.WARNING)  # One line for each table.
  artifacts = os.path.join(os.path.dirname(uri.removeprefix('sqlite:///')), _ARTIFACTS)
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
  def create(cls, client: Any, project: str, name: str, **values: Any) -> 'MlflowLog':
    """Creates the run in an experiment of MLflow, which is created if it does not exist; `values` are MLflow's."""
    project = project or DEFAULT_PROJECT
    experiment = client.get_experiment_by_name(project)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(project)
    return cls(client, client.create_run(experiment_id, run_name=name, **values).info.run_id)

  def log_params(self, params: Mapping[str, str]) -> None:
    """Logs parameters; see `tracker_values.mlflow_params`."""
    from mlflow import entities  # pylint: disable=g-import-not-at-top

    found = [entities.Param(*item) for item in params.items()]
    for part in _parts(found, tracker_values.MLFLOW_BATCH):
      self.client.log_batch(self.run_id, params=part)

  def log_metrics(self, points: Iterable[tuple[str, int, int, float]]) -> None:
    """Logs metrics: name (see `tracker_values.mlflow_name`), step, time in milliseconds, and value of each point."""
    from mlflow import entities  # pylint: disable=g-import-not-at-top

    found = [entities.Metric(name, float(value), time, step) for name, step, time, value in points]
    for part in _parts(found, _MOST_METRICS):
      self.client.log_batch(self.run_id, metrics=part)

  def set_tag(self, name: str, value: str) -> None:
    """Sets a tag, cut to the length that MLflow takes."""
    self.client.set_tag(self.run_id, name, value[: tracker_values.MLFLOW_MAX_TAG])

  def set_status(self, status: str | None, end_time: int | None = None) -> None:
    """Sets the end of the run by its status in run.json; None: it runs."""
    if status is None:
      self.client.update_run(self.run_id, status='RUNNING')
    else:
      self.client.set_terminated(self.run_id, tracker_values.MLFLOW_STATUSES.get(status, 'KILLED'), end_time=end_time)


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
    **values: arguments of wandb.init; `settings` is a mapping.
  """
  if mode == 'offline':
    os.environ.setdefault('WANDB_ERROR_REPORTING', 'false')
  import wandb  # pylint: disable=g-import-not-at-top

  # The progress bar owns the terminal.
  settings = wandb.Settings(**{'silent': True, 'console': 'off', **values.pop('settings', {})})
  run = wandb.init(
    id=run_id,
    dir=folder,
    project=project or DEFAULT_PROJECT,
    entity=entity or None,
    name=name,
    config=dict(params),
    mode=mode,  # type: ignore[arg-type]
    settings=settings,
    **values,
  )
  run.define_metric('*', step_metric=tracker_values.STEP)
  return run
