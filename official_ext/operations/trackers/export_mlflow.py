"""A run into MLflow, from its files: metrics with their own times, parameters, tags, note and end. No TensorFlow.

The MLflow run is found again by a tag with the run's identity, or is the one that the run wrote to itself, if that was
to the same store. Present values are not logged again.
"""

from collections.abc import Mapping
import os
from typing import Any

from official_ext.base import optional_packages
from official_ext.base.run_folder import tracker_logs
from official_ext.base.run_folder import tracker_values
from official_ext.operations.runs import json_files
from official_ext.operations.trackers import tracked_run

_IDENTITY = 'official_ext.run'
_TAGS = 'official_ext.tags'
_NOTE = 'mlflow.note.content'


def export(
  tracked: tracked_run.TrackedRun, root: str, tracking_uri: str = '', project: str = '', artifacts: bool = False
) -> str:
  """Logs the parts of a run that MLflow lacks.

  A run that this module made, and that has superseded values, or other parameters, is deleted (MLflow keeps it
  in its trash) and made anew.

  Args:
    tracked: the run.
    root: the folder of the runs.
    tracking_uri: empty: that of the run's configuration, or see `tracker_logs.mlflow_uri`, of `root`.
    project: the name of MLflow's experiment; empty: that of the run's configuration.
    artifacts: whether to log the files that describe the run too.

  Returns:
    The result, in a line.

  Raises:
    UserError: mlflow is not installed.
  """
  optional_packages.require('mlflow', 'mlflow', '--to=mlflow')
  uri = tracker_logs.mlflow_uri(os.path.abspath(root), tracking_uri or tracked.setting('trainer.mlflow.tracking_uri'))
  client = tracker_logs.mlflow_client(uri)
  store = _Store(client, tracked, project or tracked.setting('trainer.mlflow.experiment'))
  own = json_files.read(tracked.run.file(tracker_values.MLFLOW_NOTE)) or {}
  is_own = own.get('tracking_uri_sha256') == tracker_values.mlflow_store_sum(uri)
  count = store.fill(own.get('run_id') if is_own else None)
  if artifacts:
    for path in tracked.artifacts():
      client.log_artifact(store.run_id, path)
  return f'{count} metrics, now in the MLflow run {store.run_id}'


class _Store:
  """Fills an MLflow run."""

  def __init__(self, client: Any, tracked: tracked_run.TrackedRun, project: str):
    self.run_id = ''
    self._client = client
    self._tracked = tracked
    self._project = project or tracker_logs.DEFAULT_PROJECT
    self._metrics = _metrics_of(tracked)
    self._params = tracker_values.mlflow_params(tracked.params)

  def fill(self, own_id: str | None) -> int:
    """Logs the missing parts, in the MLflow run `own_id`, one of an earlier export, or a new one; returns how much."""
    found = self._found(own_id)
    history, params = self._there(found)
    if found is not None and own_id is None:
      times = {key: {(step, time) for step, time, _ in self._metrics.get(key, ())} for key in history}
      is_old = any(set(points) - times[key] for key, points in history.items())
      if is_old or any(self._params.get(name, value) != value for name, value in params.items()):
        self._client.delete_run(found.info.run_id)
        found, history, params = None, {}, {}
    log = tracker_logs.MlflowLog(self._client, found.info.run_id) if found is not None else self._new_log()
    self.run_id = log.run_id
    if own_id is not None:  # Its times are those at which it was written.
      is_there = lambda key, step, time: step in {known for known, _ in history.get(key, ())}
    else:
      is_there = lambda key, step, time: (step, time) in history.get(key, ())
    lacks = [
      (key, *point) for key, points in self._metrics.items() for point in points if not is_there(key, *point[:2])
    ]
    log.log_params({name: value for name, value in self._params.items() if name not in params})
    log.log_metrics(lacks)
    self._set_tags(log, found.data.tags if found is not None else {})
    if self._tracked.is_over:
      log.set_status(self._tracked.status, round(self._tracked.ended * 1000))
    else:
      log.set_status(None)
    return len(lacks)

  def _found(self, own_id: str | None) -> Any:
    if own_id is not None:
      return self._client.get_run(own_id)
    experiment = self._client.get_experiment_by_name(self._project)
    if experiment is None:
      return None
    runs = self._client.search_runs([experiment.experiment_id], f"tags.`{_IDENTITY}` = '{self._tracked.identity}'")
    return runs[0] if runs else None

  def _there(self, found: Any) -> tuple[dict[str, set[tuple[int, int]]], Mapping[str, str]]:
    """The steps and times of each metric that MLflow has, and its parameters."""
    if found is None:
      return {}, {}
    history = {
      key: {(metric.step, metric.timestamp) for metric in self._client.get_metric_history(found.info.run_id, key)}
      for key in found.data.metrics
    }
    return history, found.data.params

  def _new_log(self) -> tracker_logs.MlflowLog:
    tracked = self._tracked
    tags, start_time = {_IDENTITY: tracked.identity}, round(tracked.started * 1000)  # Milliseconds.
    return tracker_logs.MlflowLog.create(self._client, self._project, tracked.name, start_time=start_time, tags=tags)

  def _set_tags(self, log: tracker_logs.MlflowLog, there: Mapping[str, str]) -> None:
    """Tags of people have the value true; those that they have taken away since the last export are taken away."""
    tracked = self._tracked
    facts = {tracker_values.mlflow_name(name): value for name, value in tracked.facts.items()}
    wanted = {**facts, **dict.fromkeys(map(tracker_values.mlflow_name, tracked.tags), 'true')}
    wanted |= {_NOTE: tracked.note, 'status': tracked.status, 'reason': tracked.reason, _TAGS: ','.join(tracked.tags)}
    before = filter(None, there.get(_TAGS, '').split(','))
    for name in {tracker_values.mlflow_name(tag) for tag in before} - set(wanted):
      self._client.delete_tag(self.run_id, name)
    for name, value in wanted.items():
      if there.get(name, '') != value:
        log.set_tag(name, value)


def _metrics_of(tracked: tracked_run.TrackedRun) -> dict[str, list[tuple[int, int, float]]]:
  """Step, time in milliseconds and value of each metric's points."""
  found: dict[str, dict[tuple[int, int], float]] = {}
  for event in tracked.events:
    time, values = tracked.time_and_values(event)
    for name, step, milliseconds, value in tracker_values.mlflow_points(event['event'], event['step'], time, values):
      found.setdefault(name, {})[step, milliseconds] = value
  return {name: [(*point, value) for point, value in points.items()] for name, points in found.items()}
