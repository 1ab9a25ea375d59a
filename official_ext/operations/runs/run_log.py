"""The output of a run that was started detached, read from its end: the file may be larger than memory."""

from collections.abc import Callable, Iterator
import os
import time

from official_ext.base import harmless_text
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.operations.runs import run_folder

_MAX_BYTES = 1 << 20
_MAX_LINE = 10_000


def tail(run: run_folder.Run, num_lines: int = 20, mode: str = 'train') -> list[str]:
  """The last lines of a run's output, harmless for a terminal; [] if it has none, as when a shell has started it.

  Args:
    run: the run.
    num_lines: how many, at most.
    mode: of which of its processes.
  """
  return tail_of_file(run.log_path(mode), num_lines)


def tail_of_file(path: str, num_lines: int) -> list[str]:
  """The last lines of a text file, of its last megabyte at most."""
  try:
    with regular_files.open_to_read(path) as file:
      size = os.fstat(file.fileno()).st_size
      file.seek(max(0, size - _MAX_BYTES))
      content = file.read(_MAX_BYTES)
  except OSError:
    return []
  if size > _MAX_BYTES:
    content = content.partition(b'\n')[2]
  lines = content.decode('utf-8', 'replace').rstrip('\n').split('\n') if content.strip() else []
  return [shown(line) for line in lines[-num_lines:]] if num_lines > 0 else []


def since(path: str, place: int | None, num_lines: int = 1000) -> tuple[list[str], int, bool]:
  """The growth of a text file since it was read last.

  Args:
    path: the file.
    place: in bytes, where that ended, at the end of a line; None at first.
    num_lines: how many lines to return, at most: the last ones.

  Returns:
    The lines that are whole, harmless for a terminal; the place behind them; and whether they follow the earlier
    part: not at first, nor if the file was begun anew, or has got more than a megabyte.
  """
  try:
    with regular_files.open_to_read(path) as file:
      size = os.fstat(file.fileno()).st_size
      follows = place is not None and size - _MAX_BYTES <= place <= size
      start = place if follows and place is not None else max(0, size - _MAX_BYTES)
      file.seek(start)
      content = file.read(_MAX_BYTES)
  except OSError:
    return [], 0, place == 0
  end = content.rfind(b'\n') + 1
  if not end and len(content) == _MAX_BYTES:  # One line that has no end.
    end = len(content)
  whole = content[:end]
  if not follows and start and b'\n' in whole[:-1]:
    whole = whole.partition(b'\n')[2]
  lines = whole.decode('utf-8', 'replace').removesuffix('\n').split('\n') if whole else []
  return [shown(line) for line in lines[max(0, len(lines) - num_lines) :]], start + end, follows


def shown(line: str) -> str:
  """A line of output as a terminal shows it in the end: text that a carriage return has overwritten is gone."""
  return harmless_text.harmless(line.rstrip('\r').rpartition('\r')[2], keep='\t')[:_MAX_LINE]


def follow(
  path: str, is_over: Callable[[], bool], poll_seconds: float = 0.3, place: int | None = None
) -> Iterator[str]:
  """Lines as they are added to a text file, until nobody will add any.

  Args:
    path: the file, which may not exist yet.
    is_over: whether nobody will.
    poll_seconds: how often to look.
    place: in bytes, where to begin, as from `since`; None: at the end.
  """
  place, rest = paths.size(path) if place is None else place, b''
  while True:
    ended = is_over()  # Before the last look.
    size = paths.size(path)
    if size < place:  # It was begun anew.
      place, rest = 0, b''
    while size > place:
      with regular_files.open_to_read(path) as file:
        file.seek(place)
        content = file.read(min(size - place, _MAX_BYTES))
      if not content:
        break
      place += len(content)
      *lines, rest = (rest + content).split(b'\n')
      yield from (shown(line.decode('utf-8', 'replace')) for line in lines)
    if ended:
      if rest:
        yield shown(rest.decode('utf-8', 'replace'))
      return
    time.sleep(poll_seconds)
