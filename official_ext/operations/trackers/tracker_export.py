"""Exports runs to trackers, after the fact. No TensorFlow."""

import os

from official_ext.base import errors
from official_ext.base.files import cache
from official_ext.base.files import file_lock
from official_ext.operations.runs import run_folder
from official_ext.operations.trackers import export_csv
from official_ext.operations.trackers import export_mlflow
from official_ext.operations.trackers import export_wandb
from official_ext.operations.trackers import tracked_run

TARGETS = ('mlflow', 'wandb', 'csv')
_PATIENCE_SECONDS = 600.0


def export(
  run: run_folder.Run,
  root: str,
  to: str,
  tracking_uri: str = '',
  project: str = '',
  output_dir: str | None = None,
  artifacts: bool = False,
) -> str:
  """Fills in a tracker with the missing parts of a run; a second time there are none.

  Args:
    run: the run.
    root: the folder of the runs.
    to: one of TARGETS.
    tracking_uri: of MLflow; see export_mlflow.py.
    project: of W&B, or MLflow's experiment.
    output_dir: for the files of W&B or the table; None: the run's folder.
    artifacts: whether to add the files that describe the run.

  Returns:
    The result, in a line.

  Raises:
    UserError: the run has no events, a package is missing, or the tracker refuses it.
    StorageError: something cannot be written.
  """
  if to not in TARGETS:
    raise errors.UserError(f'--to={to}: no such tracker; there are {", ".join(TARGETS)}')
  tracked = tracked_run.read(run)
  with _alone(tracked.identity):
    if to == 'csv':
      return f'{len(tracked.events)} events: {export_csv.export(tracked, output_dir)}'
    if to == 'wandb':
      folder = export_wandb.export(tracked, project, output_dir, artifacts)
      return f'{len(export_wandb.rows(tracked))} rows: `wandb sync {folder}` sends them'
    try:
      return export_mlflow.export(tracked, root, tracking_uri, project, artifacts)
    except Exception as error:
      if type(error).__module__.partition('.')[0] not in ('mlflow', 'requests', 'urllib3', 'sqlalchemy'):
        raise
      first = (str(error).splitlines() or [type(error).__name__])[0]
      raise errors.UserError(f'--to=mlflow: {run.name}: the store refuses it: {first}') from error


def _alone(identity: str) -> file_lock.FileLock:
  """Two exports of a run at the same time would both log the missing parts."""
  folder = os.path.join(cache.root(), 'exports')
  os.makedirs(folder, exist_ok=True)
  return file_lock.FileLock(os.path.join(folder, f'{identity}.lock'), _PATIENCE_SECONDS)
