"""A run into MLflow, from its files: metrics with their own times, parameters, tags, note and end. No TensorFlow.

The MLflow run is found again by a tag with the run's identity, or is the one that the run wrote to itself, if that was
to the same store. What it has already is not logged again.
"""

from collections.abc import Mapping
import os
from typing import Any

from official_ext.base import optional_packages
from official_ext.base.run_folder import tracker_values
from official_ext.operations.runs import json_files
from official_ext.operations.trackers import tracked_run

_BATCH = 1000  # Metrics; MLflow takes no more at once.
_IDENTITY = 'official_ext.run'
_TAGS = 'official_ext.tags'
_NOTE = 'mlflow.note.content'


def export(
  tracked: tracked_run.TrackedRun, root: str, tracking_uri: str = '', project: str = '', artifacts: bool = False
) -> str:
  """Logs what MLflow lacks of a run.

  A run that this module made, and that has what was superseded since, or other parameters, is deleted (MLflow keeps it
  in its trash) and made anew.

  Args:
    tracked: the run.
    root: the folder of the runs.
    tracking_uri: empty: that of the run's configuration, MLFLOW_TRACKING_URI, or the folder mlruns in `root`.
    project: the name of MLflow's experiment; empty: that of the run's configuration.
    artifacts: whether to log the files that tell of the run too.

  Returns:
    What was done, in a line.

  Raises:
    UserError: mlflow is not installed.
  """
  optional_packages.require('mlflow', 'mlflow', '--to=mlflow')
  uri = tracking_uri or tracked.setting('trainer.mlflow.tracking_uri') or os.environ.get('MLFLOW_TRACKING_URI', '')
  uri = uri or os.path.join(os.path.abspath(root), 'mlruns')
  os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')
  if '://' not in uri or uri.startswith('file:'):
    os.environ.setdefault('MLFLOW_ALLOW_FILE_STORE', 'true')  # Files are the only store without a server.
  from mlflow import tracking  # pylint: disable=g-import-not-at-top  # Takes two seconds.

  store = _Store(tracking.MlflowClient(uri), tracked, project or tracked.setting('trainer.mlflow.experiment'))
  own = json_files.read(tracked.run.file(tracker_values.MLFLOW_NOTE)) or {}
  is_own = own.get('tracking_uri_sha256') == tracker_values.mlflow_store_sum(uri)
  count = store.fill(own.get('run_id') if is_own else None)
  if artifacts:
    for path in tracked.artifacts():
      store.client.log_artifact(store.run_id, path)
  return f'{count} metrics, now in the MLflow run {store.run_id}'


class _Store:
  """Fills an MLflow run."""

  def __init__(self, client: Any, tracked: tracked_run.TrackedRun, project: str):
    self.client = client
    self.run_id = ''
    self._tracked = tracked
    self._project = project or 'official_ext'
    self._metrics = _metrics_of(tracked)
    self._params = tracker_values.mlflow_params(tracked.params)

  def fill(self, own_id: str | None) -> int:
    """Logs what is missing, in the MLflow run `own_id`, one of an earlier export, or a new one; returns how much."""
    found = self._found(own_id)
    history, params = self._there(found)
    if found is not None and own_id is None:
      times = {key: {(step, time) for step, time, _ in self._metrics.get(key, ())} for key in history}
      is_old = any(set(points) - times[key] for key, points in history.items())
      if is_old or any(self._params.get(name, value) != value for name, value in params.items()):
        self.client.delete_run(found.info.run_id)
        found, history, params = None, {}, {}
    self.run_id = found.info.run_id if found is not None else self._new_run()
    if own_id is not None:  # Its times are those at which it was written.
      lacks = {
        key: [point for point in points if point[0] not in {step for step, _ in history.get(key, ())}]
        for key, points in self._metrics.items()
      }
    else:
      lacks = {
        key: [point for point in points if point[:2] not in history.get(key, ())]
        for key, points in self._metrics.items()
      }
    self._log({name: value for name, value in self._params.items() if name not in params}, lacks)
    self._set_tags(found.data.tags if found is not None else {})
    if self._tracked.is_over:
      status = tracker_values.MLFLOW_STATUSES.get(self._tracked.status, 'KILLED')
      self.client.set_terminated(self.run_id, status, end_time=_milliseconds(self._tracked.ended))
    else:
      self.client.update_run(self.run_id, status='RUNNING')
    return sum(map(len, lacks.values()))

  def _found(self, own_id: str | None) -> Any:
    if own_id is not None:
      return self.client.get_run(own_id)
    experiment = self.client.get_experiment_by_name(self._project)
    if experiment is None:
      return None
    runs = self.client.search_runs([experiment.experiment_id], f"tags.`{_IDENTITY}` = '{self._tracked.identity}'")
    return runs[0] if runs else None

  def _there(self, found: Any) -> tuple[dict[str, set[tuple[int, int]]], Mapping[str, str]]:
    """The steps and times of each metric that MLflow has, and its parameters."""
    if found is None:
      return {}, {}
    history = {
      key: {(metric.step, metric.timestamp) for metric in self.client.get_metric_history(found.info.run_id, key)}
      for key in found.data.metrics
    }
    return history, found.data.params

  def _new_run(self) -> str:
    experiment = self.client.get_experiment_by_name(self._project)
    experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(self._project)
    made = self.client.create_run(
      experiment_id,
      start_time=_milliseconds(self._tracked.started),
      run_name=self._tracked.name,
      tags={_IDENTITY: self._tracked.identity},
    )
    return made.info.run_id

  def _log(self, params: Mapping[str, str], metrics: Mapping[str, list[tuple[int, int, float]]]) -> None:
    from mlflow import entities  # pylint: disable=g-import-not-at-top

    all_params = [entities.Param(*item) for item in params.items()]
    for start in range(0, len(all_params), tracker_values.MLFLOW_BATCH):
      self.client.log_batch(self.run_id, params=all_params[start : start + tracker_values.MLFLOW_BATCH])
    all_metrics = [
      entities.Metric(key, value, time, step) for key, points in metrics.items() for step, time, value in points
    ]
    for start in range(0, len(all_metrics), _BATCH):
      self.client.log_batch(self.run_id, metrics=all_metrics[start : start + _BATCH])

  def _set_tags(self, there: Mapping[str, str]) -> None:
    """Tags of people have the value true; those that they have taken away since the last export are taken away."""
    tracked = self._tracked
    facts = {tracker_values.mlflow_name(name): value for name, value in tracked.facts.items()}
    wanted = {**facts, **dict.fromkeys(map(tracker_values.mlflow_name, tracked.tags), 'true')}
    wanted |= {_NOTE: tracked.note, 'status': tracked.status, 'reason': tracked.reason, _TAGS: ','.join(tracked.tags)}
    before = filter(None, there.get(_TAGS, '').split(','))
    for name in {tracker_values.mlflow_name(tag) for tag in before} - set(wanted):
      self.client.delete_tag(self.run_id, name)
    for name, value in wanted.items():
      if there.get(name, '') != value:
        self.client.set_tag(self.run_id, name, value[: tracker_values.MLFLOW_MAX_VALUE - 1000])


def _metrics_of(tracked: tracked_run.TrackedRun) -> dict[str, list[tuple[int, int, float]]]:
  """Step, time in milliseconds and value of each metric's points."""
  found: dict[str, dict[tuple[int, int], float]] = {}
  for time, step, numbers in tracked.rows():
    for name, value in numbers.items():
      found.setdefault(tracker_values.mlflow_name(name), {})[step, _milliseconds(time)] = float(value)
  return {name: [(*point, value) for point, value in points.items()] for name, points in found.items()}


def _milliseconds(seconds: float) -> int:
  return round(seconds * 1000)
