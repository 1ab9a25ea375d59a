"""Output of long-running programs such as train.py: it may be closed early (`train.py ... | head`); masks passwords."""

from collections.abc import Iterator
import contextlib
import io
import os
import sys
from typing import Any, TextIO

from absl import logging

from official_ext.base import safe_text


def outlive_readers() -> None:
  """Makes sys.stdout and sys.stderr discard unwritable output.

  A run must not end because its output has no reader. The first failure of stdout is reported on stderr. Passwords and
  the like are masked, also in the logs.
  """
  _replace_streams()
  handler = logging.get_absl_handler()
  handler.python_handler.stream = sys.stderr  # Its handler has the old stream.
  safe_text.mask_logs(handler)


@contextlib.contextmanager
def outliving_readers() -> Iterator[None]:
  """A context in which sys.stdout and sys.stderr are wrapped by `outlive_readers`; logs are unchanged."""
  before = sys.stdout, sys.stderr
  _replace_streams()
  try:
    yield
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    sys.stdout, sys.stderr = before


def _replace_streams() -> None:
  _occupy_standard_descriptors()
  sys.stdout = _stream(sys.stdout, 1)
  sys.stderr = _stream(sys.stderr, 2)


def _occupy_standard_descriptors() -> None:
  """Opens /dev/null for a standard stream that is closed (`2>&-`): the next file would get its descriptor."""
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number, which is this one.


def _stream(stream: TextIO | None, number: int) -> TextIO:
  if stream is None:  # It was closed from the start.
    return open(number, 'w', closefd=False)
  try:
    descriptor = stream.fileno()
  except io.UnsupportedOperation:  # It is in memory.
    return stream
  with contextlib.suppress(OSError):
    stream.flush()
  raw = _Descriptor(descriptor, stream.name)
  return _MaskedText(io.BufferedWriter(raw), encoding=stream.encoding, errors='backslashreplace', line_buffering=True)


class _MaskedText(io.TextIOWrapper):
  """A text stream that masks passwords and other secrets."""

  def write(self, text: str) -> int:
    """Writes the masked text, and returns the length of `text`."""
    super().write(safe_text.mask(text))
    return len(text)


class _Descriptor(io.RawIOBase):
  """A file descriptor for writing that never fails."""

  def __init__(self, descriptor: int, name: str):
    super().__init__()
    self._descriptor = descriptor
    self.name = name
    self._failed = False

  def writable(self) -> bool:
    """Returns True."""
    return True

  def fileno(self) -> int:
    """The descriptor."""
    return self._descriptor

  def isatty(self) -> bool:
    """Whether the descriptor is a terminal."""
    return os.isatty(self._descriptor)

  def write(self, data: Any) -> int:
    """Writes as much as possible; the rest counts as written too."""
    try:
      return os.write(self._descriptor, data)
    except OSError as error:
      if not self._failed and self.name == '<stdout>':
        print(f'stdout cannot be written any more ({error.strerror}); the run continues', file=sys.stderr)
      self._failed = True
      return len(data)
