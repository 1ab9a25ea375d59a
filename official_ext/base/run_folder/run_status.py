"""The status of a run: the record in run.json, heartbeats, and whether its process is alive.

A killed run writes nothing, so a record that says `running` counts only if its process lives: a process with the
recorded number, start and boot of the kernel. A process that cannot be seen, on another host or in another container,
is judged by its heartbeat. A thread of the run gives the heartbeat, so that it takes no time from training steps.
"""

from collections.abc import Callable, Mapping
import os
import threading
import time
from typing import Any
import weakref

from absl import logging

from official_ext.base import json_values
from official_ext.base import processes
from official_ext.base.files import paths

HEARTBEAT_SECONDS = 10.0
# Without a heartbeat for this long, a process counts as dead. File systems may hang for less.
SILENCE_SECONDS = 60.0


class Heartbeat:
  """Calls a method at an interval until it is closed, or the method's object is gone."""

  def __init__(self, beat: Callable[[], None], seconds: float = HEARTBEAT_SECONDS):
    """Starts.

    Args:
      beat: a bound method. Its exceptions are logged, once for several failures in a row, and the beats continue.
      seconds: the interval.
    """
    self._closed = threading.Event()
    self._thread = threading.Thread(
      target=_beat_until_closed, args=(weakref.WeakMethod(beat), seconds, self._closed), name='heartbeat', daemon=True
    )
    self._thread.start()

  def close(self) -> bool:
    """Stops after the current beat; one that hangs with its file system is abandoned. Returns whether it has ended."""
    self._closed.set()
    if self._thread is not threading.current_thread():
      self._thread.join(timeout=5.0)
    return not self._thread.is_alive()


def _beat_until_closed(method: weakref.WeakMethod, seconds: float, closed: threading.Event) -> None:
  failed = False
  while not closed.wait(seconds):
    beat = method()
    if beat is None:
      return
    try:
      beat()
      failed = False
    except Exception as error:  # pylint: disable=broad-except  # The run continues, and so do the beats.
      if not failed:
        logging.warning('No sign of life could be given: %s', error)
      failed = True
    del beat


def is_process_alive(process: processes.ProcessIdentity | None) -> bool | None:
  """Whether a process lives; None if it is out of sight, or if nothing but its number is known."""
  alive = None if process is None else processes.is_alive(process)
  return None if alive and process is not None and process.pid_start is None else alive


def is_recorded_process_alive(record: Mapping[str, Any]) -> bool | None:
  """The same of the process that has written a record."""
  return is_process_alive(processes.parse_identity(record))


def is_out_of_sight(record: Mapping[str, Any]) -> bool:
  """Whether a record says that its run is in progress, in a process that is out of sight."""
  return record.get('status') == 'running' and is_recorded_process_alive(record) is None


def is_dead(record: Mapping[str, Any], silence: float | None, silence_seconds: float = SILENCE_SECONDS) -> bool:
  """Whether the run of a record that says `running` is dead.

  Args:
    record: run.json or the like.
    silence: the seconds since its last heartbeat; None if it has none.
    silence_seconds: a process that is out of sight is dead after more silence.

  Returns:
    Whether its process is gone and no launcher restarts it, or is out of sight and silent.
  """
  alive = is_recorded_process_alive(record)
  if alive is None:
    return silence is not None and silence > silence_seconds
  return not alive and living_launcher(record) is None


def recorded_launcher(record: Mapping[str, Any]) -> processes.ProcessIdentity | None:
  """The process that has started the run's workers; None for a run without one."""
  launcher = record.get('launcher')
  return processes.parse_identity(launcher) if isinstance(launcher, dict) else None


def living_launcher(record: Mapping[str, Any]) -> processes.ProcessIdentity | None:
  """The living process that restarts the run's workers, and must be the one to stop them; None without one."""
  process = recorded_launcher(record)
  return process if process is not None and processes.is_alive(process) else None


STATUSES = ('running', 'finished', 'preempted', 'diverged', 'failed', 'hung')

# The fields that readers rely on. A value of another type makes a record that cannot be read.
_TYPES: json_values.JsonObject = {
  'status': str,
  'step': (int, type(None)),
  'attempt': int,
  'pid': int,
  'host': str,
  'train_steps': (int, type(None)),
  'error': (str, type(None)),
  'devices': str,
  'heartbeat': str,
}


def path_of(model_dir: str, mode: str = 'train') -> str:
  """The path of the record of a run of `mode`: modes that train share one, each other mode has its own."""
  return os.path.join(model_dir, 'run.json' if 'train' in mode else f'run.{mode}.json')


def read(model_dir: str, mode: str = 'train') -> json_values.JsonObject | None:
  """The record that a run of `mode` left in `model_dir`; None if it is missing or cannot be read.

  A folder that was copied while its run was in progress has no process: the recorded one writes to the original. Its
  record reads as `dead`.
  """
  values = json_values.read_file(path_of(model_dir, mode))
  if values is None or not _is_record(values):
    return None
  if is_copy(model_dir, values):
    values = {**values, 'launcher': None, 'error': 'the folder was copied while its run was in progress'}
    values.pop('pid', None)
    if values['status'] == 'running':
      values['status'] = 'dead'
  return values


def folder_number(model_dir: str) -> int | None:
  """The inode of a folder: a folder that is moved on its disk keeps it, a copy does not. None for a remote one."""
  try:
    return None if paths.is_remote(model_dir) else os.stat(model_dir).st_ino
  except OSError:
    return None


def is_copy(model_dir: str, record: json_values.JsonMapping) -> bool:
  """Whether a living process on this host has written a record to another folder, of which `model_dir` is a copy."""
  number = record.get('folder_number')
  return (
    isinstance(number, int)
    and number != folder_number(model_dir)
    and bool(is_recorded_process_alive(record) or living_launcher(record))
  )


def _is_record(values: json_values.JsonMapping) -> bool:
  if values.get('status') not in STATUSES:
    return False
  return all(
    isinstance(values[name], kind) and not isinstance(values[name], bool)
    for name, kind in _TYPES.items()
    if name in values
  )


def tracker_of(record: json_values.JsonMapping | None) -> str:
  """The tracker from whose files the run of a record was imported: 'wandb'. '' for a run of this library."""
  imported = (record or {}).get('imported')
  tracker = imported.get('tracker') if isinstance(imported, dict) else None
  return tracker if isinstance(tracker, str) else ''


def has_finished(model_dir: str, mode: str) -> bool:
  """Whether the last run of this mode in a folder has finished."""
  record = read(model_dir, mode) or {}
  return record.get('status') == 'finished' and record.get('mode') == mode


def is_ours(model_dir: str, mode: str) -> bool:
  """Whether a run of this process has begun in `model_dir`."""
  record = read(model_dir, mode)
  return record is not None and processes.parse_identity(record) == processes.own_identity()


class TrainingWatch:
  """For an evaluation during a training: whether the training has finished or died, so that no checkpoint will follow.

  A training that has not begun has not ended. Nor has one whose last attempt ended before the watch began, short of
  `train_steps`: it is being extended or restarted, and its next attempt is still to come. If its process cannot be seen
  from here, because it is on another host or in another container, it counts as dead when its heartbeat stops; this
  process's own clock measures that.
  """

  def __init__(self, model_dir: str, train_steps: int = 0, silence_seconds: float = SILENCE_SECONDS):
    """Reads the present status of the training.

    Args:
      model_dir: the run's folder.
      train_steps: the length of the training that this process was configured with; 0 if unknown.
      silence_seconds: how long its heartbeat may be missing before it counts as dead.
    """
    self._model_dir = model_dir
    self._train_steps = train_steps
    self._silence_seconds = silence_seconds
    self._pulse: object = None  # The attempt and its heartbeat that were seen last, and when that was new.
    self._pulse_at = 0.0
    self._has_beaten = False
    self._attempt_before: int | None = None
    self._notice = ''
    record = read(model_dir)
    self._first_attempt = None if record is None else record.get('attempt')
    if record is not None and self._is_over(record):
      self._note_before(record)

  def has_ended(self) -> bool:
    """Whether the training has ended. Prints one line when it begins to wait for another attempt."""
    record = read(self._model_dir)
    if record is None or not self._is_over(record):
      return False
    attempt = record.get('attempt')
    if record['status'] == 'running' and attempt == self._first_attempt and not self._has_beaten:
      self._note_before(record)  # It was dead all the time, which only the missing heartbeats could show.
    if attempt != self._attempt_before:
      return True
    if self._notice:
      print(self._notice, flush=True)
      self._notice = ''
    return False

  def _note_before(self, record: json_values.JsonMapping) -> None:
    """Notes an attempt that ended before the watch began, unless it completed the training."""
    step = record.get('step') or 0
    if step >= self._train_steps or record.get('early_stopped') or record.get('attempt') == self._attempt_before:
      return
    self._attempt_before = record.get('attempt')
    self._notice = (
      f'The training in {self._model_dir} has ended at step {step} of {self._train_steps}: waiting for the next '
      'attempt, up to trainer.continuous_eval_timeout seconds.'
    )

  def _is_over(self, record: Mapping[str, object]) -> bool:
    """Whether an attempt has finished or died."""
    if record['status'] != 'running':
      return True
    pulse = (record.get('attempt'), record.get('heartbeat'))
    if pulse != self._pulse:
      self._has_beaten = self._has_beaten or self._pulse is not None
      self._pulse, self._pulse_at = pulse, time.monotonic()
    self._has_beaten = self._has_beaten or bool(is_recorded_process_alive(record))
    # By this process's own clock. Versions without heartbeats are judged by their last entry.
    silence = None if pulse[1] is None else time.monotonic() - self._pulse_at
    return is_dead(record, silence, self._silence_seconds)
