"""What a run is and was: run.json, params.yaml and its earlier versions."""

import datetime
import functools
import importlib.metadata
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Mapping, Optional

from absl import logging
import tensorflow as tf

from official_ext.core import config_definitions, errors, yaml_text

STATUSES = ('running', 'finished', 'preempted', 'diverged', 'failed')

_PACKAGES = (
  'official-ext',
  'tensorflow',
  'tf-keras',
  'tf-models-official',
  'tensorflow-datasets',
  'gin-config',
  'array-record',
  'numpy',
)


class RunRecord:
  """The file that says how a run stands, for people and for programs that watch it.

  A mode that trains keeps `run.json`; any other keeps `run.{mode}.json`, as it may run beside a training in the same
  folder. The file is always whole: each version is written beside it and renamed into place.

  Keys: status (one of STATUSES), stage (what the run is doing), step, error (None, or the message), mode, pid, host,
  command, git_commit (with `+changes` where tracked files differ from it, None outside of a repository), versions,
  devices, seed, train_steps, attempt (1, and one more each time the same run is started again), started, updated and
  finished (UTC, ISO 8601), and whatever `update` was given besides.
  """

  def __init__(
    self,
    model_dir: str,
    mode: str,
    params: config_definitions.ExperimentConfig,
    seed: int,
    devices: str,
    is_chief: bool = True,
  ):
    """Writes the record with status running.

    Args:
      model_dir: the run's folder, which is made where it does not exist.
      mode: the driver's --mode.
      params: the resolved configuration.
      seed: the seed of the run.
      devices: one line about the devices, from `distribute.describe`.
      is_chief: whether this process is the one that writes. The record of another process writes nothing.
    """
    self._path = _path(model_dir, mode)
    self._is_chief = is_chief
    self._warned = False
    now = _now()
    self._values: Dict[str, Any] = {
      'status': 'running',
      'stage': 'start',
      'step': None,
      'error': None,
      'mode': mode,
      'pid': os.getpid(),
      'host': socket.gethostname(),
      'command': shlex.join([sys.executable, *sys.argv]),
      'git_commit': _git_commit(os.getcwd()),
      'versions': _versions(),
      'devices': devices,
      'seed': seed,
      'train_steps': params.trainer.train_steps,
      'attempt': 1,
      'started': now,
      'updated': now,
      'finished': None,
    }
    if is_chief:
      tf.io.gfile.makedirs(model_dir)
      self._values['attempt'] += (read(model_dir, mode) or {}).get('attempt', 0)
      _write_atomically(self._path, _to_json(self._values))

  @property
  def values(self) -> Mapping[str, Any]:
    """What the file says."""
    return dict(self._values)

  def update(self, stage: Optional[str] = None, step: Optional[int] = None, **values: Any) -> None:
    """Notes how far the run has come. A failure to write is reported once, and does not end the run.

    Args:
      stage: what the run does now: 'build', 'restore', 'train', 'eval', ...; None leaves it as it is.
      step: the global step; None leaves it as it is.
      **values: further entries, JSON values, such as `step_shape`.
    """
    if stage is not None:
      values['stage'] = stage
    if step is not None:
      values['step'] = int(step)
    self._values.update({'updated': _now(), **values})
    if not self._is_chief:
      return
    try:
      _write_atomically(self._path, _to_json(self._values))
    except (OSError, tf.errors.OpError) as e:
      if not self._warned:
        logging.error('%s cannot be written: %s', self._path, e)
      self._warned = True

  def finish(self, status: str, error: Optional[BaseException | str] = None) -> None:
    """Notes how the run ended.

    Args:
      status: one of STATUSES, not running.
      error: what ended it, None where nothing went wrong. Of an exception, its type and message.
    """
    assert status in STATUSES[1:], status
    if isinstance(error, BaseException):
      error = f'{type(error).__name__}: {error}'
    now = _now()
    self.update(status=status, error=error, updated=now, finished=now)


def read(model_dir: str, mode: str = 'train') -> Optional[Dict[str, Any]]:
  """The record that a run of `mode` left in `model_dir`; None where there is none, or none that can be read."""
  path = _path(model_dir, mode)
  if not tf.io.gfile.exists(path):
    return None
  with tf.io.gfile.GFile(path) as f:
    try:
      values = json.load(f)
    except json.JSONDecodeError:
      return None
  return values if isinstance(values, dict) else None


def has_finished(model_dir: str, mode: str) -> bool:
  """Whether the last run of this mode in a folder has finished."""
  record = read(model_dir, mode) or {}
  return record.get('status') == 'finished' and record.get('mode') == mode


def is_ours(model_dir: str, mode: str) -> bool:
  """Whether a run of this process has begun in `model_dir`."""
  record = read(model_dir, mode)
  return record is not None and (record['pid'], record['host']) == (os.getpid(), socket.gethostname())


class TrainingWatch:
  """Tells an evaluation that runs beside a training when that has finished or died: no checkpoint will follow.

  A training that has not begun has not ended. Nor has one whose last attempt was over, short of `train_steps`, before
  the watch began: it is being extended or started again, and the next attempt has yet to begin.
  """

  def __init__(self, model_dir: str, train_steps: int = 0):
    """Looks at the training as it stands.

    Args:
      model_dir: the run's folder.
      train_steps: the length of the training that this process was configured with; 0 where it was not told.
    """
    self._model_dir = model_dir
    self._attempt_before: Optional[int] = None
    self._notice = ''
    record = read(model_dir)
    is_complete = record is not None and ((record['step'] or 0) >= train_steps or record.get('early_stopped'))
    if record is not None and _is_over(record) and not is_complete:
      self._attempt_before = record['attempt']
      self._notice = (
        f'The training in {model_dir} has ended at step {record["step"] or 0} of {train_steps}: waiting for the next '
        'attempt, up to trainer.continuous_eval_timeout seconds.'
      )

  def has_ended(self) -> bool:
    """Whether it has. Prints one line where it begins to wait for another attempt."""
    record = read(self._model_dir)
    if record is None or not _is_over(record):
      return False
    if record['attempt'] != self._attempt_before:
      return True
    if self._notice:
      print(self._notice, flush=True)
      self._notice = ''
    return False


def _is_over(record: Mapping[str, Any]) -> bool:
  """Whether an attempt has finished or died. One on another host can only be judged by what it wrote itself."""
  if record['status'] != 'running':
    return True
  return record['host'] == socket.gethostname() and not _is_alive(record['pid'])


def _is_alive(pid: int) -> bool:
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  except PermissionError:
    pass
  return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
  """Whether a process has died and nobody has asked for its exit status, as happens in containers."""
  try:
    with open(f'/proc/{pid}/stat') as f:
      return f.read().rpartition(')')[2].split()[0] == 'Z'
  except OSError:  # No /proc: not Linux.
    return False


def check_writable(model_dir: str) -> None:
  """Makes sure that `model_dir` is, or can become, a folder to write to. Leaves nothing behind.

  Raises:
    UserError: it is not.
  """
  if '://' in model_dir:  # A remote file system says so when it is written to.
    return
  folder = os.path.abspath(model_dir)
  while not os.path.lexists(folder):
    folder = os.path.dirname(folder)
  try:
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as error:
    raise errors.UserError(f'--model_dir={model_dir}: cannot be written: {folder}: {error.strerror}') from None


def save_params(params: config_definitions.ExperimentConfig, model_dir: str) -> List[str]:
  """Writes the resolved configuration to params.yaml, which --config_file reads back as the same configuration.

  Where the folder holds other params already, the difference is printed, a line for each field, and the old file is
  kept as params.N.yaml with the first N that is free, from 1. Equal params leave the file untouched.

  Args:
    params: the resolved configuration.
    model_dir: the run's folder, which is made where it does not exist.

  Returns:
    The differences, as printed: `trainer.train_steps: 100 -> 200`.
  """
  path = os.path.join(model_dir, 'params.yaml')
  text = yaml_text.dump(params.as_dict())
  differences = []
  if tf.io.gfile.exists(path):
    with tf.io.gfile.GFile(path) as f:
      old_text = f.read()
    differences = params_differences(old_text, text)
    if not differences:
      return []
    kept = _keep(path, old_text)
    print(f'{path}: other parameters than before, which are kept in {kept}:', flush=True)
    for line in differences:
      print(f'  {line}', flush=True)
  tf.io.gfile.makedirs(model_dir)
  _write_atomically(path, text)
  return differences


def params_differences(old_text: str, new_text: str) -> List[str]:
  """The fields in which two YAML documents differ; [] where they say the same."""
  if old_text == new_text:
    return []
  try:
    old = _flatten(yaml_text.load(old_text, 'the old file cannot be read'))
  except errors.UserError as e:
    return [str(e)]
  new = _flatten(yaml_text.load(new_text, 'params.yaml'))
  # Compared as text: 1 is not 1.0, and nan is nan.
  shown = {key: (repr(old[key]) if key in old else 'unset', repr(new[key]) if key in new else 'unset')
           for key in {**old, **new}}
  return [f'{key}: {before} -> {after}' for key, (before, after) in shown.items() if before != after]


def _flatten(values: Any, prefix: str = '') -> Dict[str, Any]:
  """Nested dictionaries, and lists of them, as one with dotted paths."""
  if isinstance(values, dict) and values:
    items = [(f'{prefix}.{key}' if prefix else str(key), value) for key, value in values.items()]
  elif isinstance(values, list) and any(isinstance(value, (dict, list)) for value in values):
    items = [(f'{prefix}[{i}]', value) for i, value in enumerate(values)]
  else:
    return {prefix: values}
  return {key: value for name, item in items for key, value in _flatten(item, name).items()}


def _keep(path: str, text: str) -> str:
  """Writes `text` beside `path`, as params.N.yaml, and returns where."""
  stem, extension = os.path.splitext(path)
  number = 1
  while tf.io.gfile.exists(f'{stem}.{number}{extension}'):
    number += 1
  kept = f'{stem}.{number}{extension}'
  _write_atomically(kept, text)
  return kept


def _write_atomically(path: str, text: str) -> None:
  temporary = f'{path}.tmp-{socket.gethostname()}-{os.getpid()}'
  with tf.io.gfile.GFile(temporary, 'w') as f:
    f.write(text)
  tf.io.gfile.rename(temporary, path, overwrite=True)


def _path(model_dir: str, mode: str) -> str:
  return os.path.join(model_dir, 'run.json' if 'train' in mode else f'run.{mode}.json')


def _to_json(values: Mapping[str, Any]) -> str:
  return json.dumps(values, indent=2, allow_nan=False, default=str) + '\n'


def _now() -> str:
  return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='milliseconds').replace('+00:00', 'Z')


def _versions() -> Dict[str, Optional[str]]:
  """The versions of Python and of the packages that decide what a run computes."""
  versions: Dict[str, Optional[str]] = {'python': platform.python_version()}
  for package in _PACKAGES:
    try:
      versions[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      versions[package] = None
  return versions


@functools.lru_cache(maxsize=None)
def _git_commit(folder: str) -> Optional[str]:
  """The commit checked out in `folder`, followed by `+changes` where tracked files differ from it."""

  def git(*arguments: str) -> str:
    return subprocess.run(
      ('git', *arguments), cwd=folder, capture_output=True, text=True, timeout=10, check=True
    ).stdout.strip()

  try:
    commit = git('rev-parse', 'HEAD')
    return commit + ('+changes' if git('status', '--porcelain', '--untracked-files=no') else '')
  except (OSError, subprocess.SubprocessError):
    return None
