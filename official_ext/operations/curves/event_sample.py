"""A sample of a long events.jsonl: some thousand lines of all its parts, in a fraction of a second.

It has the attributes of `EventColumns` that curves need. What only the whole file shows is estimated: a line stands if
no later line of the sample has an earlier step.
"""

import os
import threading
from typing import Any

import numpy as np

from official_ext.base.files import regular_files
from official_ext.base.run_folder import standing_events
from official_ext.operations.curves import event_lines

_BLOCKS = 32
_BLOCK = 64 << 10  # Bytes.
_MAX_PARSED = 40  # Lines of a block that are parsed one by one: those in another form, and evaluations for their names.


class EventSample:
  """The lines of some blocks of a file, read at once. Threads may share it.

  Attributes:
    path: of the file.
    wanted: names whose values somebody needs of the whole file: see ColumnStore.sample.
    lock: as of EventColumns.
    kinds, steps, times, standing: as of EventColumns, of the lines of the sample.
  """

  is_sample = True

  def __init__(self, path: str):
    """Reads the sample.

    Args:
      path: of the file. One that cannot be read has no lines.
    """
    self.path = path
    self.wanted: dict[str, None] = {}
    self.lock = threading.RLock()
    self._names: tuple[dict[str, None], ...] = tuple({} for _ in event_lines.KINDS)
    self._contents: list[tuple[bytes, np.ndarray]] = []  # Whole lines, and where they begin.
    heads = [self._parse(content) for content in _blocks(path)]
    self.kinds, self.steps, self.times = (
      np.concatenate(parts) if parts else np.empty(0, dtype)
      for parts, dtype in zip(zip(*heads) if heads else ((), (), ()), (np.int8, np.int64, np.float64))
    )
    is_known = self.kinds != event_lines.INVALID
    after = np.minimum.accumulate(np.where(is_known, self.steps, np.iinfo(np.int64).max)[::-1])[::-1]
    self.standing = is_known & (self.steps <= after)

  def names(self, kind: int) -> list[str]:
    """The names of the numbers in the lines of a kind, of those that were parsed."""
    return list(self._names[kind])

  def metric(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of a name: the numbers of their lines in the sample, ascending, and the values."""
    lines, values, before = [np.empty(0, np.int64)], [np.empty(0)], 0
    for content, starts in self._contents:
      places, found = event_lines.numbers_in(content, name)
      at = np.searchsorted(starts, places, side='right') - 1
      keep = np.append(at[1:] > at[:-1], True) if len(at) else np.empty(0, bool)
      lines.append(at[keep] + before)
      values.append(found[keep])
      before += len(starts)
    return np.concatenate(lines), np.concatenate(values)

  def of_others(self, key: str) -> list[tuple[int, Any]]:
    """None: what a start of the run says is not in every sample."""
    del key
    return []

  def release(self) -> None:
    """Does nothing."""

  def _parse(self, content: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The kinds, steps and times of whole lines."""
    data = np.frombuffer(content + bytes(event_lines.PADDING), np.uint8)
    starts = np.concatenate([[0], np.flatnonzero(data == ord('\n')) + 1])
    ends, starts = starts[1:] - 1, starts[:-1]
    kinds, steps, times = event_lines.heads(data, starts)
    odd = np.flatnonzero(kinds == event_lines.INVALID)[:_MAX_PARSED]
    named = np.concatenate([np.flatnonzero(kinds == kind)[:_MAX_PARSED] for kind in range(len(self._names))])
    for line in [*odd, *named]:
      event = standing_events.parse(content[starts[line] : ends[line]])
      if event is None or event['event'] not in event_lines.KINDS or abs(event['step']) > 1 << 62:
        continue
      kind = event_lines.KINDS.index(event['event'])
      kinds[line], steps[line], times[line] = kind, event['step'], event_lines.to_float(event.get('time'))
      for name, value in event.items():
        if name not in ('time', 'step', 'event') and event_lines.is_number(value):
          self._names[kind][name] = None
    self._contents.append((content, starts))
    return kinds, steps, times


def _blocks(path: str) -> list[bytes]:
  """Whole lines from evenly spaced places of a file; its first and its last ones are among them."""
  found = []
  try:
    with regular_files.open_to_read(path, buffering=0) as file:
      size = os.fstat(file.fileno()).st_size
      for offset in np.unique(np.linspace(0, max(0, size - _BLOCK), _BLOCKS).astype(np.int64)).tolist():
        file.seek(offset)
        content = file.read(_BLOCK)
        first = content.find(b'\n') + 1 if offset else 0
        content = content[first : content.rfind(b'\n') + 1]
        if content:
          found.append(content)
  except OSError:
    pass
  return found
