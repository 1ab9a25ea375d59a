"""Standard output that may close while the run goes on: `train.py ... | head`, a terminal that has gone."""

import io
import os
import sys
from typing import Any, Optional, TextIO


def outlive_readers() -> None:
  """Lets sys.stdout and sys.stderr swallow what nobody can take any more.

  A run must not end because of what watches it. The first failure of stdout is told on stderr.
  """
  sys.stdout = _stream(sys.stdout)
  sys.stderr = _stream(sys.stderr)


def _stream(stream: Optional[TextIO]) -> TextIO:
  if stream is None:  # Closed from the start: its number may be that of another file by now.
    return open(os.devnull, 'w')
  stream.flush()
  raw = _Descriptor(stream.fileno(), stream.name)
  return io.TextIOWrapper(
      io.BufferedWriter(raw), encoding=stream.encoding, errors='backslashreplace', line_buffering=True)


class _Descriptor(io.RawIOBase):
  """A file descriptor for writing that never fails."""

  def __init__(self, descriptor: int, name: str):
    super().__init__()
    self._descriptor = descriptor
    self.name = name
    self._failed = False

  def writable(self) -> bool:
    """See base class."""
    return True

  def fileno(self) -> int:
    """See base class."""
    return self._descriptor

  def isatty(self) -> bool:
    """See base class."""
    return os.isatty(self._descriptor)

  def write(self, data: Any) -> int:
    """Writes what can be written; the rest counts as written too."""
    try:
      return os.write(self._descriptor, data)
    except OSError as error:
      if not self._failed and self.name == '<stdout>':
        print(f'stdout cannot be written any more ({error.strerror}); the run goes on', file=sys.stderr)
      self._failed = True
      return len(data)
