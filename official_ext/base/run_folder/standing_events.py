"""Which lines of a run's events.jsonl stand, after it went back to an earlier step. No TensorFlow."""

from collections.abc import Iterable
import json

from official_ext.base import json_types

# Events after which the lines above that concern higher steps are superseded.
GO_BACK = ('restored', 'rollback')
MAX_LINE = 1 << 24  # Bytes. Longer lines were not written by a run.


def parse(line: str | bytes) -> json_types.JsonObject | None:
  """The event of a line; None if it is not an event, such as one that a dying machine has cut short."""
  try:
    event = json.loads(line)
  except (ValueError, RecursionError):
    return None
  if not isinstance(event, dict) or not isinstance(event.get('event'), str):
    return None
  step = event.get('step')
  return event if isinstance(step, int) and not isinstance(step, bool) else None


def standing(events: Iterable[dict[str, object]]) -> list[json_types.JsonObject]:
  """The events that are still valid.

  A run that was restored or rolled back continues from an earlier step: the events before that concern higher steps are
  superseded, and left out. So is the evaluation of that step, if that is pending.

  Args:
    events: all of a run, in order.
  """
  valid: list[json_types.JsonObject] = []
  for event in events:
    if event['event'] in GO_BACK:
      valid = [earlier for earlier in valid if earlier['step'] <= event['step']]
    if event.get('evaluation_pending'):  # The evaluation failed in the end, and is repeated.
      valid = [earlier for earlier in valid if (earlier['event'], earlier['step']) != ('eval', event['step'])]
    valid.append(event)
  return valid
