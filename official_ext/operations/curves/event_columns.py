"""The numbers of an events.jsonl as columns, read as the file grows, at most once.

A million lines of JSON take a Python program seven seconds. Here the places of a line's time, kind and step are found
with NumPy, and a metric is looked for when it is requested: lines that `EventsWriter` would not write are parsed as
JSON, line by line. Only complete lines count. Memory holds 25 bytes a line, and 12 a value.
"""

import os
import threading

import numpy as np

from official_ext.base import json_types
from official_ext.base.files import regular_files
from official_ext.base.run_folder import standing_events
from official_ext.operations.curves import event_lines

TRAIN, EVAL, OTHER, INVALID = event_lines.TRAIN, event_lines.EVAL, event_lines.OTHER, event_lines.INVALID
KINDS = event_lines.KINDS

_BLOCK = 1 << 22  # Bytes that are read at a time.
_MAX_LINE = 1 << 26  # A longer line without an end is given up.
_CHECKED = 64  # Bytes before the end of the known part, which must be the same next time.
# Of the other events these are noted.
_NOTED = ('start', *standing_events.GO_BACK)
_NOTED_KEYS = ('event', 'effective_batch_size', 'evaluation_pending')
_NAMED_LINES = 20  # Of each block so many lines of each kind are searched for names, and the first and last.
_FAR = np.iinfo(np.int64).max


class _Metric:
  """The values of one name: the numbers of their lines, and the values."""

  def __init__(self) -> None:
    self.offset = 0
    self.lines = np.empty(0, np.int32)
    self.values = np.empty(0)


class EventColumns:
  """The columns of one file. Threads may share it.

  Attributes (after `update`, each with an entry for each line):
    kinds: TRAIN, EVAL, OTHER, or INVALID for anything but an event.
    steps: 0 where it is invalid.
    times: seconds since 1970; NaN if it has none.
  """

  def __init__(self, path: str):
    """Reads nothing yet."""
    self.path = path
    self.lock = threading.RLock()
    self._begin_anew()

  def _begin_anew(self) -> None:
    self._identity: tuple[int, int] | None = None
    self._offset, self._before = 0, b''
    self._starts = np.empty(0, np.int64)
    self.kinds = np.empty(0, np.int8)
    self.steps = np.empty(0, np.int64)
    self.times = np.empty(0)
    self._others: dict[
      int, json_types.JsonObject
    ] = {}  # Line -> the parts of other events than these two that concern the curves.
    self._metrics: dict[str, _Metric] = {}
    self._names: tuple[json_types.JsonObject, json_types.JsonObject] = ({}, {})
    self._standing: np.ndarray | None = None

  @property
  def nbytes(self) -> int:
    """About how much memory it takes."""
    values = sum(12 * len(each.values) for each in self._metrics.values())
    return 25 * len(self._starts) + values + 1000

  def update(self) -> None:
    """Reads the lines that the file has got since. One that was begun anew, or replaced, is read anew."""
    with self.lock:
      try:
        with regular_files.open_to_read(self.path, buffering=0) as file:
          found = os.fstat(file.fileno())
          if self._identity != (found.st_dev, found.st_ino) or not self._is_continued(file, found.st_size):
            self._begin_anew()
            self._identity = found.st_dev, found.st_ino
          self._read_lines(file)
      except OSError:
        self._begin_anew()

  def metric(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of a name in all lines that have one: the numbers of these lines, ascending, and the values."""
    with self.lock:
      known = self._metrics.setdefault(name, _Metric())
      if known.offset < self._offset:
        try:
          with regular_files.open_to_read(self.path, buffering=0) as file:
            self._read_metric(file, name, known)
        except OSError:
          pass
      return known.lines, known.values

  def names(self, kind: int) -> list[str]:
    """The names of the numbers in the lines of a kind, TRAIN or EVAL, in the order in which they are first seen.

    Of long files not every line is looked at: one that only a few lines have may be missing, and can be requested.
    """
    return list(self._names[kind])

  @property
  def standing(self) -> np.ndarray:
    """Whether each line stands: see base/run_folder/standing_events.py."""
    with self.lock:
      if self._standing is None or len(self._standing) != len(self.steps):
        self._standing = self._stands()
      return self._standing

  def of_others(self, key: str) -> list[tuple[int, object]]:
    """(line, value) of a key in the events that start a run or go back, in order."""
    with self.lock:
      return [(line, event[key]) for line, event in self._others.items() if key in event]

  def events(self, lines: np.ndarray) -> list[json_types.JsonObject]:
    """The events of some lines, whole; of a file that was cut meanwhile, those that are left."""
    found = []
    with self.lock:
      ends = np.append(self._starts, self._offset)[1:]
      try:
        with regular_files.open_to_read(self.path) as file:
          for line in lines:
            file.seek(int(self._starts[line]))
            event = standing_events.parse(file.read(int(ends[line] - self._starts[line])))
            if event is None:
              break
            found.append(event)
      except OSError:
        pass
    return found

  # The contents of a cache.

  def state(self) -> tuple[json_types.JsonObject, dict[str, np.ndarray]]:
    """All that was read: JSON values and arrays, see `restore`."""
    with self.lock:
      names = list(self._metrics)
      arrays: dict[str, np.ndarray] = {
        'starts': self._starts,
        'kinds': self.kinds,
        'steps': self.steps,
        'times': self.times,
      }
      for number, name in enumerate(names):
        arrays |= {f'lines{number}': self._metrics[name].lines, f'values{number}': self._metrics[name].values}
      values: json_types.JsonObject = {
        'identity': self._identity,
        'offset': self._offset,
        'before': self._before.hex(),
        'others': list(self._others.items()),
        'names': [list(names) for names in self._names],
        'metrics': [[name, self._metrics[name].offset] for name in names],
      }
      return values, arrays

  def restore(self, values: json_types.JsonObject, arrays: dict[str, np.ndarray]) -> None:
    """Begins with the columns read by another process. Whether it is of this file is seen at `update`."""
    with self.lock:
      self._begin_anew()
      self._identity = tuple(values['identity'])
      self._offset, self._before = values['offset'], bytes.fromhex(values['before'])
      self._starts, self.kinds, self.steps, self.times = (arrays[k] for k in ('starts', 'kinds', 'steps', 'times'))
      self._others = dict(values['others'])
      training, evaluation = values['names']
      self._names = dict.fromkeys(training), dict.fromkeys(evaluation)
      for number, (name, offset) in enumerate(values['metrics']):
        metric = self._metrics[name] = _Metric()
        metric.offset, metric.lines, metric.values = offset, arrays[f'lines{number}'], arrays[f'values{number}']

  @property
  def bytes_read(self) -> int:
    """How much of the file was looked through, once for the lines and once for each metric."""
    return self._offset + sum(metric.offset for metric in self._metrics.values())

  # Lines.

  def _is_continued(self, file, size: int) -> bool:
    if size < self._offset:
      return False
    file.seek(max(0, self._offset - _CHECKED))
    return file.read(min(self._offset, _CHECKED)) == self._before

  def _read_lines(self, file) -> None:
    length, blocks, count = _BLOCK, [], len(self.kinds)
    while True:
      file.seek(self._offset)
      content = file.read(length)
      end = content.rfind(b'\n') + 1
      if not end:
        if len(content) < length:
          break
        if length < _MAX_LINE:
          length *= 2
          continue
        blocks.append(self._unreadable())
        end = len(content)
      else:
        blocks.append(self._parse(content[:end], count))
      count += len(blocks[-1][0])
      self._offset += end
      self._before = (self._before + content[max(0, end - _CHECKED) : end])[-_CHECKED:]
      if len(content) < length:
        break
      length = _BLOCK
    if blocks:
      for name, parts in zip(('_starts', 'kinds', 'steps', 'times'), zip(*blocks)):
        setattr(self, name, np.concatenate([getattr(self, name), *parts]))

  def _unreadable(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The columns of a part of a line that is too long for an event."""
    return np.array([self._offset]), np.array([INVALID], np.int8), np.zeros(1, np.int64), np.full(1, np.nan)

  def _parse(self, content: bytes, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The columns of whole lines, of which the first has this number."""
    data = np.frombuffer(content + bytes(event_lines.PADDING), np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(data == ord('\n')) + 1])
    last = starts[1:] - 1
    starts = starts[:-1]
    kinds, steps, times = event_lines.heads(data, starts)
    for number in np.flatnonzero(kinds == INVALID):
      event = standing_events.parse(content[starts[number] : last[number]])
      if event is None or abs(event['step']) > 1 << 62:
        continue
      kind = event['event']
      kinds[number] = KINDS.index(kind) if kind in KINDS else OTHER
      steps[number], times[number] = event['step'], event_lines.to_float(event.get('time'))
      if kinds[number] == OTHER and (kind in _NOTED or 'evaluation_pending' in event):
        self._others[first + int(number)] = {key: event[key] for key in _NOTED_KEYS if key in event}
    self._note_names(content, kinds, starts, last)
    return starts + self._offset, kinds, steps, times

  def _note_names(self, content: bytes, kinds: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
    """Notes the names of numbers in some lines of each kind."""
    for kind, names in enumerate(self._names):
      lines = np.flatnonzero(kinds == kind)
      if len(lines) > _NAMED_LINES:
        lines = lines[np.linspace(0, len(lines) - 1, _NAMED_LINES).astype(np.int64)]
      for line in lines:
        event = standing_events.parse(content[starts[line] : ends[line]]) or {}
        for name, value in event.items():
          if name not in names and name not in ('time', 'step', 'event') and event_lines.is_number(value):
            names[name] = None

  # Metrics.

  def _read_metric(self, file, name: str, known: _Metric) -> None:
    lines, values = [known.lines], [known.values]
    while known.offset < self._offset:
      file.seek(known.offset)
      # Begins and ends with a line.
      last = np.searchsorted(self._starts, known.offset + _BLOCK, side='right') - 1
      end = int(self._starts[last]) if self._starts[last] > known.offset else self._end_of_line(known.offset)
      content = file.read(end - known.offset)
      if len(content) < end - known.offset:  # It was cut meanwhile, and will be read anew.
        break
      places, found = event_lines.numbers_in(content, name)
      at = np.searchsorted(self._starts, places + known.offset, side='right') - 1
      if len(at) and not (at[1:] > at[:-1]).all():  # A name twice in a line: the last one counts.
        keep = np.append(at[1:] > at[:-1], True)
        at, found = at[keep], found[keep]
      lines.append(at.astype(np.int32))
      values.append(found)
      known.offset = end
    known.lines, known.values = np.concatenate(lines), np.concatenate(values)

  def _end_of_line(self, offset: int) -> int:
    following = np.searchsorted(self._starts, offset, side='right')
    return int(self._starts[following]) if following < len(self._starts) else self._offset

  def _stands(self) -> np.ndarray:
    """See `standing`: a line counts if no later line goes back to a step before its own."""
    limits = np.full(len(self.steps) + 1, _FAR)
    stands = self.kinds != INVALID
    for line, event in self._others.items():
      if event['event'] in standing_events.GO_BACK:
        limits[line] = self.steps[line]
    after = np.minimum.accumulate(limits[::-1])[::-1][1:]
    stands &= self.steps <= after
    for line, event in self._others.items():
      if event.get('evaluation_pending'):
        stands[:line] &= ~((self.kinds[:line] == EVAL) & (self.steps[:line] == self.steps[line]))
    return stands
