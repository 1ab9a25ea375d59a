"""The content of a run's files: the events of events.jsonl, and the manifests of checkpoints.

`EVENTS` names the events, and the values of each that are not metrics. `standing_events` drops the events that a return
to an earlier step has superseded. `parse_manifest` refuses a damaged manifest; training/checkpoints/manifests.py writes
them.
"""

from collections.abc import Iterable, Mapping
import hashlib
import json
import re

from official_ext.base import json_values

EVENTS = (
  'start',
  'restored',
  'compiled',
  'train',
  'eval',
  'completions',
  'checkpoint',
  'update_skipped',
  'rollback',
  'learning_rate_reduced',
  'early_stopped',
  'preempted',
  'finished',
  'failed',
  'checkpoint_failed',
  'hung',
)
# The event of a sample of the machine, in a separate file: `events.system.jsonl`.
SYSTEM_EVENT = 'system'
IMPORTED_EVENT = 'imported'  # The first event of a run that another tracker has logged, instead of 'start'.
LAST_EVENTS = ('preempted', 'finished', 'failed', 'hung')  # A run that is not killed ends with one of them.
# Logs of a training step, means over its examples, which the loop reports a second instead: `tokens_per_second`.
TOKENS, LEARNED_TOKENS = 'tokens_per_example', 'learned_tokens_per_example'
# Values of 'train' and 'eval' events that concern the run, not the model.
PROGRESS = frozenset(
  (
    'data_wait',
    'epoch',
    'eta_seconds',
    'examples_per_second',
    'learned_tokens_per_second',
    'model_global_step',
    'optimizer_iterations',
    'percent',
    'seconds',
    'steps_per_second',
    'tokens_per_second',
    'train_steps',
  )
)
# Names of values that the loop adds to the logs of a task.
LOOP_LOGS = PROGRESS | {
  'examples_skipped',
  'grad_norm',
  'learning_rate',
  'training_loss',
  'validation_loss',
  'validation_not_finite',
}


# Events after which the lines above that concern higher steps are superseded.
GO_BACK = ('restored', 'rollback')
MAX_EVENT_BYTES = 1 << 24  # Bytes. Longer lines were not written by a run.


def parse_event(line: str | bytes) -> json_values.JsonObject | None:
  """The event of a line; None if it is not an event, such as one that a dying machine has cut short."""
  try:
    event = json.loads(line)
  except (ValueError, RecursionError):
    return None
  if not isinstance(event, dict) or not isinstance(event.get('event'), str):
    return None
  step = event.get('step')
  return event if isinstance(step, int) and not isinstance(step, bool) else None


def standing_events(events: Iterable[dict[str, object]]) -> list[json_values.JsonObject]:
  """The events that are still valid.

  A run that was restored or rolled back continues from an earlier step: the events before that concern higher steps are
  superseded, and left out. So is the evaluation of that step, if that is pending.

  Args:
    events: all of a run, in order.
  """
  valid: list[json_values.JsonObject] = []
  for event in events:
    if event['event'] in GO_BACK:
      valid = [earlier for earlier in valid if earlier['step'] <= event['step']]
    if event.get('evaluation_pending'):  # The evaluation failed in the end, and is repeated.
      valid = [earlier for earlier in valid if (earlier['event'], earlier['step']) != ('eval', event['step'])]
    valid.append(event)
  return valid


MANIFEST_SUFFIX = '.manifest.json'
CHECKPOINT_PART = r'\.(index|data-[0-9]{5}-of-[0-9]{5})'  # How the names of a checkpoint's files end.
_DAMAGED_MANIFEST = 'its manifest is damaged'


def parse_manifest(content: bytes, name: str) -> json_values.JsonObject:
  """The entries of a manifest.

  Args:
    content: of its file.
    name: the checkpoint's, without its folder.

  Raises:
    ValueError: it is damaged.
  """
  try:
    entries = json_values.parse_object(content)
    expected = entries.pop('sha256')
  except (ValueError, KeyError) as error:
    raise ValueError(_DAMAGED_MANIFEST) from error
  if expected != manifest_sum(entries):
    raise ValueError(_DAMAGED_MANIFEST)
  _check_manifest_files(entries.get('files'), name)
  return entries


def manifest_sum(entries: Mapping[str, object]) -> str:
  """The SHA-256 sum of a manifest's entries."""
  return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def is_complete_checkpoint(files: json_values.Json) -> bool:
  """Whether a checkpoint with files of these names is complete."""
  return any(name.endswith('.index') for name in files) and any('.data-' in name for name in files)


def _check_manifest_files(files: json_values.Json, name: str) -> None:
  """Raises a ValueError if a manifest lists files of another checkpoint than `name`."""
  if not isinstance(files, dict):
    raise ValueError(_DAMAGED_MANIFEST)
  for file, entry in files.items():
    if not re.fullmatch(re.escape(name) + CHECKPOINT_PART, file):
      raise ValueError(f'its manifest names {file!r}, which is not a file of it')
    if not (isinstance(entry, dict) and isinstance(entry.get('size'), int) and isinstance(entry.get('sha256'), str)):
      raise ValueError(_DAMAGED_MANIFEST)
  if not is_complete_checkpoint(files):
    raise ValueError('its manifest names no index, or no data')
