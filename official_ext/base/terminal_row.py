"""The progress of a command: one row of a terminal that is drawn again; lines elsewhere, fewer and fewer of them."""

import datetime
import os
import threading
import time
from types import TracebackType
from typing import TextIO

_REDRAW_SECONDS = 0.2
_TICK_SECONDS = 1.0
_LEAST_SECONDS = 2.0  # Between two lines; and the part below of the time so far.
_LINE_SHARE = 0.05


class ProgressRow:
  """Shows the present state of a command. Use it as a context: at its end the row is gone.

  Example:

    >>> import sys
    >>> with ProgressRow(sys.stdout) as row:
    ...   row.show('1 of 2 shards, 50 %')  # Not a terminal, and too early for a line.
    ...   row.show('2 of 2 shards, 100 %', is_last=True)
    2 of 2 shards, 100 %
  """

  def __init__(self, stream: TextIO, prints_lines: bool = True):
    """Shows nothing yet.

    Args:
      stream: a terminal or a file.
      prints_lines: whether a file gets lines.
    """
    self._stream, self._prints_lines = stream, prints_lines
    self._redraws = stream.isatty() and os.environ.get('TERM', 'dumb') != 'dumb'
    self._begin = self._shown_at = time.monotonic()
    self._is_drawn = False
    self._lock = threading.Lock()
    self._ended = threading.Event()
    self._ticking: threading.Thread | None = None

  def __enter__(self) -> 'ProgressRow':
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._end_ticking()
    with self._lock:
      self._clear()

  def show(self, text: str, is_last: bool = False) -> None:
    """Shows a state, unless another was shown a moment before; the last one stays as a line."""
    now = time.monotonic()
    seconds = _REDRAW_SECONDS if self._redraws else max(_LEAST_SECONDS, _LINE_SHARE * (now - self._begin))
    if not is_last and now - self._shown_at < seconds:
      return
    self._shown_at = now
    if self._redraws and not is_last:
      with self._lock:
        self._draw(text)
    elif is_last or self._prints_lines:
      self.print(text)

  def print(self, line: str) -> None:
    """Prints a line, above the row."""
    with self._lock:
      self._clear()
      self._stream.write(line + '\n')
      self._stream.flush()

  def stage(self, text: str) -> None:
    """Shows on a terminal what is done at present, and for how long, until the next call."""
    self._end_ticking()
    if self._redraws:
      self._ticking = threading.Thread(target=self._tick, args=(text, time.monotonic()), daemon=True)
      self._ticking.start()

  def _tick(self, text: str, start: float) -> None:
    while True:
      with self._lock:
        self._draw(f'{text}, {duration(time.monotonic() - start)}')
      if self._ended.wait(_TICK_SECONDS):
        return

  def _end_ticking(self) -> None:
    if self._ticking is not None:
      self._ended.set()
      self._ticking.join()
      self._ended.clear()
      self._ticking = None

  def _draw(self, text: str) -> None:
    try:
      width = os.get_terminal_size(self._stream.fileno()).columns
    except OSError:
      width = 0
    self._stream.write(f'\r{text[: (width or 80) - 1]}\x1b[K')
    self._stream.flush()
    self._is_drawn = True

  def _clear(self) -> None:
    if self._is_drawn:
      self._stream.write('\r\x1b[K')
      self._stream.flush()
      self._is_drawn = False


def duration(seconds: float) -> str:
  """A time in whole seconds, such as `0:01:20`."""
  return str(datetime.timedelta(seconds=round(seconds)))
