"""Turns the end of a run into an exit status and one line."""

import atexit
from collections.abc import Iterator
import contextlib
import os
import sys
import traceback
from typing import Any, NoReturn

from absl import flags
from absl import logging
import gin
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import safe_text
from official_ext.base import tracebacks
from official_ext.base.files import storage
from official_ext.base.run_folder import run_status
from official_ext.data import pipelines
from official_ext.training.devices import cluster

_WITH_STATUS = (
  errors.UserError,
  errors.CheckpointError,
  errors.WorkerError,
  errors.DivergedError,
  errors.PreemptedError,
)


_DELETION_SECONDS = 10.0  # A second start takes over the caches of pipelines that take longer.


def report(error: BaseException) -> int:
  """Prints what has ended a program in one line on stderr, and returns the exit status.

  2: bad usage or configuration; 4: the state forbids it; 3: diverged; 75: preempted after a save, hung, or another
  worker was lost; 1: anything else. For unforeseen exceptions, such as from a task, the line is `file:line: message`
  and names the file with the traceback.

  The status of a task that calls sys.exit(N) is N. It raises again an error that the debugger must see.
  """
  if isinstance(error, _WITH_STATUS):
    label = 'preempted' if isinstance(error, errors.PreemptedError) else 'error'
    for message in messages_of(error):
      _print_message(message, label)
    return error.exit_status
  if isinstance(error, SystemExit):
    # This program never exits so, but a task may, and then the run has not finished.
    _print_message(tracebacks.describe_exit(error))
    return error.code if isinstance(error.code, int) and error.code else 1
  if isinstance(error, KeyboardInterrupt):
    _print_message('interrupted')
    return 1
  foreseen = _without_folder(error) or storage.explain(error) or tracebacks.refusal_in(error)
  if foreseen is not None:
    _print_message(str(foreseen))
    return foreseen.exit_status
  if _flag('pdb_post_mortem'):  # Absl will start the debugger.
    raise error
  return _report_unforeseen(error)


def _without_folder(error: BaseException) -> errors.UserError | None:
  """The error to report if a file was not found because the current directory is gone, or None."""
  if isinstance(error, FileNotFoundError):
    try:
      os.getcwd()
    except FileNotFoundError:
      return errors.UserError('current directory: it was deleted; change to one that exists')
  return None


def messages_of(error: BaseException) -> list[str]:
  """The message of `report` for an error with a custom status, without `error: `, and with its passwords."""
  return list(error.lines) if isinstance(error, errors.UserErrors) else [tracebacks.text_of(error)]


def _print_message(message: str, label: str = 'error') -> None:
  print(f'{label}: {safe_text.mask(message)}', file=sys.stderr, flush=True)


def _report_unforeseen(error: BaseException) -> int:
  """Prints an unforeseen error as one line that names the file with its traceback; returns the status, 1.

  The file is in the run's folder if there is one, or else a temporary file.
  """
  if logging.get_verbosity() >= logging.INFO:
    traceback.print_exception(error)
  runs_once = _flag('dry_run') or _flag('debug')  # These leave nothing in model_dir.
  path = tracebacks.save_traceback(error, '' if runs_once else _flag('model_dir') or '', _traceback_name())
  _print_message(tracebacks.describe(error) + (f'; the traceback is in {path}' if path else ''))
  return 1


def _traceback_name() -> str:
  """The name of the file, which differs for an evaluation or another worker in the same folder."""
  mode = _flag('mode') or 'train'
  parts = ['traceback'] + ([] if 'train' in mode else [mode])
  with contextlib.suppress(errors.UserError):  # If the error came before TF_CONFIG was read.
    _, (_, index) = cluster.read_tf_config()
    if index:
      parts.append(f'worker-{index}')
  return '.'.join([*parts, 'txt'])


def _flag(name: str) -> Any:
  """The value of a flag; None if flags are not parsed."""
  return flags.FLAGS[name].value if name in flags.FLAGS else None


def end_process(status: int, held: list[BaseException] | None = None) -> NoReturn:
  """Ends the process. All files are written and closed by now.

  Iterators of data pipelines are deleted first, so that they delete their temporary files. It does not wait for all of
  TensorFlow's threads (replicas, XLA) to end one by one, which may take minutes. One of several workers ends normally:
  it must disconnect from the others.

  Args:
    status: the exit status.
    held: the error that has ended the program, whose frames may hold iterators; it is cleared.
  """
  if 'TF_CONFIG' in os.environ:
    sys.exit(status)
  held = held or []
  if held:
    pipelines.delete_in_background(held, collects=True)
  if pipelines.finish_deletions(_DELETION_SECONDS):
    pipelines.release_caches()
  atexit._run_exitfuncs()  # pylint: disable=protected-access  # AutoGraph deletes its temporary files there.
  logging.flush()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


@contextlib.contextmanager
def saving_gin_config(mode: str, model_dir: str, strategy: tf.distribute.Strategy) -> Iterator[None]:
  """Writes operative_config.{mode}.gin when the run inside ends, even if it fails, but not if it never began.

  Args:
    mode: the driver's mode.
    model_dir: the run's folder.
    strategy: the run's; only the chief of several workers writes.
  """
  try:
    yield
  except BaseException as error:
    never_began = (errors.UserError, errors.LockLostError, errors.PreemptedError)
    if isinstance(error, never_began) and not run_status.is_ours(model_dir, mode):
      raise
    with contextlib.suppress(errors.StorageError):  # The error that ended the run is the one to report.
      _save_gin_config(mode, model_dir, strategy)
    raise
  try:
    _save_gin_config(mode, model_dir, strategy)
  except errors.StorageError as error:  # The run has finished, and all its other files are written.
    logging.error('%s', error)


def _save_gin_config(mode: str, model_dir: str, strategy: tf.distribute.Strategy) -> None:
  """Does the same as Model Garden's train_utils.save_gin_config, but masks passwords and other secrets."""
  if strategy.extended.should_checkpoint:
    text = safe_text.mask(gin.operative_config_str())
    storage.write(os.path.join(model_dir, f'operative_config.{mode}.gin'), text)
