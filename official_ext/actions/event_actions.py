"""Hands the events of a run to the actions that wait for them, and keeps what these must know over a resume."""

import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from absl import logging
import tensorflow as tf

from official_ext import errors
from official_ext.checkpoints import manifests
from official_ext.actions import triggers
from official_ext.monitoring import tensorboard
from official_ext.monitoring import writers as writers_lib

STATE = 'actions'  # The entry of a checkpoint's manifest.
# What tells that a run that had finished before is at work again, or in trouble.
_NEWS = frozenset(writers_lib.EVENTS) - {'start', 'restored', 'eval', 'early_stopped', 'finished'}


class EventActions(writers_lib.Writer):
  """Writes events to the run's writers, and then takes the actions whose time has come.

  An action may raise `errors.StopTraining`. Anything else that it raises ends the run with an error, as Orbit's actions
  do; at the last event of a run it is only told. On several workers every one of them takes every action.
  """

  def __init__(
      self,
      writers: writers_lib.Writer,
      actions: Sequence[Any],
      from_chief: Callable[[str, Callable[[], Any]], Any] = lambda topic, make: make(),
      was_finished: bool = False,
      summaries: Optional[tensorboard.TensorBoardWriter] = None,
  ):
    """Makes it.

    Args:
      writers: those of the run; on a worker that is not the chief there are none.
      actions: triggers; any other function of logs is called after every training loop.
      from_chief: makes a value on the chief and gives it to all workers.
      was_finished: whether the run had finished before it was started again. Its events are then held back, and its
        actions not taken, until there is something to train, or it fails.
      summaries: whose files are those that `tf.summary` calls inside actions write to: those of evaluation at 'eval',
        those of training at other events.

    Raises:
      ValueError: one of the actions is none.
    """
    self._writers = writers
    self._from_chief = from_chief
    self._summaries = summaries
    self._triggers: Dict[str, triggers.Trigger] = {}
    self._last_logs: Dict[str, Any] = {}
    self._held: Optional[List[Tuple[str, int, Mapping[str, Any]]]] = [] if was_finished else None
    self.stop_reason = ''  # Why training is to end before its last step; empty where it is not.
    for action in actions:
      if not callable(action):
        raise ValueError(f'build_actions: {action!r} is no action: expected a trigger or a function of the logs.')
      trigger = action if isinstance(action, triggers.Trigger) else triggers.OnEvent('train', action)
      number = sum(name.split('#')[0] == trigger.name for name in self._triggers)
      trigger.report = self.write
      self._triggers[f'{trigger.name}#{number + 1}' if number else trigger.name] = trigger

  @property
  def intervals(self) -> List[int]:
    """Steps on whose multiples a training loop must end."""
    return [trigger.interval for trigger in self._triggers.values() if trigger.interval]

  # State.

  def state(self) -> Dict[str, Any]:
    """What a checkpoint has to keep: JSON values, by the names of the triggers."""
    states = {name: trigger.state() for name, trigger in self._triggers.items()}
    return {name: state for name, state in states.items() if state}

  def _restore(self, path: str) -> None:
    state = _state_in(path)
    self.stop_reason = ''
    for name, trigger in self._triggers.items():
      self.call(trigger.restore, state.get(name, {}))

  # Events.

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    if self._held is not None:
      if event not in _NEWS:
        self._held.append((event, step, values))
        if event == 'restored':
          self._restore(values.get('checkpoint', ''))
        return
      self._release()
    self._writers.write(event, step, values)
    if event in ('restored', 'rollback'):
      self._restore(values.get('checkpoint', ''))
    if event in ('train', 'eval'):
      self._last_logs.update(values)
    self._take_actions(event, step, values)

  @property
  def nothing_to_do(self) -> bool:
    """Whether the run had finished before, and nothing has happened since that was to be told."""
    return self._held is not None

  def _release(self) -> None:
    """Tells what was held back; an evaluation or an end of the finished run was told when it was new."""
    held, self._held = self._held or [], None
    for event, step, values in held:
      if event in ('start', 'restored'):
        self._writers.write(event, step, values)
        self._take_actions(event, step, values)

  def begin(self, step: int) -> None:
    """To be called when there is something to train, after the restore and before the first step."""
    self._release()
    self._take_actions(triggers.BEGIN, step, {})

  def tell(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """Writes an event for which no action is taken any more, as the run ends with an error."""
    self._writers.write(event, step, values)
    self._writers.flush()

  def end(self, step: int) -> None:
    """To be called when training is done: for `triggers.AtEnd`."""
    if self.nothing_to_do:
      return
    self._take_actions(triggers.END, step, self._last_logs)

  def flush(self) -> None:
    """See base class."""
    self._writers.flush()

  def close(self) -> None:
    """See base class."""
    self._writers.close()

  def _take_actions(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    waiting = [(name, trigger) for name, trigger in self._triggers.items() if event in trigger.events]
    if not waiting:
      return
    logs = {**values, 'event': event, 'step': int(step)}
    with self._summary_file(event):
      self._take(waiting, event, logs)

  def _summary_file(self, event: str) -> Any:
    if self._summaries is None:
      return tf.summary.create_noop_writer().as_default()
    return self._summaries.file_writer('eval' if event == 'eval' else 'train').as_default()

  def _take(self, waiting, event, logs):
    for name, trigger in waiting:
      if event in writers_lib.LAST_EVENTS:
        self._take_at_last(name, trigger, logs)
      elif trigger.by_clock:
        if self._from_chief(f'action {name}', functools.partial(_is_met, trigger, logs)):
          for action in _as_sequence(trigger.action):
            self.call(action, logs)
      else:
        self.call(trigger, logs)

  def _take_at_last(self, name: str, trigger: triggers.Trigger, logs: triggers.Logs) -> None:
    try:
      trigger(logs)
    except Exception as error:  # How the run has ended is told already.
      logging.exception('The action %s failed after the run had %s: %s', name, logs['event'], error)

  def call(self, function: Callable[[Any], Any], argument: Any) -> None:
    """Calls an action, which may end training."""
    try:
      function(argument)
    except errors.StopTraining as stop:
      self.stop_reason = self.stop_reason or str(stop) or 'an action has asked for it'


def _state_in(checkpoint: str) -> Mapping[str, Any]:
  """What `EventActions.state` was when a checkpoint was saved; {} where it does not say."""
  try:
    return manifests.read(checkpoint).get(STATE, {})
  except (ValueError, tf.errors.OpError):
    return {}


def _is_met(trigger: triggers.Trigger, logs: triggers.Logs) -> bool:
  return bool(trigger.condition(logs))


def _as_sequence(action: Any) -> Sequence[Any]:
  return action if isinstance(action, Sequence) else [action]
