"""MLflow: the parameters and metrics of a run in a tracking server or a local database."""

from collections.abc import Mapping
import dataclasses
import json
import os
import time
from typing import Any

from official.modeling.hyperparams import base_config
import tensorflow as tf

from official_ext.base import credentials
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.base.files import storage
from official_ext.base.run_folder import tracker_logs
from official_ext.base.run_folder import tracker_values
from official_ext.training.writers import background
from official_ext.training.writers import writer_registry
from official_ext.training.writers import writers

_CLOSE_SECONDS = 10.0
_DATABASE_SECONDS = 60.0  # Creating one takes seconds.


@dataclasses.dataclass
class MlflowConfig(base_config.Config):
  """The destination of `trainer.writers: [mlflow]`.

  Attributes:
    tracking_uri: Empty: the environment variable MLFLOW_TRACKING_URI, or else the SQLite database `mlflow.db` in the
      run's folder, or its folder `mlruns` if it has one already.
    experiment: The name of MLflow's experiment.
    run_name: Empty: the name of the run's folder.
  """

  tracking_uri: str = ''
  experiment: str = 'official_ext'
  run_name: str = ''


class MlflowWriter(writers.Writer):
  """Logs to one MLflow run, which a run that is started again continues.

  Its id is kept in mlflow.json, in the run's folder. Parameters are those of the first start. Metrics are 'train'
  values under their names and 'eval' values as `validation/<name>`. A run that rolls back to an earlier step logs the
  steps in between again: MLflow keeps both values, and shows the later one as the step's last.
  """

  def __init__(
    self,
    model_dir: str,
    params: Mapping[str, Any],
    tracking_uri: str = '',
    experiment: str = 'official_ext',
    run_name: str = '',
  ):
    """Initializes the writer; connects to no server yet.

    Args:
      model_dir: the run's folder.
      params: the configuration, nested.
      tracking_uri: empty: see `tracker_logs.mlflow_uri`, of `model_dir`.
      experiment: the name of MLflow's experiment, which is created if it does not exist.
      run_name: empty: the name of `model_dir`.
    """
    folder = os.path.abspath(model_dir) if '://' not in model_dir else model_dir
    self._path = os.path.join(model_dir, tracker_values.MLFLOW_NOTE)
    self._params = params
    self._uri = tracker_logs.mlflow_uri(folder, tracking_uri)
    self._experiment = experiment
    self._run_name = run_name or os.path.basename(folder)
    self._log: tracker_logs.MlflowLog | None = None

  @property
  def close_seconds(self) -> float:
    """How long the end of a run waits for the writer."""
    return _DATABASE_SECONDS if self._uri.startswith('sqlite:') else _CLOSE_SECONDS

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    if self._log is None:
      self._log = self._connected()
    if event in ('train', 'eval'):
      self._log.log_metrics(tracker_values.mlflow_points(event, step, time.time(), writers.flatten(values)))
    elif event in tracker_values.MLFLOW_STATUSES:
      if 'error' in values:
        self._log.set_tag('error', str(values['error']))
      self._log.set_status(event)
    elif event == 'early_stopped':
      self._log.set_tag(event, str(values.get('reason', '')))

  def _connected(self) -> tracker_logs.MlflowLog:
    client = tracker_logs.mlflow_client(self._uri)
    earlier = self._earlier_run()
    log = tracker_logs.MlflowLog(client, earlier) if earlier else self._new_run(client)
    log.set_status(None)
    return log

  def _earlier_run(self) -> str | None:
    """The id of the MLflow run that this one continues."""
    if not tf.io.gfile.exists(self._path):
      return None
    noted = json.loads(paths.read(self._path, regular_files.MAX_RECORD))
    return noted['run_id'] if noted['tracking_uri_sha256'] == tracker_values.mlflow_store_sum(self._uri) else None

  def _new_run(self, client: Any) -> tracker_logs.MlflowLog:
    log = tracker_logs.MlflowLog.create(client, self._experiment, self._run_name)
    note = {'run_id': log.run_id, 'tracking_uri_sha256': tracker_values.mlflow_store_sum(self._uri)}
    storage.write(self._path, json.dumps(note) + '\n')
    log.log_params(tracker_values.mlflow_params(self._params))
    return log


def make(run: writer_registry.RunInfo) -> writers.Writer:
  """Makes the writer of `trainer.mlflow`, if the run trains: an evaluation beside it would take over its MLflow run."""
  if not run.trains:
    return writers.Writers([])
  config = run.params.trainer.mlflow
  params = credentials.mask_values(run.params.as_dict())
  writer = MlflowWriter(run.model_dir, params, config.tracking_uri, config.experiment, config.run_name)
  return background.BackgroundWriter(writer, close_seconds=writer.close_seconds)
