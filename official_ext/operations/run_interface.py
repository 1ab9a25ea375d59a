"""Runs as objects: start, list, read, wait for, stop, resume and clone them. It needs no TensorFlow.

    for run in ext.runs.list('runs', filters=['accuracy>0.9'], sort='accuracy'):
      print(run.name, run.status, run.best())

`official-ext runs` has the same operations as commands. docs/how_to/automation.md has a longer example.

Example:

  >>> import tempfile
  >>> ext.runs.list(tempfile.mkdtemp())
  []
"""

import builtins
from collections.abc import Iterable, Mapping, Sequence
import os
import sys
import time
from typing import NamedTuple

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.operations.queue import queue_changes
from official_ext.operations.queue import queue_folder
from official_ext.operations.queue import queued_jobs
from official_ext.operations.runs import commands
from official_ext.operations.runs import driver
from official_ext.operations.runs import event_log
from official_ext.operations.runs import run_comparison
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import selection
from official_ext.operations.runs import statuses

ENDED = 'ended'  # The default of `Run.wait`: no process of the run lives.
_POLL_SECONDS = 1.0


class Best(NamedTuple):
  """The best value of a metric in the evaluations of a run.

  Attributes:
    metric: its name.
    value: the best value.
    step: the step of its evaluation.
  """

  metric: str
  value: float
  step: int


class Run:
  """A run: a folder that train.py has written to. Each property and method reads its files again.

  Attributes:
    name: the path of its folder below the folder of runs.
    path: its folder, absolute.

  Example:

    >>> run = ext.runs.get('runs/digits')  # doctest: +SKIP
    >>> run.status, run.metrics('eval/accuracy')[-1]  # doctest: +SKIP
    ('finished', (200, 0.9875))
  """

  def __init__(self, folder: run_folders.Run, root: str):
    """Use `list` or `get`.

    Args:
      folder: the run.
      root: the folder of the runs.
    """
    self._folder, self._root = folder, root
    self.name, self.path = folder.name, folder.path

  def __repr__(self) -> str:
    return f'Run({self.path!r})'

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Run) and other.path == self.path

  def __hash__(self) -> int:
    return hash(self.path)

  def summary(self) -> run_index.RunSummary:
    """Its status with the reason, step, speed, time left, last metrics, tags and note."""
    return run_index.summary_of(self._folder)

  @property
  def status(self) -> str:
    """One of the statuses of docs/reference/statuses.md, such as 'running', 'finished' or 'failed'."""
    return statuses.of_run(self._folder).status

  @property
  def is_alive(self) -> bool:
    """Whether a process of the run lives or may live."""
    return statuses.is_alive(self._folder)

  def params(self) -> json_values.JsonObject:
    """Its configuration: dotted path -> value, with short names such as `learning_rate` as further keys; {} without."""
    short_names = (self._folder.record() or {}).get('short_names')
    values = run_folders.read_params(self._folder) or {}
    return run_folders.with_short_names(values, short_names if isinstance(short_names, dict) else {})

  def metrics(self, name: str) -> builtins.list[tuple[int, float]]:
    """The values of a metric that stand, by step: (step, value) of each.

    Args:
      name: `eval/accuracy` of evaluations, `train/training_loss` of training; without a prefix of evaluations if they
        have it, else of training.

    Returns:
      [] if the run has no such metric. Values may be NaN or infinite.
    """
    kind, slash, metric = name.partition('/')
    kinds, metric = ((kind,), metric) if slash and kind in ('train', 'eval') else (('eval', 'train'), name)
    found: dict[str, builtins.list[tuple[int, float]]] = {kind: [] for kind in kinds}
    for event in event_log.standing_events(self._folder):
      value = event_log.metrics_of(event).get(metric) if event['event'] in found else None
      if value is not None:
        found[event['event']].append((event['step'], float(value)))
    return next((values for values in found.values() if values), [])

  def metric_names(self) -> builtins.list[str]:
    """The names that `metrics` takes, such as 'eval/accuracy', in the order of their first values."""
    kinds = [event for event in event_log.standing_events(self._folder) if event['event'] in ('train', 'eval')]
    return builtins.list(
      dict.fromkeys(f'{event["event"]}/{name}' for event in kinds for name in event_log.metrics_of(event))
    )

  def best(self, metric: str = '') -> Best | None:
    """The best evaluation.

    Args:
      metric: its name; '' for `trainer.best_checkpoint_eval_metric`.

    Returns:
      None if no evaluation has it, or neither its name nor the configuration says which values are better.
    """
    if not metric:
      found = run_comparison.best_of(self._folder)
      return found and Best(*found)
    values = run_comparison.best_metrics(self._folder)
    return Best(metric, *values[metric]) if metric in values else None

  def log(self, num_lines: int = 20) -> builtins.list[str]:
    """The last lines of its output, if it was started detached; else []."""
    return run_processes.log_tail(self._folder, num_lines)

  def wait(self, until: str = ENDED, timeout: float | None = None) -> bool:
    """Waits until the run has ended, or a condition holds.

    Args:
      until: 'ended', or a condition as `official-ext runs list --filter` takes it, such as 'accuracy>0.9' or
        'step>=100'.
      timeout: seconds to wait at most; None for no limit.

    Returns:
      True if the run has ended or the condition holds; False if the run has ended before, or the time is over. A run
      that has never started has not ended, unless its job of the queue is over.

    Raises:
      UserError: the condition is invalid.
    """
    condition = None if until == ENDED else selection.parse_condition(until, '--until')
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
      has_ended = self._has_ended()  # Before the condition: the last values are written by then.
      if condition is None and has_ended:
        return True
      if condition is not None and self._holds(condition):
        return True
      left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
      if left <= 0 or has_ended:
        return False
      time.sleep(min(left, _POLL_SECONDS))

  def _has_ended(self) -> bool:
    status = self.status
    if status == 'unknown' and not self.is_alive:  # It has not begun: its job may be over.
      jobs = [
        state for state in queue_folder.Queue(self._root).states() if state.job and state.job.model_dir == self.path
      ]
      return bool(jobs) and jobs[-1].status in queued_jobs.OVER
    return status not in ('submitted', 'starting') and not self.is_alive

  def _holds(self, condition: selection.Condition) -> bool:
    summary = self.summary()
    try:
      values = selection.values_of(condition.name, [summary], lambda: {self.name: self.params()}, '')
    except errors.UserError:  # No such metric yet.
      return False
    return any(condition.holds(value) for value in values[self.name])

  def stop(self, now: bool = False) -> None:
    """Asks the run to save and to stop. `resume` continues it.

    Args:
      now: whether it ends at once, without saving.

    Raises:
      UserError: it does not run, or cannot be reached from here.
    """
    run_processes.stop_run(self._folder, now)

  def resume(self, train_steps: int | None = None) -> None:
    """Starts the run's command again, detached: it continues from its newest checkpoint.

    Args:
      train_steps: the step at which training ends then, which extends a run that has finished; None: unchanged.

    Raises:
      UserError: the run lives, has finished, or its command is not known.
    """
    commands.to_resume(self._folder, train_steps).start()

  def clone(
    self, name: str = '', changes: Mapping[str, object] | None = None, start: bool = True, queue: bool = False
  ) -> 'Run':
    """Makes a run with the same configuration, but for some changes.

    Args:
      name: of the new run; '' for a free one.
      changes: dotted path or short name -> value. The new run checks them when it starts.
      start: whether it is started, detached.
      queue: whether it waits in the queue of the folder of runs instead.

    Returns:
      The new run.

    Raises:
      UserError: the name is taken, or the command of this run is not known.
    """
    waiting = queue_folder.Queue(self._root) if queue else None
    texts = [f'{path}={config_text.setting_text(value)}' for path, value in (changes or {}).items()]
    command = commands.make_clone(self._folder, self._root, name or None, texts)
    if waiting is not None:
      queue_changes.add(waiting, command.whole_words(), command.cwd, command.model_dir)
    elif start:
      command.start()
    return Run(run_folders.Run(command.model_dir, os.path.relpath(command.model_dir, self._root)), self._root)


def list(  # pylint: disable=redefined-builtin
  root: str,
  status: Iterable[str] = (),
  experiment: Iterable[str] = (),
  tag: Iterable[str] = (),
  filters: Sequence[str] = (),
  sort: str = 'name',
  archived: bool = False,
) -> builtins.list[Run]:
  """The runs in a folder.

  Args:
    root: the folder, on this machine.
    status: any of these statuses; () for all.
    experiment: any of these experiments; () for all.
    tag: all of these tags.
    filters: conditions such as 'learning_rate=1e-3' or 'accuracy>0.9'; all of them.
    sort: 'name', a field such as 'started', a metric (the best come first) or a field of the configuration; after a '-'
      the other way round.
    archived: whether archived runs are listed, in place of the others.

  Returns:
    The runs, in this order.

  Raises:
    UserError: the folder does not exist, or no run has the field of a filter or of the order.

  Example:

    >>> [run.name for run in ext.runs.list('runs', status=['finished'], sort='accuracy')]  # doctest: +SKIP
    ['digits-2', 'digits']
  """
  root = _checked_root(root)
  index = run_index.RunIndex(root)
  known = [each for each in index.summaries() if each.is_archived == archived]
  chosen = selection.Selection(tuple(status), tuple(experiment), tuple(tag), tuple(filters)).choose(known, index.params)
  chosen = chosen if sort == 'name' else selection.in_order(chosen, sort, index.params)
  return [Run(run_folders.get_run(root, each.name), root) for each in chosen]


def get(path: str) -> Run:
  """The run in a folder.

  Args:
    path: of the folder, such as 'runs/digits'.

  Raises:
    UserError: the folder has no run.
  """
  path = os.path.abspath(paths.expanded(path))
  if not run_folders.is_run(path):
    raise errors.UserError(f'{path}: no run; name the folder that has its run.json')
  root, name = os.path.split(path)
  return Run(run_folders.get_run(root, name), root)


def start(
  experiment: str,
  path: str,
  settings: Mapping[str, object] | None = None,
  mode: str = 'train_and_eval',
  flags: Sequence[str] = (),
  queue: bool = False,
) -> Run:
  """Starts a run, detached: train.py of the current folder, or else `official-ext train`.

  Args:
    experiment: its name.
    path: the run's folder, such as 'runs/digits'. An existing run resumes.
    settings: dotted path or short name -> value. The run checks them when it starts.
    mode: such as 'train', 'train_and_eval', 'eval'.
    flags: further flags of train.py, such as '--registry=my_tasks'.
    queue: whether it waits in the queue of the folder around `path` for a dispatcher instead.

  Returns:
    The run.

  Raises:
    UserError: a run lives in the folder, or it cannot be started.

  Example:

    >>> run = ext.runs.start('digits', 'runs/wide', {'train_steps': 200})  # doctest: +SKIP
    >>> run.wait(timeout=600), run.status  # doctest: +SKIP
    (True, 'finished')
  """
  path = os.path.abspath(paths.expanded(path))
  program = driver.program_words(driver.find_program(driver.DEFAULT_PROGRAM))
  words = [sys.executable, *program, f'--experiment={experiment}', f'--mode={mode}', f'--model_dir={path}', *flags]
  words += [f'--set={name}={config_text.setting_text(value)}' for name, value in (settings or {}).items()]
  root, name = os.path.split(path)
  if queue:
    queue_changes.add(queue_folder.Queue(root), words, os.getcwd(), path)
  else:
    run_processes.start_run(words, path, None, os.getcwd(), mode)
  return Run(run_folders.Run(path, name), root)


def _checked_root(root: str) -> str:
  root = paths.expanded(root)
  if paths.is_remote(root):
    raise errors.UserError(f'{root}: is remote; `official-ext runs` takes copies of remote runs')
  run_folders.check_root(root)
  return os.path.abspath(root)
