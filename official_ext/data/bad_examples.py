"""Examples that cannot be read, parsed, decoded or put into a batch: how they are named and counted."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import contextvars
import threading
from typing import Any

from absl import logging

from official_ext import errors

ACTIONS = ('error', 'skip')
_MAX_WARNINGS = 10


class BadExampleError(errors.UserError):
  """An example that cannot be used. The message names source, file, record and position."""


class ExampleLog:
  """What an input tells of its examples, by their position in the run. Safe for threads.

  Attributes:
    describe: from a position to the words that name its example; None before an input was built that knows it.
    identities: of the sources that were built, each once: see identity.py.
  """

  def __init__(self):
    self.describe: Callable[[int], str] | None = None
    self.identities: list[dict[str, Any]] = []
    self._lock = threading.Lock()
    self._skipped: set[int] = set()
    self._warned: set[int] = set()

  def add_identity(self, identity: dict[str, Any]) -> None:
    """Notes the identity of a source; every pipeline of a distributed input says the same."""
    with self._lock:
      if identity not in self.identities:
        self.identities.append(identity)

  def add_skip(self, position: int, index: int, message: str) -> None:
    """Notes that the example `index`, at a position, is skipped; warns, once for each of the first few examples."""
    with self._lock:
      self._skipped.add(position)
      is_new = index not in self._warned and len(self._warned) < _MAX_WARNINGS
      if is_new:
        self._warned.add(index)
      is_last = len(self._warned) == _MAX_WARNINGS
    if is_new:
      logging.warning('skipped: %s%s', message, ' (further ones are only counted)' if is_last else '')

  def take_skips(self, end: int | None = None) -> int:
    """How many examples before a position were skipped since the last call.

    Input is read ahead of its use: what lies beyond `end` is counted when its time has come.

    Args:
      end: the position up to which examples have been used; None: all that were read.
    """
    with self._lock:
      used = {position for position in self._skipped if end is None or position < end}
      self._skipped -= used
    return len(used)


_LOG: contextvars.ContextVar[ExampleLog | None] = contextvars.ContextVar('example_log', default=None)


@contextlib.contextmanager
def logged_in(log: ExampleLog) -> Iterator[ExampleLog]:
  """Inputs that are built within tell `log` of their examples."""
  token = _LOG.set(log)
  try:
    yield log
  finally:
    _LOG.reset(token)


def current_log() -> ExampleLog:
  """The log of `logged_in`, outside of it a new one."""
  return _LOG.get() or ExampleLog()


def one_line(error: BaseException) -> str:
  """What an exception says, in one line of bounded length."""
  text = ' '.join(str(error).split())
  return f'{type(error).__name__}: {text[:200]}' if text else type(error).__name__


def paths(structure: Any, prefix: str = '') -> Iterator[str]:
  """The names of a structure's values, joined by '/', in the order of tf.nest.flatten: 'label', 'image/mask', '0'."""
  if isinstance(structure, Mapping):
    for name in sorted(structure):
      yield from paths(structure[name], f'{prefix}/{name}' if prefix else str(name))
  elif isinstance(structure, (list, tuple)):
    for number, part in enumerate(structure):
      yield from paths(part, f'{prefix}/{number}' if prefix else str(number))
  else:
    yield prefix
