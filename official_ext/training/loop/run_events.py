"""Passes the events of a run to its writers first, then to the actions that wait for them."""

from collections.abc import Iterable, Mapping

from official_ext.base import json_types
from official_ext.base.run_folder import event_names
from official_ext.training.actions import event_actions
from official_ext.training.actions import triggers
from official_ext.training.writers import writers as writers_lib

# Events that show that a run that had finished before is at work again, or in trouble.
_NEWS = frozenset(event_names.EVENTS) - {'start', 'restored', 'eval', 'early_stopped', 'finished'}


class RunEvents:
  """The events of a run: see base/run_folder/event_names.py for their names.

  Attributes:
    writers: write them.
    actions: are taken at them.
  """

  def __init__(
    self,
    writers: writers_lib.Writer | None = None,
    actions: event_actions.EventActions | None = None,
    was_finished: bool = False,
  ):
    """Initializes it, and receives the actions' own events.

    Args:
      writers: those of the run; on a worker that is not the chief there are none.
      actions: those of the run.
      was_finished: whether the run had finished before it was started again. Then its events are held back, and its
        actions are not taken, until there is something to train, or it fails.
    """
    self.writers = writers or writers_lib.Writers([])
    self.actions = actions or event_actions.EventActions()
    self._held: list[tuple[str, int, json_types.JsonMapping]] | None = [] if was_finished else None
    self._held_lines: list[str] = []
    self.actions.report_to(self.tell)

  @property
  def nothing_to_do(self) -> bool:
    """Whether the run had finished before, and nothing has happened since that must be reported."""
    return self._held is not None

  def tell(self, event: str, step: int, values: Mapping[str, object]) -> None:
    """Writes an event, and takes the actions that wait for it."""
    if self._held is not None:
      if event not in _NEWS:
        self._held.append((event, step, values))
        return
      self._release()
    self.writers.write(event, step, values)
    self.actions.take(event, step, values)

  def print_lines(self, lines: Iterable[str]) -> None:
    """Prints lines about the start; those of a run that had finished before together with the events held back."""
    self._held_lines += lines
    if self._held is None:
      self._print_held()

  def tell_anew(self, step: int = 0) -> None:
    """Reports that a run begins anew, without a checkpoint: earlier reports of later steps do not count any more."""
    self.tell('restored', step, {'checkpoint': 'nothing: it begins anew'})

  def begin(self, step: int) -> None:
    """Begins training. Call it when there is something to train, after the restore and before the first step."""
    self._release()
    self.actions.take(triggers.BEGIN, step, {})

  def end(self, step: int) -> None:
    """Ends training. Call it when everything is done."""
    if not self.nothing_to_do:
      self.actions.take_at_end(step)

  def _release(self) -> None:
    """Reports the events held back, except an evaluation or an end of the finished run, which was reported before."""
    held, self._held = self._held or [], None
    self._print_held()
    for event, step, values in held:
      if event in ('start', 'restored'):
        self.writers.write(event, step, values)
        self.actions.take(event, step, values)

  def _print_held(self) -> None:
    lines, self._held_lines = self._held_lines, []
    for line in lines:
      print(line, flush=True)
