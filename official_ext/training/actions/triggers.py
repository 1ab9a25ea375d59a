"""Triggers take an action: every N steps, every T seconds, on a new best metric, on an event, at the end."""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
import time
from typing import Any

from absl import logging
import orbit
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.run_folder import metric_direction
from official_ext.base.run_folder import run_files
from official_ext.training.checkpoints import best as best_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.config import epochs
from official_ext.training.writers import tensorboard
from official_ext.training.writers import writers

Logs = Mapping[str, Any]
Action = Callable[[Logs], None]


class Trigger(orbit.actions.ConditionalAction):
  """An action that is taken at some events, if a condition holds: see base class.

  Attributes:
    events: the names of the events at which the condition is evaluated.
    interval: a number of steps at whose multiples a training loop must end, or the ends of epochs; 0 for none.
    by_clock: whether the condition depends on this machine's clock: then the chief decides for all workers.
    name: the name under which a checkpoint keeps the state.
    report: writes an event of this trigger's own: event, step, values. The run sets it to its writers.

  Example:

    >>> class OnSaved(ext.OnEvent):  # A trigger of a name.
    ...   def __init__(self, action):
    ...     super().__init__('checkpoint', action)
  """

  by_clock = False

  def __init__(
    self,
    events: Sequence[str],
    action: Action | Sequence[Action],
    condition: Callable[[Logs], bool] = lambda logs: True,
    interval: int = 0,
  ):
    """Initializes the trigger.

    Args:
      events: see attributes.
      action: one action, or several, which are taken in order.
      condition: a function of the logs.
      interval: see attributes.

    Raises:
      ValueError: there is no such event.
    """
    super().__init__(condition, action)
    for event in events:
      if event not in run_files.EVENTS + (BEGIN, TRAINED, END):
        otherwise = f'; there are {", ".join(run_files.EVENTS)}'
        hint = errors.did_you_mean(event, run_files.EVENTS, otherwise, before='; ', show=repr)
        raise ValueError(f'There is no event {event!r}{hint}')
    self.events = tuple(events)
    self.interval: int | epochs.Ends = interval
    self.name = type(self).__name__
    self.report: Callable[[str, int, Logs], None] = lambda event, step, values: None

  def prepare(self, mode: str) -> None:
    """Called once, before the run writes anything; may set `interval`.

    Args:
      mode: the mode of the run, one that trains.

    Raises:
      UserError: the action cannot be taken in this run.
    """

  def state(self) -> json_values.JsonObject:
    """The state that a run needs to continue from a checkpoint: JSON values."""
    return {}

  def restore(self, state: json_values.JsonMapping) -> None:
    """Restores a state; {} for a new run.

    Raises:
      StopTraining: training had ended already.
    """


# Moments that are not events. There, a run that is not over yet takes actions.
BEGIN = 'begin'  # There is something to train: before the first step of this process, after the restore.
TRAINED = 'trained'  # After the last step and its evaluation, before the last checkpoint, which has the weights then.
END = 'end'  # After the last checkpoint.


class OnEvent(Trigger):
  """Takes an action at every event of a name, or of several: 'train' (a training loop), 'eval', 'checkpoint', ...

  An action that fails ends the run; at a run's last event, 'finished', 'failed' or 'preempted', the failure is only
  logged: use `AtEnd` for results of the run. A run that is killed has no last event.

  Example:

    >>> trigger = ext.OnEvent(('train', 'eval'), lambda logs: print(sorted(logs)))
  """

  def __init__(self, events: str | Sequence[str], action: Action | Sequence[Action]):
    super().__init__((events,) if isinstance(events, str) else events, action)


class EveryNSteps(Trigger):
  """Takes an action after every step that is a multiple of N. A training loop ends there.

  Example:

    >>> class Task(ext.Task):
    ...   def build_actions(self, trainer):
    ...     return [ext.EveryNSteps(100, lambda logs: print(logs['loss']))]
  """

  def __init__(self, num_steps: int, action: Action | Sequence[Action]):
    """Initializes the trigger.

    Raises:
      ValueError: `num_steps` is below 1.
    """
    if num_steps < 1:
      raise ValueError(f'num_steps: expected at least 1, got {num_steps}')
    super().__init__(('train',), action, lambda logs: logs['step'] % num_steps == 0, interval=num_steps)


class EveryTSeconds(Trigger):
  """Takes an action at the first end of a training loop that is at least T seconds of wall time after the last one.

  A resumed run counts from its own start.

  Example:

    >>> trigger = ext.EveryTSeconds(600, lambda logs: print('ten minutes more'))
  """

  by_clock = True

  def __init__(
    self,
    seconds: float,
    action: Action | Sequence[Action],
    clock: Callable[[], float] = time.monotonic,
  ):
    super().__init__(('train',), action, self._is_due)
    self._seconds = seconds
    self._clock = clock
    self._last = clock()

  def _is_due(self, logs: Logs) -> bool:
    del logs
    now = self._clock()
    if now - self._last < self._seconds:
      return False
    self._last = now
    return True


class Best:
  """The best value of a metric so far, and the number of evaluations since."""

  def __init__(self, metric: str, mode: str = 'max', min_delta: float = 0.0):
    """Initializes without a value.

    Args:
      metric: a name in the logs; `|` separates the levels of nested ones.
      mode: 'max' or 'min', which is better.
      min_delta: the least change that counts.

    Raises:
      ValueError: `mode` is neither.
    """
    if mode not in ('max', 'min'):
      raise ValueError(f"mode: expected 'max' or 'min', got {mode!r}")
    self.metric = metric
    self._sign = 1 if mode == 'max' else -1
    self._min_delta = min_delta
    self.restore({})

  def state(self) -> json_values.JsonObject:
    """JSON values."""
    return {'best': self.value, 'best_step': self.step, 'last_step': self._last_step, 'num_since': self.num_since}

  def restore(self, state: json_values.JsonMapping) -> None:
    """Restores a state; {} for a new run."""
    self.value, self.step = state.get('best'), state.get('best_step')
    self._last_step, self.num_since = state.get('last_step', -1), state.get('num_since', 0)

  def update(self, logs: Logs) -> bool:
    """Takes in the logs of a step, once, and returns whether the metric is better than ever (and finite).

    Raises:
      UserError: the logs do not have the metric.
    """
    if logs['step'] <= self._last_step:
      return False
    self._last_step = int(logs['step'])
    value = value_in(logs, self.metric)
    best = self.value
    if not math.isfinite(value) or (best is not None and not self._sign * (value - best) > self._min_delta):
      self.num_since += 1
      return False
    self.value, self.step, self.num_since = value, self._last_step, 0
    return True


def value_in(logs: Logs, metric: str) -> float:
  """The value of a metric in logs; `|` separates the levels of nested ones.

  Raises:
    UserError: the logs do not have the metric, or it is not a single number.
  """
  value = best_lib.value_in(logs, metric.split('|'))
  if value is None:
    raise errors.UserError(
      f'{metric}: is not among the metrics of step {logs["step"]}: {", ".join(sorted(set(logs) - {"event", "step"}))}'
    )
  number = writers.to_python(value)
  if not isinstance(number, (int, float)):
    raise errors.UserError(f'{metric}: is not a single number at step {logs["step"]}; name another metric')
  return float(number)


class OnBest(Trigger):
  """Takes an action after every evaluation whose metric is better than all before it, including the first one.

  Example:

    >>> trigger = ext.OnBest('accuracy', lambda logs: print(logs['accuracy']), min_delta=0.01)
  """

  def __init__(
    self,
    metric: str,
    action: Action | Sequence[Action],
    mode: str = 'auto',
    min_delta: float = 0.0,
    event: str = 'eval',
  ):
    """Initializes the trigger.

    Args:
      metric: see `Best`.
      action: see base class.
      mode: 'max' or 'min', which is better. 'auto': as the metric's name says; 'max', with a warning, if it says
        nothing.
      min_delta: see `Best`.
      event: 'eval', or 'train' for a metric of the training loops.

    Raises:
      ValueError: `mode` is none of them.
      UserError: it contradicts the metric's name.
    """
    self._assumes_max = mode == 'auto' and metric_direction.direction(metric) is None
    if mode == 'auto':
      mode = metric_direction.direction(metric) or 'max'
    self.best = Best(metric, mode, min_delta)
    try:
      metric_direction.check_agrees(metric, mode)
    except ValueError as error:
      raise errors.UserError(f'build_actions: OnBest: {error}') from error
    super().__init__((event,), action, self.best.update)
    self.name = f'{self.name}/{metric}'

  def prepare(self, mode: str) -> None:
    """See base class."""
    if self._assumes_max:
      logging.warning(
        'build_actions: OnBest: the name %s does not imply whether higher or lower is better, and higher is assumed; '
        "give mode='max' or 'min'",
        self.best.metric,
      )

  def state(self) -> json_values.JsonObject:
    """See base class."""
    return self.best.state()

  def restore(self, state: json_values.JsonMapping) -> None:
    """See base class."""
    self.best.restore(state)


class AtEnd(Trigger):
  """Takes an action when training is done, before the run counts as finished: if it fails, the run has failed.

  Its logs come from the last training loop and the last evaluation. It is not taken in a run that fails or is
  preempted, nor again when a finished run is started once more and has nothing left to do. The last checkpoint is
  written before: weights that the action changes are not in it, and are reported.

  Example:

    >>> trigger = ext.AtEnd(lambda logs: print('the last loss is', logs['loss']))
  """

  def __init__(self, action: Action | Sequence[Action]):
    super().__init__((END,), action)


STATE = 'actions'  # The entry of a checkpoint's manifest.


class EventActions:
  """The actions that a run takes at its events.

  An action may raise `errors.StopTraining`. Any other exception ends the run with an error, as with Orbit's actions; at
  the last event of a run it is only logged. On several workers, each of them takes every action.

  Attributes:
    stop_reason: why training must end before its last step; empty if it need not.
    summaries: see the constructor.
  """

  def __init__(
    self,
    actions: Sequence[object] = (),
    from_chief: Callable[[str, Callable[[], Any]], Any] = lambda topic, make: make(),
    summaries: tensorboard.TensorBoardWriter | None = None,
  ):
    """Initializes the actions.

    Args:
      actions: triggers; any other function of logs is called after every training loop.
      from_chief: makes a value on the chief and gives it to all workers.
      summaries: `tf.summary` calls inside actions write to its files: the evaluation's at 'eval', the training's at
        other events.

    Raises:
      ValueError: one of the actions is not callable.
    """
    self._from_chief = from_chief
    self.summaries = summaries
    self._triggers: dict[str, Trigger] = {}
    self._last_logs: dict[str, object] = {}
    self.stop_reason = ''
    for action in actions:
      if not callable(action):
        raise ValueError(f'build_actions: {action!r} is not an action: expected a trigger or a function of the logs.')
      trigger = action if isinstance(action, Trigger) else OnEvent('train', action)
      number = sum(name.split('#')[0] == trigger.name for name in self._triggers)
      self._triggers[f'{trigger.name}#{number + 1}' if number else trigger.name] = trigger

  @property
  def intervals(self) -> list[int | epochs.Ends]:
    """Steps on whose multiples a training loop must end, and the ends of epochs."""
    return [trigger.interval for trigger in self._triggers.values() if trigger.interval]

  def report_to(self, report: Callable[[str, int, Logs], None]) -> None:
    """Sets the function of event, step and values that receives the actions' own events."""
    for trigger in self._triggers.values():
      trigger.report = report

  # State.

  def state(self) -> json_values.JsonObject:
    """The state for a checkpoint: JSON values, by the names of the triggers."""
    states = {name: trigger.state() for name, trigger in self._triggers.items()}
    return {name: state for name, state in states.items() if state}

  def restore(self, checkpoint: str) -> None:
    """Restores the state that the actions had when a checkpoint was saved, at a resume or a rollback.

    Args:
      checkpoint: its path. If it has no state of actions, they start afresh.
    """
    state = _state_in(checkpoint)
    self.stop_reason = ''
    for name, trigger in self._triggers.items():
      self.call(trigger.restore, state.get(name, {}))

  # Events.

  def take(self, event: str, step: int, values: Mapping[str, object]) -> None:
    """Takes the actions that wait for an event: see `writers.Writer`, and `BEGIN`."""
    if event in ('train', 'eval'):
      self._last_logs.update(values)
    waiting = [(name, trigger) for name, trigger in self._triggers.items() if event in trigger.events]
    if not waiting:
      return
    logs = {**values, 'event': event, 'step': int(step)}
    with self._summary_file(event):
      self._take(waiting, event, logs)

  def take_at_end(self, step: int, moment: str = END) -> None:
    """Takes the actions of `AtEnd`, or of `TRAINED`, with the last logs of all. Call it when training is done."""
    self.take(moment, step, self._last_logs)

  @property
  def is_empty(self) -> bool:
    """Whether there are no actions."""
    return not self._triggers

  def _summary_file(self, event: str) -> Any:
    if self.summaries is None:
      return tf.summary.create_noop_writer().as_default()
    return self.summaries.file_writer('eval' if event == 'eval' else 'train').as_default()

  def _take(self, waiting, event, logs):
    for name, trigger in waiting:
      if event in run_files.LAST_EVENTS:
        self._take_at_last(name, trigger, logs)
      elif trigger.by_clock:
        if self._from_chief(f'action {name}', functools.partial(trigger.condition, logs)):
          for action in trigger.action if isinstance(trigger.action, Sequence) else [trigger.action]:
            self.call(action, logs)
      else:
        self.call(trigger, logs)

  def _take_at_last(self, name: str, trigger: Trigger, logs: Logs) -> None:
    try:
      trigger(logs)
    except Exception as error:  # How the run has ended is reported already.
      logging.exception('The action %s failed after the run had %s: %s', name, logs['event'], error)

  def call(self, function: Callable[[Any], object], argument: object) -> Any:
    """Calls an action, which may end training.

    Returns:
      The action's result; None if it has ended training.
    """
    try:
      return function(argument)
    except errors.StopTraining as stop:
      self.stop_reason = self.stop_reason or str(stop) or 'an action requested it'
      return None


def _state_in(checkpoint: str) -> json_values.JsonMapping:
  """The value of `EventActions.state` when a checkpoint was saved; {} if the checkpoint does not have it."""
  try:
    return manifests.read(checkpoint).get(STATE, {})
  except (ValueError, tf.errors.OpError):
    return {}
