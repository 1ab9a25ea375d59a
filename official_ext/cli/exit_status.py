"""How a run ends, as its exit status and one line tell it."""

import atexit
import contextlib
import os
import sys
from typing import Any, Callable, Iterator, Sequence

from absl import logging
import tensorflow as tf

from official.core import train_utils
from official_ext.core import errors
from official_ext.core import files
from official_ext.core import run_record


def of(main: Callable[[Sequence[str]], Any], argv: Sequence[str]) -> int:
  """Runs `main`, and turns how it ends into an exit status.

  0 finished; 2 bad usage or configuration; 3 diverged; 75 preempted after a save, or hung; 1 anything else. What the
  library foresaw, and failing storage, ends in one line on stderr, the rest in a traceback.

  Args:
    main: the program.
    argv: its arguments.

  Returns:
    The exit status.
  """
  try:
    main(argv)
    return 0
  except (errors.UserError, errors.CheckpointError, errors.WorkerError, errors.DivergedError,
          errors.PreemptedError) as error:
    # gin adds lines that tell which configurable was called.
    message = str(error).strip().split('\n')[0]
    label = 'preempted' if isinstance(error, errors.PreemptedError) else 'error'
    print(f'{label}: {message}', file=sys.stderr, flush=True)
    return error.exit_status
  except KeyboardInterrupt:
    print('error: interrupted', file=sys.stderr, flush=True)
    return 1
  except Exception as error:  # pylint: disable=broad-except  # absl would print it, and exit with 1, without a flush.
    storage = files.explain(error)
    if storage is None:
      logging.exception('The run failed.')
    else:
      print(f'error: {storage}', file=sys.stderr, flush=True)
    return 1


def leave(status: int) -> None:
  """Ends the process. All files are written and closed by now.

  TensorFlow's threads (data pipelines, replicas, XLA) are not asked to end one by one, which at times takes minutes.
  A worker of several has to say goodbye to the others.
  """
  if 'TF_CONFIG' in os.environ:
    sys.exit(status)
  atexit._run_exitfuncs()  # pylint: disable=protected-access  # AutoGraph deletes its temporary files there.
  logging.flush()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


@contextlib.contextmanager
def saving_gin_config(mode: str, model_dir: str, strategy: tf.distribute.Strategy) -> Iterator[None]:
  """Writes operative_config.{mode}.gin when the run inside ends, also when it fails; not when it never began.

  Args:
    mode: the driver's mode.
    model_dir: the run's folder.
    strategy: of several workers only the chief writes.
  """
  try:
    yield
  except BaseException as error:
    if isinstance(error, errors.UserError) and not run_record.is_ours(model_dir, mode):
      raise
    with contextlib.suppress(OSError, tf.errors.OpError):  # What ended the run is what must be told.
      _save_gin_config(mode, model_dir, strategy)
    raise
  try:
    _save_gin_config(mode, model_dir, strategy)
  except files.FAILURES as error:  # The run has finished, and all else of it is there.
    logging.error('%s: operative_config.%s.gin cannot be written: %s', model_dir, mode, files.reason_of(error))


def _save_gin_config(mode: str, model_dir: str, strategy: tf.distribute.Strategy) -> None:
  if strategy.extended.should_checkpoint:
    train_utils.save_gin_config(mode, model_dir)
