"""The process that starts the workers of a run, and starts them again when one is lost. No TensorFlow.

A worker sends it heartbeats through a pipe: one whose interpreter hangs, as a native function keeps Python's lock, can
neither report that nor end itself.
"""

from collections.abc import Mapping
import contextlib
import faulthandler
import io
import json
import os
import signal
import stat
import sys

from official_ext.base import json_types
from official_ext.base.processes import invocation
from official_ext.base.processes import process_identity

# A worker that gives signs of life answers by where its threads are, on stderr. Not every system has it.
STACKS_SIGNAL = getattr(signal, 'SIGQUIT', signal.SIGTERM)
# The variable of a worker's environment by whose value the workers of a run know each other.
SECRET = 'OFFICIAL_EXT_SECRET'
_VARIABLE = 'OFFICIAL_EXT_LAUNCHER'
_PIPE = 'signs_of_life'
_ALIVE, _LEAVES = b'+', b'-'


def told(signs: int | None = None) -> Mapping[str, str]:
  """The variables that the launcher, which is this process, adds to the environment of a worker.

  Args:
    signs: a descriptor that the worker inherits, of a pipe that takes its signs of life; None: there is none.
  """
  started = {'command': invocation.command(), 'environment': invocation.environment(), _PIPE: signs}
  return {_VARIABLE: json.dumps({**process_identity.own().as_dict(), **started})}


def own() -> json_types.JsonObject | None:
  """The identity, command and environment of this process's launcher, as JSON values; None if it has none."""
  values = _of_parent()
  return values and {name: value for name, value in values.items() if name != _PIPE}


def is_worker(pid: int) -> bool:
  """Whether a process that is seen from here was started by a launcher, or by a descendant of one."""
  try:
    with open(f'/proc/{pid}/environ', 'rb') as file:
      return any(variable.startswith(f'{_VARIABLE}='.encode()) for variable in file.read().split(b'\0'))
  except OSError:
    return False


def _of_parent() -> dict[str, object] | None:
  try:
    values = json.loads(os.environ.get(_VARIABLE, ''))
  except (ValueError, RecursionError):
    return None
  # A worker's own children inherit the variable, and have another parent.
  return values if isinstance(values, dict) and values.get('pid') == os.getppid() else None


class SignsOfLife:
  """The reports of a worker to its launcher; none without a launcher."""

  def __init__(self):
    """Sends no heartbeat yet, and need not."""
    pipe = (_of_parent() or {}).get(_PIPE)
    self._pipe = pipe if isinstance(pipe, int) and _is_pipe(pipe) else None
    if self._pipe is not None:
      os.set_blocking(self._pipe, False)
      with contextlib.suppress(AttributeError, OSError, io.UnsupportedOperation):  # A stderr that is not a file.
        faulthandler.register(STACKS_SIGNAL, sys.stderr, all_threads=True)

  def give(self) -> None:
    """Says that Python runs in this process. From the first time on it has to be said again and again."""
    self._write(_ALIVE)

  def leave(self) -> None:
    """Says that no more signs come."""
    self._write(_LEAVES)

  def _write(self, sign: bytes) -> None:
    if self._pipe is not None:
      with contextlib.suppress(OSError):  # The launcher has ended; or does not read, and has heartbeats in the pipe.
        os.write(self._pipe, sign)


def _is_pipe(descriptor: int) -> bool:
  """Whether it still is one here: the launcher's program may have closed it before it has started this."""
  try:
    return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
  except OSError:
    return False


class Listener:
  """The launcher's end of the pipe for the signs of one worker.

  Attributes:
    signs: the descriptor that the worker inherits; close it here when the worker has started.
    silent_seconds: how long the worker has owed a sign, in seconds of `listen`; 0 while it owes none.
  """

  def __init__(self):
    """Makes the pipe."""
    self._pipe, self.signs = os.pipe()
    os.set_blocking(self._pipe, False)
    self._owes = False
    self.silent_seconds = 0.0

  def listen(self, seconds: float) -> None:
    """Takes the signs that have come.

    Args:
      seconds: that have passed since the call before, as long as this process did not hang itself.
    """
    try:
      signs = os.read(self._pipe, 1 << 16)
    except BlockingIOError:
      signs = b''
    if signs:
      self._owes = not signs.endswith(_LEAVES)
    self.silent_seconds = self.silent_seconds + seconds if self._owes and not signs else 0.0

  def close(self) -> None:
    """Listens no longer."""
    os.close(self._pipe)
