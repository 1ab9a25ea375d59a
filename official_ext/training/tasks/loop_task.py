"""Tasks that own their loop: something else trains, such as the trainer of another library, in a run like any other.

The run has its folder and lock, params.yaml, run.json, events and writers, stops at a signal, and ends with
the same statuses. It has no model, optimizer, input, evaluation or checkpoint of this library: the task brings them.
"""

from collections.abc import Callable, Mapping
import os
from typing import Any

from absl import logging
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.base.run_folder import run_status
from official_ext.training.config import definitions
from official_ext.training.devices import signals
from official_ext.training.record import code_identity
from official_ext.training.record import run_record
from official_ext.training.tasks import base_task

_PATIENCE = 3  # How often a loop may report after the stop request: it may look one step later.


class LoopTask(base_task.Task):
  """A task that owns its loop: it implements `run_loop`, and none of `build_model`, `build_inputs` and `forward`.

  Example:

    >>> class Halving(ext.LoopTask):
    ...   def run_loop(self, run):
    ...     loss = 1.0
    ...     while run.step < run.train_steps and not run.stop_requested:
    ...       loss /= 2
    ...       run.advance(run.step + 1)
    ...       run.report('train', {'loss': loss})
    ...     return {'loss': loss}
    >>> params = ext.ExperimentConfig(task=ext.TaskConfig(), trainer=ext.TrainerConfig({'train_steps': 2}))
    >>> Halving(params.task).run_loop(ext.LoopRun(params, 'runs/halving', show=print))
    train 1 loss 0.5
    train 2 loss 0.25
    {'loss': 0.25}
  """

  def check_loop(
    self, params: definitions.ExperimentConfig, model_dir: str, previous: Mapping[str, object] | None
  ) -> None:
    """Refuses invalid settings before the run writes anything.

    Args:
      params: the experiment.
      model_dir: the run's folder.
      previous: the record (run.json) of the run's attempt before this one; None if there was none.

    Raises:
      UserError: the run cannot begin.
    """

  def run_loop(self, run: 'LoopRun') -> Mapping[str, Any]:
    """Trains to the end, or until `run.stop_requested`, and saves the result.

    Args:
      run: receives the events: `enter`, `begin`, `advance` after every step, `report`. If `begin` is not called, there
        was nothing to do.

    Returns:
      Final metrics, to be printed.
    """
    raise NotImplementedError(f'{type(self).__name__} must implement run_loop.')

  def build_inputs(self, params: Any, input_context: Any = None) -> Any:
    """There are none of this library."""
    raise NotImplementedError(f'{type(self).__name__} trains in a custom loop.')


class LoopRun:
  """A run as the task that owns its loop sees it. This class by itself is a rehearsal, which records nothing.

  Attributes:
    params: the experiment.
    model_dir: the run's folder.
    previous: see `LoopTask.check_loop`.
    is_rehearsal: whether the run is thrown away afterwards: `official-ext check`.
    step: the number of updates so far.
    train_steps: the step at which training ends; 0 if that is not known.
    model: the trained one, once the task has it.
    has_begun: whether `begin` was called.
    stopped_by: the result of `stop_requested`, if it was asked in time; None if the loop ran to its end.

  Example:

    >>> params = ext.ExperimentConfig(task=ext.TaskConfig(), trainer=ext.TrainerConfig({'train_steps': 100}))
    >>> run = ext.LoopRun(params, 'runs/rehearsal', stop_after=3, show=print)
    >>> while run.step < run.train_steps and not run.stop_requested:
    ...   run.advance(run.step + 1)
    >>> run.report('eval', {'accuracy': 0.5})
    eval 3 accuracy 0.5
    >>> run.stopped_by
    'step 3 of a rehearsal'
  """

  is_rehearsal = True

  def __init__(
    self,
    params: definitions.ExperimentConfig,
    model_dir: str,
    previous: Mapping[str, object] | None = None,
    stop_after: int = 0,
    show: Callable[[str, str], None] = lambda name, text: None,
  ):
    """Initializes a rehearsal.

    Args:
      params: see attributes.
      model_dir: see attributes.
      previous: see attributes.
      stop_after: the step at which the loop is to stop, as a signal would; 0 for never.
      show: receives the name of each event, and a line about it.
    """
    self.params, self.model_dir, self.previous = params, model_dir, previous
    self.step, self.train_steps, self.model = 0, params.trainer.train_steps, None
    self._stop_after, self._show, self._num_late = stop_after, show, 0
    self.has_begun = False
    self.stopped_by: str | None = None

  @property
  def is_resumed(self) -> bool:
    """Whether an attempt before this one has trained in the folder."""
    return self.previous is not None

  @property
  def has_finished_before(self) -> bool:
    """Whether the attempt before this one has finished."""
    return (self.previous or {}).get('status') == 'finished'

  @property
  def stop_requested(self) -> str | None:
    """Why training must end now: the name of a signal; None while it runs."""
    self.stopped_by = self._stop() or self.stopped_by
    return self.stopped_by

  def _stop(self) -> str | None:
    return f'step {self.step} of a rehearsal' if self._stop_after and self.step >= self._stop_after else None

  def enter(self, stage: str) -> None:
    """Notes the present stage: 'load', 'train', 'eval', 'save'."""

  def keep(self, name: str, content: bytes) -> None:
    """Writes a file into the run's folder; one that differs stays beside it, as NAME.1.EXTENSION and so on."""

  def note(self, **values: object) -> None:
    """Adds JSON values to the run's record."""

  def set_length(self, train_steps: int) -> None:
    """Notes at which step training ends, if that is not `trainer.train_steps`; 0 if it is not known."""
    self.train_steps = train_steps

  def begin(self, step: int = 0, checkpoint: str | None = None) -> None:
    """Notes that training begins, or resumes from a checkpoint. Later calls do nothing.

    Args:
      step: the number of updates so far.
      checkpoint: the path restored; None if nothing was.
    """
    if not self.has_begun:
      self.has_begun, self.step = True, step
      self._begin(checkpoint)

  def advance(self, step: int) -> None:
    """Notes a step.

    Raises:
      UserError: a rehearsal does not stop on request.
    """
    self.begin()
    self.step = step
    if self.is_rehearsal and self.stop_requested:
      self._num_late += 1
      if self._num_late > _PATIENCE:
        raise errors.UserError(
          f'the trainer still runs at step {step}, after a stop request: a run of it could not be stopped'
        )

  def report(self, event: str, values: Mapping[str, object]) -> None:
    """Writes an event at the present step: see training/writers/writers.py for their names."""
    self._show(f'{event} {self.step}', '  '.join(f'{name} {_shown(value)}' for name, value in values.items()))

  def _begin(self, checkpoint: str | None) -> None:
    """Reports the first call of `begin`."""


def _shown(value: object) -> str:
  return f'{value:.4g}' if isinstance(value, float) else str(value)


class _RecordedLoopRun(LoopRun):
  """A real run."""

  is_rehearsal = False

  def __init__(self, params, model_dir, previous, step, recorded, watch):
    super().__init__(params, model_dir, previous)
    self._counter: _Counter = step
    self._recorded: run_record.RecordedRun = recorded
    self._watch: signals.PreemptionWatch | None = watch

  def _stop(self):
    return self._watch.requested if self._watch else None

  def enter(self, stage):
    self._recorded.enter_stage(stage, self.step)

  def keep(self, name, content):
    run_record.keep_file(os.path.join(self.model_dir, name), content)

  def note(self, **values):
    self._recorded.record.update(**values)

  def set_length(self, train_steps):
    super().set_length(train_steps)
    self.note(train_steps=train_steps)

  def _begin(self, checkpoint):
    self._counter.value = self.step
    self._recorded.events.begin(self.step)
    if checkpoint:
      self._recorded.events.report('restored', self.step, {'checkpoint': checkpoint})
    elif (self.previous or {}).get('step'):
      self._recorded.events.report_fresh_start(self.step)

  def advance(self, step):
    super().advance(step)
    self._counter.value = step
    self._recorded.hang.beat()

  def report(self, event, values):
    if event == 'train' and self.train_steps != self.params.trainer.train_steps:
      values = {**values, 'train_steps': self.train_steps}
    self._recorded.record.check_lock()
    self._recorded.record.update(step=self.step)
    self._recorded.events.report(event, self.step, values)
    writers = self._recorded.events.writers
    if event in ('eval', 'checkpoint'):
      writers.sync()
      _sync_checkpoint(str(values.get('checkpoint', '')))
    else:
      writers.flush()


def _sync_checkpoint(path: str) -> None:
  """Makes the disk store a checkpoint that the loop's trainer has written, a file or a folder; reports a failure."""
  try:
    if not os.path.exists(path):
      return
    sync = paths.sync_tree if os.path.isdir(path) else paths.sync_to_disk
    sync(path)
    paths.sync_to_disk(os.path.dirname(path))
  except OSError as error:
    logging.error('%s: the disk may not have stored it: %s', path, storage.reason_of(error))


class _Counter:
  """The step, as a variable's value is read."""

  def __init__(self, value: int):
    self.value = value

  def numpy(self) -> int:
    return self.value


class OwnedLoop:
  """The loop of a task that owns it: a trainer to the run's record, a controller to the driver.

  Attributes:
    strategy: the driver's.
    global_step: the step, as `numpy()`.
    model: the trained one.
    plan: None: the library does not compile its steps.
    profiler: None: the library does not time them.
  """

  plan = profiler = None

  def __init__(
    self,
    task: LoopTask,
    strategy: tf.distribute.Strategy,
    params: definitions.ExperimentConfig,
    mode: str,
    model_dir: str,
    watch: signals.PreemptionWatch | None,
  ):
    """Asks the task whether the run can begin.

    Args:
      task: owns the loop.
      strategy: see attributes.
      params: the experiment.
      mode: the driver's --mode.
      model_dir: the run's folder.
      watch: whether the run must save and stop.

    Raises:
      UserError: it cannot.
    """
    name = type(task).__name__
    if mode not in ('train', 'train_and_eval'):
      raise errors.UserError(f'--mode={mode}: {name} trains and evaluates in a custom loop; use --mode=train')
    self.strategy, self.model = strategy, None
    self._task, self._params, self._model_dir, self._watch = task, params, model_dir, watch
    self._previous = run_status.read(model_dir)
    self.global_step = _Counter((self._previous or {}).get('step') or 0)
    task.check_loop(params, model_dir, self._previous)

  def in_run(self, recorded: run_record.RecordedRun) -> 'OwnedLoop':
    """Connects the loop with the record of its run."""
    self._recorded = recorded
    changes = code_identity.describe_changes(self._previous or {}, recorded.record.values)
    if changes and recorded.record.is_chief:
      print(f'{self._model_dir}: other code than before: {changes}', flush=True)
    return self

  def data_identity(self) -> dict[str, Any]:
    """The identities of this library's inputs: it has none."""
    return {}

  def data_balance(self) -> dict[str, Any]:
    """The accounts of this library's inputs: it has none."""
    return {}

  def data_summary(self) -> list[str]:
    """A line for each of this library's inputs: it has none."""
    return []

  def train(self, **_: object) -> Mapping[str, Any]:
    """Lets the task train.

    Raises:
      PreemptedError: a signal has ended it.
    """
    run = _RecordedLoopRun(self._params, self._model_dir, self._previous, self.global_step, self._recorded, self._watch)
    logs = self._task.run_loop(run)
    self.model = run.model
    if run.stopped_by and not (run.has_begun and run.step >= run.train_steps > 0):
      saved = ', and saved' if run.step else ''
      raise errors.PreemptedError(f'{run.stopped_by}: stopped at step {run.step}{saved}. The same command resumes')
    return logs

  train_and_evaluate = train  # The task's loop evaluates when it likes.

  def end(self) -> None:
    """Takes the actions of the end of the run."""
    self._recorded.events.end(self.global_step.numpy())

  def close(self) -> None:
    """Destroys iterators: the library has none of the task's."""
