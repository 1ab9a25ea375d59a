"""The measurements of a run's evaluations: history.json of the best checkpoints, or the files for rebuilding it."""

from collections.abc import Iterable, Mapping, Sequence
import json
import math
import os
from typing import Any

from absl import logging
import numpy as np
from official.core import train_utils
import orbit
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.base.files import storage
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import rollbacks as rollbacks_lib
from official_ext.training.writers import events_writer

_NAME = 'history.json'
_INFO = 'info.json'
_MAX_BYTES = 1 << 30  # Of all evaluations of a long run.
_INFO_STEP = 'best_ckpt_global_step'
# The keys of an 'eval' event that are not logs.
_OF_EVENTS = ('time', 'event', 'step', 'seconds')

Entry = json_types.JsonObject


def entry(step: int, logs: Mapping[str, object], metric: Sequence[str]) -> Entry:
  """One evaluation: its step, the metric's value (None if it is not a finite number), and the scalars of its logs.

  Raises:
    KeyError: the logs do not have the metric.
    TypeError: it is not a single number.
  """
  value = _leaf(logs, metric)
  return {'step': int(step), 'value': value if math.isfinite(value) else None, 'logs': _scalars(logs)}


def read(
  folder: str,
  metric: Sequence[str],
  records: Iterable[str] = (),
  rollbacks: rollbacks_lib.Rollbacks | None = None,
) -> list[Entry]:
  """The evaluations in the file of a folder, by step.

  A sound checkpoint in the folder whose step is not in the file counts too, with the logs in its manifest: the file may
  be older than the checkpoint. If the file is missing or damaged, its logs may also be in the records of the run
  (`events.jsonl`), or in info.json. A value is that of `metric`, which may not be the metric for which the file was
  written.

  Args:
    folder: of the best checkpoints; it need not exist.
    metric: the levels of the metric's name.
    records: paths of files of events, of which the later ones win.
    rollbacks: those of the run: a checkpoint that they have left behind counts only if the file has its step.
  """
  path = os.path.join(folder, _NAME)
  stored, damage = _read_list(path)
  found = {each['step']: each for each in (_checked(one, metric) for one in stored or ()) if each is not None}
  if stored is not None and len(found) < len(stored):
    damage = f'{len(stored) - len(found)} of its {len(stored)} entries are damaged'
  before = len(found)
  found = {**_rebuilt(folder, metric, records if damage else (), found, rollbacks), **found}
  if damage is None and len(found) > before:
    logging.warning('%s: lacks %d evaluations of the best checkpoints beside it: added.', path, len(found) - before)
  if damage is not None:
    if tf.io.gfile.exists(path) or found:
      logging.error(
        '%s: %s. Rebuilt from the best checkpoints beside it: %d evaluations, and %d that could be read.',
        path,
        damage,
        len(found) - before,
        before,
      )
  return [found[step] for step in sorted(found)]


def write(folder: str, history: Sequence[Entry]) -> None:
  """Replaces the file."""
  write_json(os.path.join(folder, _NAME), list(history))


def write_json(path: str, content: object) -> None:
  """Writes a file beside `path` and renames it into place."""
  storage.write(path, json.dumps(content, indent=2) + '\n')


def missing(metric: Sequence[str], step: int, logs: Mapping[str, object]) -> errors.UserError:
  """The error to raise if an evaluation does not report the metric as one number."""
  return errors.UserError(
    f'trainer.best_checkpoint_eval_metric: {"|".join(metric)}: is not a number among the metrics of step {step}: '
    f'{", ".join(sorted(_scalars(logs)))}'
  )


def best_step(folder: str) -> int | None:
  """The step of the best checkpoint in a folder of best checkpoints, by info.json; None if it does not say."""
  step = _read_dict(os.path.join(folder, _INFO)).get(_INFO_STEP)
  return int(step) if json_types.is_number(step) else None


def value_in(logs: Mapping[str, object], metric: Sequence[str]) -> object | None:
  """The metric in logs, nested or joined by '/'; None if they do not have it."""
  try:
    return train_utils.get_leaf_nested_dict(dict(logs), list(metric))
  except KeyError:
    return logs.get('/'.join(metric))


def _leaf(logs: Mapping[str, object], metric: Sequence[str]) -> float:
  value = value_in(logs, metric)
  if value is None:
    raise KeyError('|'.join(metric))
  return float(orbit.utils.get_value(value))


def _read_list(path: str) -> tuple[list[object] | None, str | None]:
  """(the contents of the file, its error)."""
  try:
    content = json.loads(paths.read(path, _MAX_BYTES))
  except (ValueError, RecursionError) as error:
    return None, f'it is damaged ({" ".join(str(error).split())})'
  except FileNotFoundError:
    return None, 'it is missing'
  except OSError as error:
    return None, f'it cannot be read ({error.strerror or error})'
  if not isinstance(content, list):
    return None, f'it is damaged (a {type(content).__name__} instead of a list)'
  return content, None


def _checked(found: object, metric: Sequence[str]) -> Entry | None:
  """An entry of the file, judged by `metric`; None if it is not an entry."""
  if not isinstance(found, dict) or not isinstance(found.get('logs'), dict) or not _is_step(found.get('step')):
    return None
  if found.get('is_saved') is False:
    return {**found, 'value': None}
  return _from_logs(found['step'], found['logs'], metric) or {**found, 'value': None}


def _from_logs(step: Any, logs: json_types.JsonMapping, metric: Sequence[str]) -> Entry | None:
  try:
    return entry(step, logs, metric)
  except (KeyError, TypeError, ValueError):
    return None


def _is_step(step: object) -> bool:
  return isinstance(step, int) and not isinstance(step, bool) and step >= 0


def _rebuilt(
  folder: str,
  metric: Sequence[str],
  records: Iterable[str],
  without: Iterable[int],
  rollbacks: rollbacks_lib.Rollbacks | None,
) -> dict[int, Entry]:
  """The evaluations of the sound checkpoints in the folder, as far as known: others cannot be the best."""
  found: dict[int, Entry] = {}
  unknown = []
  for path in manifests.paths(folder, train_utils.BEST_CHECKPOINT_NAME):
    step = manifests.step_of(path)
    is_left_behind = rollbacks is not None and listing.is_rolled_back(path, rollbacks)
    if step not in without and not is_left_behind and manifests.find_damage(path) is None:
      logs = logs_of(path)
      known = None if logs is None else _from_logs(step, logs, metric)
      if known is None:
        unknown.append(step)
      else:
        found[step] = known
  for step, logs in _logs_elsewhere(folder, records) if unknown else ():
    known = _from_logs(step, logs, metric) if step in unknown else None
    if known is not None:
      found[step] = known
  return found


def logs_of(path: str) -> json_types.JsonObject | None:
  """The logs in the manifest of a best checkpoint; None if it has none."""
  try:
    logs = manifests.read(path).get('logs')
  except (ValueError, OSError, tf.errors.OpError):
    return None
  return logs if isinstance(logs, dict) else None


def _logs_elsewhere(folder: str, records: Iterable[str]) -> list[tuple[int, json_types.JsonObject]]:
  """(step, logs) of the evaluations in the run's records and in info.json."""
  found = [
    (event['step'], {name: value for name, value in event.items() if name not in _OF_EVENTS})
    for path in records
    for event in _evaluations(path)
  ]
  info = _read_dict(os.path.join(folder, _INFO))
  step = info.pop(_INFO_STEP, None)
  return found + ([(int(step), info)] if isinstance(step, float) and step.is_integer() else [])


def _evaluations(path: str) -> list[json_types.JsonObject]:
  try:
    events = events_writer.read_events(path)
  except (ValueError, KeyError, TypeError, OSError):  # That file has its own readers, which report it.
    return []
  return [event for event in events if event['event'] == 'eval' and _is_step(event.get('step'))]


def _read_dict(path: str) -> json_types.JsonObject:
  try:
    content = json.loads(paths.read(path, regular_files.MAX_RECORD))
  except (ValueError, RecursionError, OSError):
    return {}
  return content if isinstance(content, dict) else {}


def _scalars(logs: Mapping[str, object]) -> dict[str, object]:
  """The numbers in (nested) logs, as Python floats."""
  found: dict[str, object] = {}
  for name, value in logs.items():
    if isinstance(value, Mapping):
      found[name] = _scalars(value)
      continue
    array = np.asarray(orbit.utils.get_value(value))
    if array.size == 1 and array.dtype.kind in 'fiub':
      found[name] = float(array.reshape(()))
  return found
