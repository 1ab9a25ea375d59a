"""The new events of runs since the last look, also by an earlier process. No TensorFlow."""

from collections.abc import Iterator
import os
from typing import Any

from official_ext.base.files import regular_files
from official_ext.base.run_folder import standing_events
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import run_identity

_MAX_BYTES = 8 << 20  # So much of a file is read at once.
_ODD = (b'"NaN"', b'Infinity"')
_KINDS = (b'"event": "train"', b'"event": "eval"')


class EventWatch:
  """Reads the events of runs, each once.

  A process that continues from places that are older reads some again.

  Attributes:
    places: by the path of a run: its identity, how far its events were read, and the inode of their file.
  """

  def __init__(self, places: dict[str, Any], only_odd: bool):
    """Reads nothing yet.

    Args:
      places: see `places`; invalid parts of it are left out.
      only_odd: whether only events with numbers that are not finite matter.
    """
    self.places: dict[str, list] = {path: place for path, place in places.items() if _is_place(place)}
    self._only_odd = only_odd

  def skip(self, run: run_folder.Run) -> None:
    """Marks the events of a new run as read."""
    if run.path not in self.places and (found := _stat(run)) is not None:
      self.places[run.path] = [run_identity.of_run(run), found.st_size, found.st_ino]

  def begin_anew(self, run: run_folder.Run) -> None:
    """Takes nothing for read."""
    self.places.pop(run.path, None)

  def keep_only(self, paths: set[str]) -> None:
    """Forgets runs that are gone."""
    self.places = {path: place for path, place in self.places.items() if path in paths}

  def new_events(self, run: run_folder.Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a run's training and evaluations that were not read before, each with the identity of the run.

    They count as read when the iterator has ended.
    """
    found = _stat(run)
    if found is None:
      return
    known, offset, inode = self.places.get(run.path, ['', 0, 0])
    if known and inode == found.st_ino and offset == found.st_size:
      return
    now = run_identity.of_run(run)
    if now != known or offset > found.st_size:
      offset = 0
    if not now:
      return
    try:
      with regular_files.open_to_read(run.file(run_folder.EVENTS)) as file:
        file.seek(offset)
        while block := file.read(_MAX_BYTES):
          end = block.rfind(b'\n') + 1
          for line in block[:end].splitlines():
            if (event := self._parse(line)) is not None:
              yield now, event
          # A line that fills a block is not an event.
          offset += len(block) if not end and len(block) == _MAX_BYTES else end
          if len(block) < _MAX_BYTES:
            break
          file.seek(offset)
    except OSError:  # The next time.
      return
    self.places[run.path] = [now, offset, found.st_ino]

  def _parse(self, line: bytes) -> dict[str, Any] | None:
    if not any(kind in line for kind in _KINDS) or (self._only_odd and not any(odd in line for odd in _ODD)):
      return None
    return standing_events.parse(line)


def _stat(run: run_folder.Run) -> os.stat_result | None:
  try:
    return os.stat(run.file(run_folder.EVENTS))
  except OSError:
    return None


def _is_place(values: Any) -> bool:
  if not isinstance(values, list) or len(values) != 3:
    return False
  return isinstance(values[0], str) and all(isinstance(value, int) and value >= 0 for value in values[1:])
