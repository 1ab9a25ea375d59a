"""Keeps the record of a run: run.json, params.yaml and its earlier versions.

`RecordedRun` is a context around everything that a run does: record and events say how it ended, for any end.
"""

from collections.abc import Mapping
import contextlib
import functools
import json
import os
import re
import subprocess
import tempfile
import threading
import time
from typing import Any, Literal

from absl import logging

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import launcher
from official_ext.base import processes
from official_ext.base import protocols
from official_ext.base import safe_text
from official_ext.base import tf_internals
from official_ext.base import tracebacks
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.base.run_folder import run_lock
from official_ext.base.run_folder import run_status
from official_ext.training.checkpoints import listing
from official_ext.training.config import definitions
from official_ext.training.devices import hang_watch
from official_ext.training.record import code_identity
from official_ext.training.record import run_events

_FILES = ('params.yaml', 'events.jsonl', 'rollbacks.json', 'lines.json', 'checkpoint', run_lock.NAME)
_MAX_ADDED = 10
_FILES_OF_FOLDERS = ('checkpoint', 'history.json', 'info.json')


class RunRecord:
  """The file with the state of a run, for people and for programs that watch it.

  A mode that trains keeps `run.json`; any other keeps `run.{mode}.json`, as it may run during a training in the same
  folder. The file is always whole: each version is written to a temporary file and renamed into place.

  Keys: status (one of run_status.STATUSES), stage (the run's activity), step, error (None, or the message), mode,
  pid, host, pid_start, boot_id, pid_namespace, machine_id (see processes.py), command, cwd, the folder in which
  it was given, environment (the variables that matter: see launcher.py), launcher (the identity of the process that
  started the workers, if any), git_commit (with `+changes` if tracked files differ from it, None outside of a
  repository), versions, code (digests: see code_identity.py), devices, seed, train_steps, attempt (1, and one more each
  time the same run is started again), started, updated, heartbeat and finished (UTC, ISO 8601), and the further entries
  of `update`. `updated` is when the run itself last reached another stage or step; `heartbeat` is when its process last
  reported to be alive, which a thread does every ten seconds independently of the run: a run that hangs in a living
  process has a new heartbeat and an old `updated`. `monotonic` has both in seconds of the host's monotonic clock, since
  the clock that dates them may be reset.

  Attributes:
    is_chief: whether this process writes.
    values: the contents of the file; only this class changes them.
  """

  def __init__(
    self,
    model_dir: str,
    mode: str,
    train_steps: int,
    seed: int | None,
    devices: str,
    is_chief: bool = True,
    lock: run_lock.RunLock | None = None,
  ):
    """Writes the record with status running.

    Args:
      model_dir: the run's folder, which is made if it does not exist.
      mode: the driver's --mode.
      train_steps: the step at which training ends.
      seed: the seed of the run; None if the driver has set none.
      devices: one line about the devices, from `distribute.describe`.
      is_chief: whether this process writes. The record of another process writes nothing.
      lock: of the folder, acquired; released when the record is finished. Nothing is written after it is lost.

    Raises:
      StorageError: the record of a training cannot be written. An evaluation continues without one.
    """
    self._path = run_status.path_of(model_dir, mode)
    self.is_chief = is_chief
    self._folder_lock = lock
    self._was_lost = False
    self._failed: errors.StorageError | None = None
    self._writing = threading.Lock()
    self._heartbeat: run_status.Heartbeat | None = None
    self.values = _first_values() | {'mode': mode, 'devices': devices, 'seed': seed, 'train_steps': train_steps}
    if is_chief:
      if 'train' in mode:
        storage.remove_abandoned(model_dir)
      self.values['folder_number'] = run_status.folder_number(model_dir)
      self.values['attempt'] += self._attempts_before(model_dir, mode)
      try:
        storage.write(self._path, _to_json(self.values))
      except errors.StorageError as error:
        if 'train' in mode:  # Nothing else could be written.
          self.give_folder_back()
          raise
        self._note_failure(error)
      self._heartbeat = run_status.Heartbeat(self._beat)

  def _attempts_before(self, model_dir: str, mode: str) -> int:
    before = run_status.read(model_dir, mode)
    if before is None and os.path.basename(self._path) in paths.names(model_dir):
      logging.warning('%s cannot be read, and is replaced: attempts count from 1 again.', self._path)
    return (before or {}).get('attempt', 0)

  def update(self, stage: str | None = None, step: int | None = None, **values: object) -> None:
    """Notes the progress of the run. A failure to write is reported once, and does not end the run.

    Args:
      stage: the present one: 'build', 'restore', 'train', 'eval', ...; None leaves it unchanged.
      step: the global step; None leaves it unchanged.
      **values: further entries, JSON values, such as `step_shape`.
    """
    if stage is not None:
      values['stage'] = stage
    if step is not None:
      values['step'] = int(step)
    now = json_values.timestamp_now()
    self._put({'updated': now, 'heartbeat': now, **values}, _monotonic('updated', 'heartbeat'))

  def _beat(self) -> None:
    self._put({'heartbeat': json_values.timestamp_now()}, _monotonic('heartbeat'))

  def _put(self, values: Mapping[str, object], monotonic: Mapping[str, float] | None = None) -> None:
    with self._writing:
      self.values.update(values)
      self.values['monotonic'] = {**self.values['monotonic'], **(monotonic or {})}
      if not self.is_chief or self.is_anothers:
        return
      try:
        # Often: of all but the first and the last version, after a power loss readers may find no record.
        storage.write(self._path, _to_json(self.values), sync=self.values['finished'] is not None)
        self._failed = None
      except errors.StorageError as error:
        self._note_failure(error)

  def _note_failure(self, error: errors.StorageError) -> None:
    if self._failed is None:
      logging.error('%s', error)
    self._failed = error

  def finish(self, status: str, error: BaseException | str | None = None, gives_folder_back: bool = True) -> None:
    """Notes how the run ended.

    Args:
      status: one of run_status.STATUSES, not running.
      error: the cause of its end, None for success. For an exception, its type and message.
      gives_folder_back: whether this process writes nothing more; if not, call `give_folder_back` later.
    """
    assert status in run_status.STATUSES[1:], status
    if isinstance(error, BaseException):
      error = f'{type(error).__name__}: {error}'
    now = json_values.timestamp_now()
    if self._heartbeat is not None:
      self._heartbeat.close()
    self.update(status=status, error=error, updated=now, finished=now)
    if self._failed is not None:  # Otherwise the record would say "running" for ever.
      storage.overwrite(self._path, _to_json(self.values))
    if gives_folder_back:
      self.give_folder_back()

  @property
  def is_anothers(self) -> bool:
    """Whether the folder belongs to another run by now, so that nothing more may be written there."""
    return self._was_lost or (self._folder_lock is not None and self._folder_lock.is_lost)

  def check_lock(self) -> None:
    """Makes sure that the folder still belongs to this run.

    Raises:
      LockLostError: see run_lock.py.
    """
    if self._folder_lock is not None:
      self._folder_lock.check()

  def give_folder_back(self) -> None:
    """Lets another training have the folder."""
    self._was_lost = self.is_anothers  # A lock that was given back has no owner.
    if self._folder_lock is not None:
      self._folder_lock.release()


def check_writable(model_dir: str, where: str = '') -> None:
  """Makes sure that `model_dir` is, or can become, a folder to write to. Leaves no files.

  Args:
    model_dir: the folder.
    where: the start of messages; '' for the flag.

  Raises:
    StorageError: the disk is full, of bytes or of files, or fails.
    UserError: it is not, or its name is not UTF-8.
  """
  paths.check_utf8(model_dir, where or '--model_dir')
  if paths.is_remote(model_dir):  # A remote file system reports it when it is written to.
    storage.readable_checkpoint(model_dir)
    return
  folder = os.path.abspath(model_dir)
  while not os.path.lexists(folder):
    folder = os.path.dirname(folder)
  try:
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as error:
    if error.errno in paths.FULL_OR_FAILING:
      raise errors.StorageError(f'{folder}: cannot be written: {error.strerror}') from None
    where = where or f'--model_dir={model_dir}'
    raise errors.UserError(f'{where}: cannot be written: {folder}: {error.strerror}') from None


def check_places(model_dir: str, mode: str, trainer: definitions.TrainerConfig) -> None:
  """Makes sure that nothing else has the names of the files and folders of a run.

  Raises:
    UserError: a file has the name of a folder, or the other way round; or the folder has an imported run.
  """
  if tracker := run_status.tracker_of(run_status.read(model_dir)):
    raise errors.UserError(f'--model_dir={model_dir}: has a run imported from {tracker}; name another folder')
  if paths.is_remote(model_dir):  # Folders are only parts of names there.
    _check_trackers(model_dir, trainer)
    return
  folders = ('train', trainer.validation_summary_subdir, trainer.best_checkpoint_export_subdir, 'ema_checkpoints')
  for path in (os.path.join(model_dir, name) for name in folders if name):
    if os.path.exists(path) and not os.path.isdir(path):
      raise errors.UserError(f'--model_dir={model_dir}: {path} is a file, and a run keeps a folder there; move it away')
  names = [*_FILES, os.path.basename(run_status.path_of(model_dir, mode))]
  names += [os.path.join(folder, name) for folder in folders if folder for name in _FILES_OF_FOLDERS]
  for path in (os.path.join(model_dir, name) for name in names):
    try:
      local_files.check_regular(path)
    except (local_files.UnreadableError, IsADirectoryError) as error:
      raise errors.UserError(
        f'--model_dir={model_dir}: {path} {error.strerror}, and a run keeps a file there; move it away'
      ) from None
    except OSError:  # It does not exist, or is only written.
      pass


def _check_trackers(model_dir: str, trainer: definitions.TrainerConfig) -> None:
  """Refuses trackers that keep local files in the run's folder, if that is remote."""
  if 'wandb' in trainer.writers:
    raise errors.UserError(
      f"trainer.writers: wandb keeps files in the run's folder, and {model_dir} is remote; leave it out, and run "
      f'`official-ext export {model_dir} --to=wandb --output_dir=DIR`'
    )
  if 'mlflow' in trainer.writers and not (trainer.mlflow.tracking_uri or os.environ.get('MLFLOW_TRACKING_URI')):
    raise errors.UserError(
      f"trainer.mlflow.tracking_uri: is empty, so that mlflow keeps its store in the run's folder, and {model_dir} is "
      'remote; name a store'
    )


def save_params(text: str, model_dir: str) -> list[str]:
  """Writes the resolved configuration to params.yaml, which --config_file reads back as the same configuration.

  If the folder has other params already, the difference is printed, a line for each field (one for all that an older
  version did not have). The old file is kept as params.N.yaml with the first N that is free, from 1, unless one of
  these is equal to it. If the params are equal, the file does not change. Passwords and other secrets are masked; a
  difference in them alone does not count.

  Args:
    text: `ExperimentConfig.masked_yaml` of the resolved configuration.
    model_dir: the run's folder, which is made if it does not exist.

  Returns:
    The differences, as printed: `trainer.train_steps: 100 -> 200`.

  Raises:
    StorageError: it cannot be written.
  """
  path = os.path.join(model_dir, 'params.yaml')
  differences: list[str] = []
  if 'params.yaml' in paths.names(model_dir):
    old = paths.read(path, local_files.MAX_RECORD)
    differences = _differences_from_bytes(old, text)
    if not differences:
      return []
    kept = _keep(path, old)
    print(f'{path}: other parameters than before, which are kept in {kept}:', flush=True)
    for line in _shown(differences):
      print(f'  {line}', flush=True)
  storage.write(path, text)
  return differences


def _shown(differences: list[str]) -> list[str]:
  """The lines to print: the fields that an older version did not have, which are many, in one."""
  added = [line for line in differences if ': unset -> ' in line]
  if len(added) <= _MAX_ADDED:
    return differences
  names = ', '.join(line.partition(':')[0] for line in added[:_MAX_ADDED])
  return [
    *(line for line in differences if line not in added),
    f'{len(added)} fields that it did not have: {names}, ...',
  ]


def keep_file(path: str, content: bytes) -> None:
  """Writes a file of a run. If there is another of its name, that stays, as NAME.N.EXTENSION with the first free N.

  Raises:
    StorageError: it cannot be written.
  """
  folder, name = os.path.split(path)
  if name in paths.names(folder):
    old = paths.read(path)
    if old == content:
      return
    _keep(path, old)
  storage.write_bytes(path, content)


def _differences_from_bytes(old: bytes, new_text: str) -> list[str]:
  try:
    return config_text.text_differences(old.decode(), new_text)
  except UnicodeDecodeError:
    return ['the old file cannot be read: it is not UTF-8']


def _keep(path: str, content: bytes) -> str:
  """Writes `content` as params.N.yaml next to `path`, if it is in none of these files; returns where it is."""
  folder, name = os.path.split(path)
  stem, extension = os.path.splitext(name)
  for earlier in paths.matching(folder, rf'{re.escape(stem)}\.\d+{re.escape(extension)}'):
    with contextlib.suppress(OSError):
      if paths.read(earlier, local_files.MAX_RECORD) == content:
        return earlier
  number, taken = 1, set(paths.names(folder))
  while f'{stem}.{number}{extension}' in taken:
    number += 1
  kept = os.path.join(folder, f'{stem}.{number}{extension}')
  storage.write_bytes(kept, content)
  return kept


def _first_values() -> json_values.JsonObject:
  """The values of a run that has just started, by this process."""
  now = json_values.timestamp_now()
  return {
    'status': 'running',
    'stage': 'start',
    'step': None,
    'error': None,
    'mode': None,
    **processes.own_identity().as_dict(),
    'folder_number': None,
    'command': launcher.own_command(),
    'cwd': os.getcwd(),
    'environment': launcher.relevant_environment(),
    'launcher': launcher.own_launcher(),
    'git_commit': _git_commit(os.getcwd()),
    'versions': code_identity.versions(),
    'devices': None,
    'seed': None,
    'train_steps': None,
    'attempt': 1,
    'started': now,
    'updated': now,
    'heartbeat': now,
    'monotonic': _monotonic('updated', 'heartbeat'),
    'finished': None,
  }


def _to_json(values: Mapping[str, object]) -> str:
  masked = safe_text.mask_values(values)
  return json.dumps(masked, indent=2, allow_nan=False, default=str) + '\n'


@functools.cache
def _git_commit(folder: str) -> str | None:
  """The commit checked out in `folder`, followed by `+changes` if tracked files differ from it."""

  def git(*arguments: str) -> str:
    return subprocess.run(
      ('git', *arguments), cwd=folder, capture_output=True, text=True, timeout=10, check=True
    ).stdout.strip()

  try:
    commit = git('rev-parse', 'HEAD')
    return commit + ('+changes' if git('status', '--porcelain', '--untracked-files=no') else '')
  except (OSError, subprocess.SubprocessError):
    return None


def _monotonic(*names: str) -> dict[str, float]:
  return dict.fromkeys(names, round(time.monotonic(), 3))


class RecordedRun:
  """A context manager: from its beginning to its end the run has a record, which is finished with it.

  Attributes:
    record: run.json.
    events: the run's events.
    trainer: the run's.
    hang: ends a run that hangs; a context manager too, for the time in which it can.
    checkpoint: the tf.train.Checkpoint that the run writes, whose thread ends with the run; None: it writes none.
  """

  def __init__(
    self,
    record: RunRecord,
    events: run_events.RunEvents,
    trainer: Any,
    hang_seconds: float,
    model_dir: str,
    worker_index: int,
  ):
    """Initializes the context.

    Args:
      record: see attributes; it says that the run is running.
      events: see attributes.
      trainer: see attributes.
      hang_seconds: a run hangs if it has made no progress for so long.
      model_dir: the run's folder.
      worker_index: the number of this process.
    """
    self.record, self.events, self.trainer = record, events, trainer
    self.hang = hang_watch.HangWatch(
      hang_seconds,
      trainer.global_step.numpy,
      model_dir,
      worker_index,
      self._report_hang,
      at_last=record.give_folder_back,
    )
    self.checkpoint: object = None
    self._rollbacks: listing.Rollbacks | None = None

  def count_skips(self, rollbacks: listing.Rollbacks) -> None:
    """Starts to count skipped updates. Call it when the run is restored, if it may skip updates.

    Args:
      rollbacks: of the run.
    """
    self._rollbacks = rollbacks

  def skipped_updates(self) -> int | None:
    """The updates that the whole run has skipped, even before a restore or a rollback; None if they are not counted."""
    return None if self._rollbacks is None else self._rollbacks.skipped_updates + self.trainer.num_skips

  def enter_stage(self, stage: str, step: int) -> None:
    """Notes the present stage.

    Raises:
      LockLostError: the folder belongs to another run by now.
    """
    self.hang.enter(stage)
    self.record.check_lock()
    self.record.update(stage=stage, step=step, skipped_updates=self.skipped_updates())

  def __enter__(self) -> 'RecordedRun':
    return self

  def __exit__(self, error_type: Any, error: BaseException | None, traceback: Any) -> Literal[False]:
    status = 'finished' if error is None else getattr(error, 'status', 'failed')
    message = None if error is None else tracebacks.message_of(error)
    self._close_profile()
    tf_internals.end_async_saves(self.checkpoint)
    try:
      step, skipped = self._note_progress()
    except Exception as failure:  # pylint: disable=broad-except  # A device may be gone with a worker.
      logging.exception('How far the run has come cannot be read: %s', failure)
      step, skipped = self.record.values['step'] or 0, None
    self.record.finish(status, message)
    if self.events.nothing_to_do and self.trainer.strategy.extended.should_checkpoint:
      print(f'finished before, at step {step}: nothing to do', flush=True)
    values: json_values.JsonObject = {} if error is None else {'error': message}
    if not self.record.is_anothers:
      event = 'failed' if status == 'diverged' else status
      self.events.report(event, step, {**values, 'skipped_updates': skipped} if skipped else values)
    self.events.writers.close()
    return False

  def _close_profile(self) -> None:
    try:
      if self.trainer.profiler is not None:
        self.trainer.profiler.close()
    except Exception as failure:  # pylint: disable=broad-except  # The end of the run is more important to report.
      logging.exception('The profile was not written: %s', failure)

  def _note_progress(self) -> tuple[int, int | None]:
    """Returns the step, and how many updates were skipped."""
    step = int(self.trainer.global_step.numpy())
    self.record.update(step=step, **_plan_record(self.trainer))
    if self.events.actions.stop_reason:
      self.record.update(early_stopped=self.events.actions.stop_reason)
    skipped = self.skipped_updates()
    if skipped is not None:
      self.record.update(skipped_updates=skipped)
    return step, skipped

  def _report_hang(self, error: errors.HungError, step: int) -> None:
    self.record.update(step=step)
    self.record.finish(error.status, error, gives_folder_back=False)  # A run that hangs may still continue, and write.
    self.events.writers.write(error.status, step, {'error': str(error)})  # Actions may hang too.
    self.events.writers.close()


def _plan_record(trainer: protocols.Trainer) -> json_values.JsonMapping:
  plan = trainer.plan
  if plan is None:
    return {}
  return {
    'step_shape': plan.execution,
    'jit_compile': plan.jit_compile,
    'steps_per_execution': plan.steps_per_execution,
    'step_shape_reason': plan.reason,
  }
