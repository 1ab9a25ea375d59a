"""Names and counts examples that cannot be read, parsed, decoded or put into a batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import contextvars
import threading

from absl import logging

from official_ext.base import errors

ACTIONS = ('error', 'skip')
_MAX_WARNINGS = 10


class BadExampleError(errors.UserError):
  """Raised for an example that cannot be used. The message names source, file, record and position."""


class ExampleLog:
  """A log of an input's reports about its examples, by their position in the run. Thread-safe.

  Attributes:
    describe: a function from a position to a description of its example; None until an input that has one is built.
    identities: of the sources that were built, each once: see data_identity.py.
    summaries: how many examples these have, in words: `Source.summary`.
    balances: their accounts, as JSON values: `Source.balance`.
  """

  def __init__(self):
    self.describe: Callable[[int], str] | None = None
    self.identities: list[dict[str, object]] = []
    self.summaries: list[str] = []
    self.balances: list[dict[str, object]] = []
    self._lock = threading.Lock()
    self._skipped: set[int] = set()
    self._warned: set[int] = set()

  def add_source(self, identity: dict[str, object], summary: str, balance: Sequence[dict[str, object]] = ()) -> None:
    """Notes a source; every pipeline of a distributed input reports the same one."""
    with self._lock:
      if identity not in self.identities:
        self.identities.append(identity)
        self.summaries.append(summary)
        self.balances += balance

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

  def forget_skips(self, first: int, end: int) -> int:
    """Forgets the examples at positions from `first` to before `end` that were skipped; returns how many."""
    with self._lock:
      found = {position for position in range(first, end) if position in self._skipped}
      self._skipped -= found
    return len(found)

  def take_skips(self, end: int | None = None) -> int:
    """The number of examples before a position that were skipped since the last call.

    Input is read ahead of its use: skips beyond `end` are counted later, when `end` has passed them.

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
  """A context: inputs that are built in it report their examples to `log`."""
  token = _LOG.set(log)
  try:
    yield log
  finally:
    _LOG.reset(token)


def current_log() -> ExampleLog:
  """The log of the enclosing `logged_in`; outside of one, a new log."""
  return _LOG.get() or ExampleLog()


def reason_of_file(error: BaseException) -> str:
  """Why a file or a record of it cannot be read, in one line, without the type of Python's exception."""
  if isinstance(error, RecursionError):
    return 'its lists are nested too deeply'
  if 'set_int_max_str_digits' in str(error):
    return 'an integer has too many digits'
  return ' '.join(errors.reason_of(error).split())[:200] or 'it is damaged'


def one_line(error: BaseException) -> str:
  """The message of an exception, in one line of bounded length."""
  text = ' '.join(str(error).split())
  return f'{type(error).__name__}: {text[:200]}' if text else type(error).__name__


def paths(structure: object, prefix: str = '') -> Iterator[str]:
  """The names of a structure's values, joined by '/', in the order of tf.nest.flatten: 'label', 'image/mask', '0'."""
  if isinstance(structure, Mapping):
    for name in sorted(structure):
      yield from paths(structure[name], f'{prefix}/{name}' if prefix else str(name))
  elif isinstance(structure, (list, tuple)):
    for number, part in enumerate(structure):
      yield from paths(part, f'{prefix}/{number}' if prefix else str(number))
  else:
    yield prefix
