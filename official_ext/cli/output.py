"""Standard output of train.py: it may close while the run goes on (`train.py ... | head`), and tells no passwords."""

import io
import os
import sys
from typing import Any, TextIO

from absl import logging

from official_ext.monitoring import credentials


def outlive_readers() -> None:
  """Lets sys.stdout and sys.stderr swallow what nobody can take any more.

  A run must not end because of what watches it. The first failure of stdout is told on stderr. Passwords and the like
  are masked, in what is logged too.
  """
  _occupy_standard_descriptors()
  sys.stdout = _stream(sys.stdout, 1)
  sys.stderr = _stream(sys.stderr, 2)
  handler = logging.get_absl_handler()
  handler.python_handler.stream = sys.stderr  # It has the one of before.
  credentials.mask_logs(handler)


def _occupy_standard_descriptors() -> None:
  """Has /dev/null if a standard stream was closed (`2>&-`): the next file that is opened would get its number."""
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # The lowest number that is free: this one.


def _stream(stream: TextIO | None, number: int) -> TextIO:
  if stream is None:  # It was closed from the start.
    return open(number, 'w', closefd=False)
  stream.flush()
  raw = _Descriptor(stream.fileno(), stream.name)
  return _MaskedText(io.BufferedWriter(raw), encoding=stream.encoding, errors='backslashreplace', line_buffering=True)


class _MaskedText(io.TextIOWrapper):
  """Text in which passwords and the like are masked."""

  def write(self, text: str) -> int:
    """See base class."""
    super().write(credentials.mask(text))
    return len(text)


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
