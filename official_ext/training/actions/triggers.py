"""Triggers take an action: every N steps, every T seconds, on a new best metric, on an event, at the end.

An action is a function of the logs, as in Orbit. `Task.build_actions` returns the actions of a run:

    def build_actions(self, trainer):
      return [triggers.EveryNSteps(100, show_samples), triggers.OnBest('accuracy', export)]

An action gets the same logs as the writers, as numbers and arrays: of a training loop, an evaluation, or any other
event of base/run_folder/event_names.py, with the additional entries `event` and `step`. It gets them after everything
that belongs to the event has been done and written.
"""

from collections.abc import Callable, Mapping, Sequence
import math
import time
from typing import Any

from official.core import train_utils
import orbit

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import suggestions
from official_ext.base.run_folder import event_names
from official_ext.training.writers import writers

Logs = Mapping[str, Any]
Action = Callable[[Logs], None]


class Trigger(orbit.actions.ConditionalAction):
  """An action that is taken at some events, if a condition holds: see base class.

  Attributes:
    events: the names of the events at which the condition is evaluated.
    interval: a number of steps at whose multiples a training loop must end; 0 for none.
    by_clock: whether the condition depends on this machine's clock: then the chief decides for all workers.
    name: the name under which a checkpoint keeps the state.
    report: writes an event of this trigger's own: event, step, values. The run sets it to its writers.
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
      if event not in event_names.EVENTS + (BEGIN, END):
        otherwise = f'; there are {", ".join(event_names.EVENTS)}'
        hint = suggestions.did_you_mean(event, event_names.EVENTS, otherwise, before='; ', show=repr)
        raise ValueError(f'There is no event {event!r}{hint}')
    self.events = tuple(events)
    self.interval = interval
    self.name = type(self).__name__
    self.report: Callable[[str, int, Logs], None] = lambda event, step, values: None

  def prepare(self, mode: str) -> None:
    """Called once, before the run writes anything; may set `interval`.

    Args:
      mode: the mode of the run, one that trains.

    Raises:
      UserError: the action cannot be taken in this run.
    """

  def state(self) -> json_types.JsonObject:
    """The state that a run needs to continue from a checkpoint: JSON values."""
    return {}

  def restore(self, state: json_types.JsonMapping) -> None:
    """Restores a state; {} is that of a new run.

    Raises:
      StopTraining: training had ended already.
    """


# The moment after the last step, evaluation and checkpoint, which is not an event: the run is not over yet.
BEGIN = 'begin'  # There is something to train: before the first step of this process, after the restore.
END = 'end'


class OnEvent(Trigger):
  """Takes an action at every event of a name, or of several: 'train' (a training loop), 'eval', 'checkpoint', ...

  An action that fails ends the run; at a run's last event, 'finished', 'failed' or 'preempted', the failure is only
  logged: use `AtEnd` for results of the run. A run that is killed has no last event.
  """

  def __init__(self, events: str | Sequence[str], action: Action | Sequence[Action]):
    super().__init__((events,) if isinstance(events, str) else events, action)


class EveryNSteps(Trigger):
  """Takes an action after every step that is a multiple of N. A training loop ends there."""

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

  def state(self) -> json_types.JsonObject:
    """JSON values."""
    return {'best': self.value, 'best_step': self.step, 'last_step': self._last_step, 'num_since': self.num_since}

  def restore(self, state: json_types.JsonMapping) -> None:
    """Restores a state; {} is that of a new run."""
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
  try:
    value = train_utils.get_leaf_nested_dict(dict(logs), metric.split('|'))
  except KeyError:
    raise errors.UserError(
      f'{metric}: is not among the metrics of step {logs["step"]}: {", ".join(sorted(set(logs) - {"event", "step"}))}'
    ) from None
  number = writers.to_python(value)
  if not isinstance(number, (int, float)):
    raise errors.UserError(f'{metric}: is not a single number at step {logs["step"]}; name another metric')
  return float(number)


class OnBest(Trigger):
  """Takes an action after every evaluation whose metric is better than all before it, including the first one."""

  def __init__(
    self,
    metric: str,
    action: Action | Sequence[Action],
    mode: str = 'max',
    min_delta: float = 0.0,
    event: str = 'eval',
  ):
    """Initializes the trigger.

    Args:
      metric: see `Best`.
      action: see base class.
      mode: see `Best`.
      min_delta: see `Best`.
      event: 'eval', or 'train' for a metric of the training loops.
    """
    self.best = Best(metric, mode, min_delta)
    super().__init__((event,), action, self.best.update)
    self.name = f'{self.name}/{metric}'

  def state(self) -> json_types.JsonObject:
    """See base class."""
    return self.best.state()

  def restore(self, state: json_types.JsonMapping) -> None:
    """See base class."""
    self.best.restore(state)


class AtEnd(Trigger):
  """Takes an action when training is done, before the run counts as finished: if it fails, the run has failed.

  Its logs are those of the last training loop and the last evaluation. It is not taken in a run that fails or is
  preempted, nor again when a finished run is started once more and has nothing left to do.
  """

  def __init__(self, action: Action | Sequence[Action]):
    super().__init__((END,), action)
