"""The status of a run, read from its folder: run.json, and whether its process is alive. No TensorFlow."""

from collections.abc import Mapping
import json
import os
import time

from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.base.processes import process_identity
from official_ext.base.run_folder import heartbeat
from official_ext.base.run_folder import liveness

STATUSES = ('running', 'finished', 'preempted', 'diverged', 'failed', 'hung')

# The fields that readers rely on. A value of another type makes a record that cannot be read.
_TYPES: json_types.JsonObject = {
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


def read(model_dir: str, mode: str = 'train') -> json_types.JsonObject | None:
  """The record that a run of `mode` left in `model_dir`; None if there is none, or none that can be read.

  A folder that was copied while its run was in progress has no process: the recorded one writes to the original. Its
  record reads as `dead`.
  """
  try:
    values = json.loads(paths.read(path_of(model_dir, mode), regular_files.MAX_RECORD))
  except (OSError, ValueError, RecursionError):
    return None
  if not _is_record(values):
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


def is_copy(model_dir: str, record: json_types.JsonMapping) -> bool:
  """Whether a living process on this host has written a record to another folder, of which `model_dir` is a copy."""
  number = record.get('folder_number')
  return (
    isinstance(number, int)
    and number != folder_number(model_dir)
    and bool(liveness.of_record(record) or liveness.launcher_of(record))
  )


def _is_record(values: object) -> bool:
  if not isinstance(values, dict) or values.get('status') not in STATUSES:
    return False
  return all(
    isinstance(values[name], kind) and not isinstance(values[name], bool)
    for name, kind in _TYPES.items()
    if name in values
  )


def tracker_of(record: json_types.JsonMapping | None) -> str:
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
  return record is not None and process_identity.parse(record) == process_identity.own()


class TrainingWatch:
  """For an evaluation beside a training: whether the training has finished or died, so that no checkpoint will follow.

  A training that has not begun has not ended. Nor has one whose last attempt ended before the watch began, short of
  `train_steps`: it is being extended or restarted, and its next attempt is still to come. If its process cannot be seen
  from here, because it is on another host or in another container, it counts as dead when its heartbeat stops; this
  process's own clock measures that.
  """

  def __init__(self, model_dir: str, train_steps: int = 0, silence_seconds: float = heartbeat.SILENCE_SECONDS):
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

  def _note_before(self, record: json_types.JsonMapping) -> None:
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
    self._has_beaten = self._has_beaten or bool(liveness.of_record(record))
    # By this process's own clock. Versions without heartbeats are judged by their last entry.
    silence = None if pulse[1] is None else time.monotonic() - self._pulse_at
    return liveness.is_dead(record, silence, self._silence_seconds)
