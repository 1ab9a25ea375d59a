"""The numbers of an events.jsonl as columns, read as the file grows, at most once.

A long run has ten million events, and their columns take more memory than a console may use: a large `GrowingArray` is
in a file without a name. The file is mapped, so that an array is read like any other; `release` takes its pages out of
the process's memory again.
"""

from collections.abc import Iterable, Iterator
import mmap
import os
import tempfile
import threading
from typing import Any

import numpy as np

from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.run_folder import run_files
from official_ext.operations.curves import event_lines

SPILL_BYTES = 1 << 20  # A larger array goes to a file.
_RESERVED_FACTOR = 4  # Maps this multiple of the needed length, so that a growing file is not mapped again each time.


class GrowingArray:
  """A one-dimensional array. It is not shared by threads."""

  def __init__(self, dtype: Any, folder: str | None = None):
    """Makes an empty one.

    Args:
      dtype: of its elements.
      folder: where its file would be; None: it always stays in memory.
    """
    self.dtype = np.dtype(dtype)
    self._folder = folder
    self._inside: np.ndarray = np.empty(0, self.dtype)
    self._file: Any = None
    self._map: mmap.mmap | None = None
    self._length = 0

  def __len__(self) -> int:
    return self._length

  @property
  def nbytes(self) -> int:
    """The memory that it holds while it is not read."""
    return self._inside.nbytes

  @property
  def is_spilled(self) -> bool:
    """Whether it is in a file."""
    return self._file is not None

  @property
  def array(self) -> np.ndarray:
    """All elements, to be read only."""
    if self._map is None:
      return self._inside[: self._length]
    return np.frombuffer(self._map, self.dtype, self._length)

  def append(self, values: np.ndarray) -> None:
    """Adds elements at the end. If no file can be written, they stay in memory."""
    values = np.ascontiguousarray(values, self.dtype)
    if not len(values):
      return
    size = (self._length + len(values)) * self.dtype.itemsize
    if self._file is None and self._folder is not None and size > SPILL_BYTES:
      self._spill()
    if self._file is not None:
      try:
        self._write(values)
        return
      except OSError:  # A full disk.
        self._stay_inside(self.array.copy())
    self._append_inside(values)

  def release(self) -> None:
    """Takes the pages of its file out of memory."""
    if self._map is not None:
      self._map.madvise(mmap.MADV_DONTNEED)

  def _append_inside(self, values: np.ndarray) -> None:
    length = self._length + len(values)
    if length > len(self._inside):
      grown = np.empty(max(length, len(self._inside) * 5 // 4), self.dtype)
      grown[: self._length] = self._inside[: self._length]
      self._inside = grown
    self._inside[self._length : length] = values
    self._length = length

  def _spill(self) -> None:
    before = self._inside[: self._length]
    try:
      os.makedirs(self._folder or '', exist_ok=True)
      self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)
      self._length = 0
      self._write(before)
      self._inside = np.empty(0, self.dtype)
    except OSError:
      self._stay_inside(before)

  def _stay_inside(self, values: np.ndarray) -> None:
    """Keeps all elements in memory from now on."""
    self._inside, self._length = values, len(values)
    self._file, self._map, self._folder = None, None, None

  def _write(self, values: np.ndarray) -> None:
    """Writes elements after the others, and maps them. Not through the map: on a full disk that is a signal."""
    content, offset = memoryview(values.data).cast('B'), self._length * self.dtype.itemsize
    end = offset + len(content)
    while len(content):
      written = os.pwrite(self._file.fileno(), content, offset)
      content, offset = content[written:], offset + written
    if end and (self._map is None or end > len(self._map)):
      os.ftruncate(self._file.fileno(), _RESERVED_FACTOR * end)
      self._map = mmap.mmap(
        self._file.fileno(), _RESERVED_FACTOR * end, prot=mmap.PROT_READ
      )  # Arrays may hold the one before.
    self._length += len(values)


TRAIN, EVAL, OTHER, INVALID = event_lines.TRAIN, event_lines.EVAL, event_lines.OTHER, event_lines.INVALID
KINDS = event_lines.KINDS  # The kinds whose lines have metrics.

_BLOCK = 1 << 22  # Bytes that are read at a time.
_MAX_LINE = 1 << 26  # A longer line without an end is given up.
_CHECKED = 64  # Bytes before the end of the known part, which must be the same next time.
# Of the other events these are noted.
_NOTED = ('start', *run_files.GO_BACK)
_NOTED_KEYS = ('event', 'effective_batch_size', 'evaluation_pending')
_NAMED_LINES = 20  # Lines of each kind in a block that are searched for names, the first and last among them.
_FAR = np.iinfo(np.int64).max
_CHUNK = 1 << 18  # Lines that are looked at together.
_PART = 1 << 16  # Values of a metric that are looked at together.
_COLUMNS = {'starts': np.int64, 'kinds': np.int8, 'steps': np.int64, 'times': np.float64}
_SPILLED_BYTES = 1 << 20  # What an array in a file counts for: it takes two of the process's open files.


class _Metric:
  """The values of one name: the numbers of their lines, and the values."""

  def __init__(self, folder: str | None) -> None:
    self.offset = 0
    self.lines = GrowingArray(np.int32, folder)
    self.values = GrowingArray(np.float64, folder)


class EventColumns:
  """The columns of one file. Threads may share it.

  Attributes (after `update`, each with an entry for each line):
    kinds: the position of the event in KINDS, OTHER, or INVALID for anything but an event.
    steps: 0 where it is invalid.
    times: seconds since 1970; NaN if it has none.
  """

  is_sample = False

  def __init__(self, path: str, folder: str | None = None):
    """Reads nothing yet.

    Args:
      path: of the file.
      folder: where the columns of a long file are; None: in memory.
    """
    self.path = path
    self._folder = folder
    self.lock = threading.RLock()
    self._begin_anew()

  def _begin_anew(self) -> None:
    self._identity: tuple[int, int] | None = None
    self._offset, self._before = 0, b''
    self._columns = {name: GrowingArray(dtype, self._folder) for name, dtype in _COLUMNS.items()}
    self._others: dict[
      int, json_values.JsonObject
    ] = {}  # Line -> the parts of other events than these two that concern the curves.
    self._metrics: dict[str, _Metric] = {}
    self._names: tuple[json_values.JsonObject, ...] = tuple({} for _ in KINDS)
    self._standing: np.ndarray | None = None

  @property
  def _starts(self) -> np.ndarray:
    return self._columns['starts'].array

  @property
  def kinds(self) -> np.ndarray:
    """See class."""
    return self._columns['kinds'].array

  @property
  def steps(self) -> np.ndarray:
    """See class."""
    return self._columns['steps'].array

  @property
  def times(self) -> np.ndarray:
    """See class."""
    return self._columns['times'].array

  def _arrays(self) -> list[GrowingArray]:
    metrics = list(self._metrics.values())
    return [*self._columns.values(), *(each.lines for each in metrics), *(each.values for each in metrics)]

  @property
  def nbytes(self) -> int:
    """About how much memory it takes, and a part for each file."""
    return 1000 + sum(each.nbytes + _SPILLED_BYTES * each.is_spilled for each in self._arrays())

  def release(self) -> None:
    """Takes the pages of its files out of memory; the next read gets them back."""
    for each in self._arrays():
      each.release()

  def update(self) -> None:
    """Reads the lines that were added to the file. A file that was replaced or cut is read from its start."""
    with self.lock:
      try:
        with local_files.open_to_read(self.path, buffering=0) as file:
          found = os.fstat(file.fileno())
          if self._identity != (found.st_dev, found.st_ino) or not self._is_continued(file, found.st_size):
            self._begin_anew()
            self._identity = found.st_dev, found.st_ino
          self._read_lines(file)
      except OSError:
        self._begin_anew()
      self.release()

  def metric(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of a name in all lines that have one: the numbers of these lines, ascending, and the values."""
    with self.lock:
      known = self._metrics.setdefault(name, _Metric(self._folder))
      if known.offset < self._offset:
        try:
          with local_files.open_to_read(self.path, buffering=0) as file:
            self._read_metric(file, name, known)
        except OSError:
          pass
        self.release()
      return known.lines.array, known.values.array

  def bytes_behind(self, names: Iterable[str], size: int) -> int:
    """How much has to be read before the values of some names in a file of a size are known. It takes no lock."""
    metrics = [self._metrics.get(name) for name in names]
    return max(0, size - self._offset, *(size - (each.offset if each else 0) for each in metrics))

  def names(self, kind: int) -> list[str]:
    """The names of the numbers in the lines of a kind of KINDS, in the order in which they are first seen.

    Of long files not every line is looked at: one that only a few lines have may be missing, and can be requested.
    """
    return list(self._names[kind])

  @property
  def standing(self) -> np.ndarray:
    """Whether each line stands: see base/run_folder/run_files.py."""
    with self.lock:
      if self._standing is None or len(self._standing) != len(self.steps):
        self._standing = self._stands()
      return self._standing

  def of_others(self, key: str) -> list[tuple[int, object]]:
    """(line, value) of a key in the events that start a run or go back, in order."""
    with self.lock:
      return [(line, event[key]) for line, event in self._others.items() if key in event]

  def events(self, lines: np.ndarray) -> list[json_values.JsonObject]:
    """The events of some lines, whole; of a file that was cut meanwhile, the remaining ones."""
    found = []
    with self.lock:
      starts = self._starts
      try:
        with local_files.open_to_read(self.path) as file:
          for line in lines:
            end = starts[line + 1] if line + 1 < len(starts) else self._offset
            file.seek(int(starts[line]))
            event = run_files.parse_event(file.read(int(end - starts[line])))
            if event is None:
              break
            found.append(event)
      except OSError:
        pass
    return found

  # The contents of a cache.

  def state(self) -> tuple[json_values.JsonObject, dict[str, GrowingArray]]:
    """All that was read: JSON values and arrays, see `restore`. Callers hold the lock."""
    with self.lock:
      names = list(self._metrics)
      arrays = dict(self._columns)
      for number, name in enumerate(names):
        arrays |= {f'lines{number}': self._metrics[name].lines, f'values{number}': self._metrics[name].values}
      values: json_values.JsonObject = {
        'identity': self._identity,
        'offset': self._offset,
        'before': self._before.hex(),
        'others': list(self._others.items()),
        'names': [list(names) for names in self._names],
        'metrics': [[name, self._metrics[name].offset] for name in names],
      }
      return values, arrays

  def restore(self, values: json_values.JsonObject, arrays: dict[str, GrowingArray]) -> None:
    """Begins with the columns read by another process. Whether it is of this file is seen at `update`."""
    with self.lock:
      self._begin_anew()
      self._identity = tuple(values['identity'])
      self._offset, self._before = values['offset'], bytes.fromhex(values['before'])
      self._columns = {name: arrays[name] for name in _COLUMNS}
      self._others = dict(values['others'])
      self._names = tuple(map(dict.fromkeys, values['names']))
      for number, (name, offset) in enumerate(values['metrics']):
        metric = self._metrics[name] = _Metric(None)
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
    length = _BLOCK
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
        block = self._unreadable()
        end = len(content)
      else:
        block = self._parse(content[:end], len(self._columns['kinds']))
      for column, part in zip(self._columns.values(), block):
        column.append(part)
      self._offset += end
      self._before = (self._before + content[max(0, end - _CHECKED) : end])[-_CHECKED:]
      if len(content) < length:
        break
      length = _BLOCK

  def _unreadable(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The columns of a part of a line that is too long for an event."""
    return np.array([self._offset]), np.array([INVALID], np.int8), np.zeros(1, np.int64), np.full(1, np.nan)

  def _parse(self, content: bytes, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The columns of whole lines, of which the first has this number."""
    data = np.frombuffer(content + bytes(event_lines.PADDING), np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(data == ord('\n')) + 1])
    last = starts[1:] - 1
    starts = starts[:-1]
    kinds, steps, times = event_lines.line_heads(data, starts)
    for number in np.flatnonzero(kinds == INVALID):
      event = run_files.parse_event(content[starts[number] : last[number]])
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
        event = run_files.parse_event(content[starts[line] : ends[line]]) or {}
        for name, value in event.items():
          if name not in names and name not in ('time', 'step', 'event') and event_lines.is_number(value):
            names[name] = None

  # Metrics.

  def _read_metric(self, file, name: str, known: _Metric) -> None:
    while known.offset < self._offset:
      file.seek(known.offset)
      # Begins and ends with a line.
      starts = self._starts
      last = np.searchsorted(starts, known.offset + _BLOCK, side='right') - 1
      end = int(starts[last]) if starts[last] > known.offset else self._end_of_line(known.offset)
      content = file.read(end - known.offset)
      if len(content) < end - known.offset:  # It was cut meanwhile, and will be read again.
        break
      places, found = event_lines.numbers_in(content, name)
      first = int(np.searchsorted(starts, known.offset, side='right')) - 1
      at = first + np.searchsorted(starts[first : last + 1], places + known.offset, side='right') - 1
      if len(at) and not (at[1:] > at[:-1]).all():  # A name twice in a line: the last one counts.
        keep = np.append(at[1:] > at[:-1], True)
        at, found = at[keep], found[keep]
      known.lines.append(at.astype(np.int32))
      known.values.append(found)
      known.offset = end

  def _end_of_line(self, offset: int) -> int:
    following = np.searchsorted(self._starts, offset, side='right')
    return int(self._starts[following]) if following < len(self._starts) else self._offset

  def _stands(self) -> np.ndarray:
    """See `standing`: a line counts if no later line goes back to a step before its own."""
    steps, stands = self.steps, self.kinds != INVALID
    backs = [line for line, event in self._others.items() if event['event'] in run_files.GO_BACK]
    limit = _FAR
    for line, end in reversed(list(zip(backs, [*backs[1:], len(steps)]))):
      self._limit(stands, line, end, limit)  # From one going back up to the next: later ones limit them.
      limit = min(limit, int(steps[line]))
    self._limit(stands, 0, backs[0] if backs else 0, limit)
    evaluations = np.flatnonzero(self.kinds == EVAL)
    for line, event in self._others.items():
      if event.get('evaluation_pending'):
        before = evaluations[: np.searchsorted(evaluations, line)]
        stands[before[steps[before] == steps[line]]] = False
    self.release()
    return stands

  def _limit(self, stands: np.ndarray, first: int, end: int, limit: int) -> None:
    """Marks lines of a range whose step is after a limit as not standing."""
    steps = self._columns['steps']
    for begin in range(first, end if limit < _FAR else first, _CHUNK):
      part = slice(begin, min(end, begin + _CHUNK))
      stands[part] &= steps.array[part] <= limit
      steps.release()


def standing_places(
  columns: EventColumns | event_lines.EventSample, kind: int, lines: np.ndarray
) -> Iterator[np.ndarray]:
  """Places in `lines` of standing lines of one kind, some at a time: int64 arrays, in ascending order.

  Args:
    columns: of a file.
    kind: see KINDS.
    lines: numbers of lines, as `EventColumns.metric` returns them.
  """
  for begin in range(0, len(lines), _PART):
    part = lines[begin : begin + _PART]
    yield np.flatnonzero((columns.kinds[part] == kind) & columns.standing[part]) + begin
