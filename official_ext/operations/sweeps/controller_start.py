"""Starts the controller of a sweep so that it outlives whoever starts it. No TensorFlow."""

from official_ext.base import errors
from official_ext.operations.queue import detached
from official_ext.operations.runs import run_log
from official_ext.operations.sweeps import sweep_folder


def command(folder: sweep_folder.SweepFolder, slots: int | None = None) -> list[str]:
  """The words of the command that resumes a sweep, behind `official-ext`."""
  return ['sweep', folder.path, *([f'--slots={slots}'] if slots else [])]


def log_path(folder: sweep_folder.SweepFolder) -> str:
  """The file that a controller in the background writes to."""
  return folder.file('controller.log')


def start(folder: sweep_folder.SweepFolder, slots: int | None = None) -> int:
  """Starts a controller in the background.

  Args:
    folder: the sweep, which exists.
    slots: how many points it tries at once; None: as last time, or one for each GPU.

  Returns:
    The number of its process, which controls the sweep now, or has found nothing to do.

  Raises:
    UserError: there is one.
    StorageError: it has not started; its log shows the cause.
  """
  found = folder.controller()
  if found is not None:
    raise errors.UserError(f'{folder.name}: {found} controls it already')
  path = log_path(folder)
  pid = detached.start(command(folder, slots), path, lambda: folder.controller() is not None, (0, 1))
  if pid is None:
    raise errors.StorageError(f'{folder.name}: {_last_line(path) or "it has not started"} ({path})')
  return pid


def _last_line(path: str) -> str:
  lines = [line for line in run_log.tail_of_file(path, 20) if line.strip()]
  return lines[-1].strip().removeprefix('error: ') if lines else ''
