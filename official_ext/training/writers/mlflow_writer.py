"""MLflow: the parameters and metrics of a run in a tracking server or a local folder."""

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
from official_ext.base.run_folder import tracker_values
from official_ext.training.writers import background
from official_ext.training.writers import writer_registry
from official_ext.training.writers import writers


@dataclasses.dataclass
class MlflowConfig(base_config.Config):
  """Where `trainer.writers: [mlflow]` writes.

  Attributes:
    tracking_uri: Empty: the environment variable MLFLOW_TRACKING_URI, or else the folder `mlruns` in the run's folder.
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
      tracking_uri: empty: the environment variable MLFLOW_TRACKING_URI, or else the folder mlruns in `model_dir`.
      experiment: the name of MLflow's experiment, which is created if it does not exist.
      run_name: empty: the name of `model_dir`.
    """
    folder = os.path.abspath(model_dir) if '://' not in model_dir else model_dir
    self._path = os.path.join(model_dir, tracker_values.MLFLOW_NOTE)
    self._params = params
    self._uri = tracking_uri or os.environ.get('MLFLOW_TRACKING_URI', '') or os.path.join(folder, 'mlruns')
    self._experiment = experiment
    self._run_name = run_name or os.path.basename(folder)
    self._client: Any = None
    self._run_id = ''

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    if self._client is None:
      self._connect()
    if event in ('train', 'eval'):
      self._log_metrics(step, tracker_values.numbers_of(event, writers.flatten(values)))
    elif event in tracker_values.MLFLOW_STATUSES:
      if 'error' in values:
        self._client.set_tag(self._run_id, 'error', str(values['error'])[: tracker_values.MLFLOW_MAX_VALUE])
      self._client.set_terminated(self._run_id, tracker_values.MLFLOW_STATUSES[event])
    elif event == 'early_stopped':
      self._client.set_tag(self._run_id, event, str(values.get('reason', '')))

  def _connect(self) -> None:
    os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')
    if '://' not in self._uri or self._uri.startswith('file:'):
      os.environ.setdefault('MLFLOW_ALLOW_FILE_STORE', 'true')  # Files are the only store without a server.
    from mlflow import tracking  # pylint: disable=g-import-not-at-top  # Takes two seconds.

    client = tracking.MlflowClient(self._uri)
    self._run_id = self._earlier_run() or self._new_run(client)
    client.update_run(self._run_id, status='RUNNING')
    self._client = client

  def _earlier_run(self) -> str | None:
    """The id of the MLflow run that this one continues."""
    if not tf.io.gfile.exists(self._path):
      return None
    noted = json.loads(paths.read(self._path, regular_files.MAX_RECORD))
    return noted['run_id'] if noted['tracking_uri_sha256'] == tracker_values.mlflow_store_sum(self._uri) else None

  def _new_run(self, client: Any) -> str:
    from mlflow import entities  # pylint: disable=g-import-not-at-top

    experiment = client.get_experiment_by_name(self._experiment)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
    run_id = client.create_run(experiment_id, run_name=self._run_name).info.run_id
    storage.write(
      self._path,
      json.dumps({'run_id': run_id, 'tracking_uri_sha256': tracker_values.mlflow_store_sum(self._uri)}) + '\n',
    )
    params = [entities.Param(*item) for item in tracker_values.mlflow_params(self._params).items()]
    for start in range(0, len(params), tracker_values.MLFLOW_BATCH):
      client.log_batch(run_id, params=params[start : start + tracker_values.MLFLOW_BATCH])
    return run_id

  def _log_metrics(self, step: int, numbers: Mapping[str, float]) -> None:
    from mlflow import entities  # pylint: disable=g-import-not-at-top

    now = int(time.time() * 1000)
    self._client.log_batch(
      self._run_id,
      metrics=[
        entities.Metric(tracker_values.mlflow_name(name), float(value), now, step) for name, value in numbers.items()
      ],
    )


def make(run: writer_registry.RunInfo) -> writers.Writer:
  """Makes the writer of `trainer.mlflow`, if the run trains: an evaluation beside it would take over its MLflow run."""
  if not run.trains:
    return writers.Writers([])
  config = run.params.trainer.mlflow
  return background.BackgroundWriter(
    MlflowWriter(
      run.model_dir,
      credentials.mask_values(run.params.as_dict()),
      config.tracking_uri,
      config.experiment,
      config.run_name,
    )
  )
