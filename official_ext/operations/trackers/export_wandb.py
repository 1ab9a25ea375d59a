"""A run as files of Weights & Biases, which `wandb sync` sends, from its own files. No TensorFlow.

They are written whole each time, under the same id, in the place of those of an earlier export: W&B has one run,
however often it is exported and sent.
"""

import os
import re
import shutil
import tempfile

from official_ext.base import errors
from official_ext.base import optional_packages
from official_ext.base.files import paths
from official_ext.base.run_folder import tracker_logs
from official_ext.base.run_folder import tracker_values
from official_ext.operations.trackers import tracked_run

_MARK = 'exported_by_official_ext'  # In a folder that this module has written.
_FOLDER = re.compile(r'offline-run-\d{8}_\d{6}-.+')


def export(
  tracked: tracked_run.TrackedRun, project: str = '', output_dir: str | None = None, artifacts: bool = False
) -> str:
  """Writes the files.

  Args:
    tracked: the run.
    project: W&B's project; empty: that of the run's configuration.
    output_dir: a folder for the folder `wandb`; None: the run's own.
    artifacts: whether to add the files that describe the run.

  Returns:
    The folder for `wandb sync`.

  Raises:
    UserError: wandb is not installed.
    StorageError: they cannot be written.
  """
  optional_packages.require('wandb', 'wandb', '--to=wandb')
  parent = os.path.join(output_dir or tracked.run.path, 'wandb')
  try:
    paths.make_folder(parent)
    temporary = tempfile.mkdtemp(prefix='.export-', dir=parent)
    try:
      run_id = _id(tracked)
      made = _write(tracked, run_id, project, temporary, artifacts)
      with open(os.path.join(made, _MARK), 'w', encoding='utf-8') as file:
        file.write(tracked.identity)
      for name in paths.names(parent):  # Earlier exports.
        earlier = os.path.join(parent, name)
        if _FOLDER.fullmatch(name) and name.endswith(f'-{run_id}') and os.path.exists(os.path.join(earlier, _MARK)):
          shutil.rmtree(earlier)
      target = os.path.join(parent, os.path.basename(made))
      os.rename(made, target)
    finally:
      shutil.rmtree(temporary, ignore_errors=True)
  except OSError as error:
    raise errors.StorageError(f'{error.filename or parent}: cannot be written: {error.strerror or error}') from error
  return target


def _id(tracked: tracked_run.TrackedRun) -> str:
  """The id of the run: the one under which it has written to W&B itself, or one that follows from its identity."""
  try:
    noted = paths.read(tracked.run.file(tracker_values.WANDB_NOTE), 200).decode().strip()
  except (OSError, UnicodeDecodeError):
    noted = ''
  return noted if re.fullmatch(r'[\w-]+', noted) else tracked.identity[:12]


def _write(tracked: tracked_run.TrackedRun, run_id: str, project: str, folder: str, artifacts: bool) -> str:
  run = tracker_logs.wandb_run(
    run_id,
    folder,
    project or tracked.setting('trainer.wandb.project'),
    tracked.setting('trainer.wandb.entity'),
    tracked.setting('trainer.wandb.run_name') or tracked.name,
    tracked.params,
    'offline',
    tags=[tag[:64] for tag in tracked.tags],
    notes=tracked.note,
    reinit='finish_previous',
    settings={'x_disable_stats': True, 'x_disable_meta': True, 'save_code': False, 'disable_git': True},
  )
  for time, row in rows(tracked):
    run.log({**row, '_timestamp': time, '_runtime': time - tracked.started})
  run.summary.update({'status': tracked.status, 'reason': tracked.reason, **tracked.facts})
  if artifacts:
    for path in tracked.artifacts():
      shutil.copy(path, run.dir)
  made = os.path.dirname(run.dir)
  run.finish(exit_code=tracker_values.wandb_exit_code(tracked.status))
  return made


def rows(tracked: tracked_run.TrackedRun) -> list[tuple[float, dict[str, float]]]:
  """The time and the numbers of each event that has any."""
  found = [(event, *tracked.time_and_values(event)) for event in tracked.events]
  logged = [(time, tracker_values.wandb_row(event['event'], event['step'], values)) for event, time, values in found]
  return [(time, row) for time, row in logged if row]
