"""Takes actions at the events of a run, and keeps their state in checkpoints."""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

from absl import logging
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.run_folder import event_names
from official_ext.training.actions import triggers
from official_ext.training.checkpoints import manifests
from official_ext.training.writers import tensorboard

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
      summaries: `tf.summary` calls inside actions write to its files: to those of evaluation at 'eval', to those of
        training at other events.

    Raises:
      ValueError: one of the actions is not callable.
    """
    self._from_chief = from_chief
    self.summaries = summaries
    self._triggers: dict[str, triggers.Trigger] = {}
    self._last_logs: dict[str, object] = {}
    self.stop_reason = ''
    for action in actions:
      if not callable(action):
        raise ValueError(f'build_actions: {action!r} is not an action: expected a trigger or a function of the logs.')
      trigger = action if isinstance(action, triggers.Trigger) else triggers.OnEvent('train', action)
      number = sum(name.split('#')[0] == trigger.name for name in self._triggers)
      self._triggers[f'{trigger.name}#{number + 1}' if number else trigger.name] = trigger

  @property
  def intervals(self) -> list[int]:
    """Steps on whose multiples a training loop must end."""
    return [trigger.interval for trigger in self._triggers.values() if trigger.interval]

  def report_to(self, report: Callable[[str, int, triggers.Logs], None]) -> None:
    """Sets the function of event, step and values that receives the actions' own events."""
    for trigger in self._triggers.values():
      trigger.report = report

  # State.

  def state(self) -> json_types.JsonObject:
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
    """Takes the actions that wait for an event: see `writers.Writer`, and `triggers.BEGIN`."""
    if event in ('train', 'eval'):
      self._last_logs.update(values)
    waiting = [(name, trigger) for name, trigger in self._triggers.items() if event in trigger.events]
    if not waiting:
      return
    logs = {**values, 'event': event, 'step': int(step)}
    with self._summary_file(event):
      self._take(waiting, event, logs)

  def take_at_end(self, step: int) -> None:
    """Takes the actions of `triggers.AtEnd`, with the last logs of all. Call it when training is done."""
    self.take(triggers.END, step, self._last_logs)

  def _summary_file(self, event: str) -> Any:
    if self.summaries is None:
      return tf.summary.create_noop_writer().as_default()
    return self.summaries.file_writer('eval' if event == 'eval' else 'train').as_default()

  def _take(self, waiting, event, logs):
    for name, trigger in waiting:
      if event in event_names.LAST_EVENTS:
        self._take_at_last(name, trigger, logs)
      elif trigger.by_clock:
        if self._from_chief(f'action {name}', functools.partial(trigger.condition, logs)):
          for action in trigger.action if isinstance(trigger.action, Sequence) else [trigger.action]:
            self.call(action, logs)
      else:
        self.call(trigger, logs)

  def _take_at_last(self, name: str, trigger: triggers.Trigger, logs: triggers.Logs) -> None:
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


def _state_in(checkpoint: str) -> json_types.JsonMapping:
  """The value of `EventActions.state` when a checkpoint was saved; {} if the checkpoint does not have it."""
  try:
    return manifests.read(checkpoint).get(STATE, {})
  except (ValueError, tf.errors.OpError):
    return {}
