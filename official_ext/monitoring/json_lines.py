"""events.jsonl: what happened in a run, one flat JSON object a line."""

import json
import math
import time
from typing import Any, Dict, List, Mapping

from absl import logging
import numpy as np
import tensorflow as tf

from official_ext.monitoring import writers

_OWN_KEYS = ('time', 'event', 'step')


class EventsWriter(writers.Writer):
  """Appends events to a file: `{"time": 1700000000.0, "event": "train", "step": 10, "training_loss": 0.5, ...}`.

  `time` is in seconds since 1970. Nested values are joined by '/'; a value that is named like one of the first three
  keys gets a '_' behind its name. Every line is strict JSON: a number that is not finite is written as one of the
  strings "NaN", "Infinity" and "-Infinity", which float() and JavaScript's Number() turn back, and which keep the name
  of the metric in place. Arrays of one dimension are lists; those of more, such as images, are left out.

  The file is only ever appended to, and each line is written out at once: what a killed process has written stays.
  """

  def __init__(self, path: str):
    """Opens the file at its end.

    Args:
      path: the file, local or any that `tf.io.gfile` knows, in a folder that exists.
    """
    self._path = path
    torn = _is_torn(path)
    self._file = tf.io.gfile.GFile(path, 'a')
    if torn:
      self._file.write('\n')

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    line: Dict[str, Any] = {'time': round(time.time(), 3), 'event': event, 'step': int(step)}
    for key, value in writers.flatten(values).items():
      if not isinstance(value, np.ndarray) or value.ndim < 2:
        line[key + '_' if key in _OWN_KEYS else key] = _to_json(value)
    self._file.write(json.dumps(line, allow_nan=False) + '\n')
    self._file.flush()

  def flush(self) -> None:
    """Does nothing: every event has been written out."""

  def close(self) -> None:
    """See base class."""
    self._file.close()


def read_events(path: str) -> List[Dict[str, Any]]:
  """Reads the events of a run that still stand.

  A run that was restored or rolled back goes on from an earlier step: what the file says above such an event about
  higher steps is superseded by what follows, and left out. So is the evaluation of its own step where that is pending,
  and a line that a dying machine has cut short.

  Args:
    path: the events.jsonl of a run.

  Returns:
    The lines in order, as dictionaries. Numbers that are not finite are the strings of `EventsWriter`.
  """
  events: List[Dict[str, Any]] = []
  with tf.io.gfile.GFile(path) as f:
    lines = f.read().splitlines()
  for number, line in enumerate(lines, 1):
    try:
      event = json.loads(line)
    except json.JSONDecodeError:
      logging.warning('%s: line %d is no JSON, and left out', path, number)
      continue
    if event['event'] in ('restored', 'rollback'):
      events = [earlier for earlier in events if earlier['step'] <= event['step']]
    if event.get('evaluation_pending'):  # What an evaluation that failed in the end has told is told again.
      events = [earlier for earlier in events if (earlier['event'], earlier['step']) != ('eval', event['step'])]
    events.append(event)
  return events


def _is_torn(path: str) -> bool:
  """Whether the file's last line was cut short."""
  if not tf.io.gfile.exists(path) or not (size := tf.io.gfile.stat(path).length):
    return False
  with tf.io.gfile.GFile(path, 'rb') as f:
    f.seek(size - 1)
    return f.read(1) != b'\n'


def _to_json(value: Any) -> Any:
  """`value` in terms of strict JSON; what JSON has no type for becomes its str()."""
  value = writers.to_python(value)
  if isinstance(value, np.ndarray):
    value = value.tolist()
  if isinstance(value, (list, tuple)):
    return [_to_json(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    return 'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'
  return value if isinstance(value, (str, int, float, type(None))) else str(value)
