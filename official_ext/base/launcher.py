"""What a process knows of its launcher, which restarts lost workers: commands, environments, and heartbeats.

The first part records how a process was started: its command, and the relevant part of its environment. The second is
the pipe from a worker (`SignsOfLife`) to its launcher (`Listener`, see operations/launch.py). A worker that hangs in a
native function, which keeps Python's lock, can neither report that nor end itself: its launcher misses the heartbeats.
"""

from collections.abc import Mapping, Sequence
import contextlib
import faulthandler
import io
import json
import os
import re
import shlex
import signal
import stat
import sys

from official_ext.base import hardware
from official_ext.base import json_values
from official_ext.base import processes
from official_ext.base import safe_text

CLUSTER_VARIABLE = 'TF_CONFIG'
# The variables that decide which code and data are found, and the computation; credentials are left out below. The
# first two this library sets by itself, the next two scikit-learn.
_MATTERS = re.compile(
  r'(?!TF_USE_LEGACY_KERAS|TF_CPP_MIN_LOG_LEVEL|KMP_DUPLICATE_LIB_OK|KMP_INIT_AT_FORK)'
  r'(?:PYTHON(?:PATH|HASHSEED|OPTIMIZE|UTF8)|LD_(?:LIBRARY_PATH|PRELOAD)'
  r'|(?:CUDA|CUDNN|CUBLAS|NVIDIA|ROCR|HIP|NCCL|OMP|MKL|KMP|OPENBLAS|XLA|TF|TFDS|TFHUB|JAX|KERAS|TORCH|PYTORCH|HF|'
  r'TRANSFORMERS)_[A-Z0-9_]+)'
)
# Assigned at each start, by the queue for example: the present value counts.
_GIVEN_OUT = (hardware.CUDA_VARIABLE,)


def own_command() -> str:
  """The command of this process as a shell takes it, with passwords masked: `-m` and Python's own flags included."""
  arguments = sys.argv[1:]
  place = len(sys.orig_argv) - len(arguments)
  # A process that was forked, or has changed its arguments, is recognized by these alone.
  has_origin = bool(arguments) and place > 1 and sys.orig_argv[place:] == arguments
  words = sys.orig_argv[1:place] if has_origin else sys.argv[:1]
  return shlex.join([sys.executable, *map(safe_text.mask, [*words, *arguments])])


def command_note(words: Sequence[str], cwd: str) -> dict[str, str | bool]:
  """The entries of a note about a command that is to run: `own_command`, with passwords masked, `is_masked` and
  `cwd`."""
  shown = safe_text.mask(shlex.join(map(safe_text.mask, words)))
  return {'command': shown, 'is_masked': shown != shlex.join(words), 'cwd': cwd}


def relevant_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
  """The relevant variables of an environment, by default this process's, without any that holds a password."""
  return {
    name: value
    for name, value in sorted((_own_environment() if variables is None else variables).items())
    if _matters(name) and safe_text.mask_values({name: value})[name] == value
  }


def _own_environment() -> dict[str, str]:
  """This process's variables; LD_* as at its start, when the loader read them: imports such as cv2's append to them."""
  try:
    with open('/proc/self/environ', 'rb') as file:
      words = [os.fsdecode(word) for word in file.read().split(b'\0')]
  except OSError:  # Another system.
    return dict(os.environ)
  at_start = dict(word.split('=', 1) for word in words if word.startswith('LD_') and '=' in word)
  return {**{name: value for name, value in os.environ.items() if not name.startswith('LD_')}, **at_start}


def restored_environment(recorded: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
  """An environment with the recorded relevant variables, and the present values of all others.

  Args:
    recorded: the result of `relevant_environment`.
    present: the current environment. The GPUs that may be used, if it names them.
  """
  kept = {
    name: value for name, value in present.items() if name in _GIVEN_OUT or not _matters(name) or _is_secret(name)
  }
  return {**recorded, **kept}


def num_tasks(recorded: Mapping[str, str]) -> int:
  """How many processes a recorded environment says that a run has."""
  try:
    cluster = json.loads(recorded.get(CLUSTER_VARIABLE) or '{}').get('cluster', {})
    return max(1, sum(map(len, cluster.values())))
  except (AttributeError, TypeError, ValueError, RecursionError):
    return 1


def _matters(name: str) -> bool:
  return _MATTERS.fullmatch(name) is not None


def _is_secret(name: str) -> bool:
  return safe_text.mask_values({name: 'a'})[name] != 'a'


# A worker that gives signs of life answers by where its threads are, on stderr. Not every system has it.
STACKS_SIGNAL = getattr(signal, 'SIGQUIT', signal.SIGTERM)
_VARIABLE = 'OFFICIAL_EXT_LAUNCHER'
_PIPE = 'signs_of_life'
_ALIVE, _LEAVES = b'+', b'-'


def worker_environment(signs: int | None = None) -> Mapping[str, str]:
  """The variables that the launcher, which is this process, adds to the environment of a worker.

  Args:
    signs: a descriptor that the worker inherits, of a pipe that takes its signs of life; None for no pipe.
  """
  started = {'command': own_command(), 'environment': relevant_environment(), _PIPE: signs}
  return {_VARIABLE: json.dumps({**processes.own_identity().as_dict(), **started})}


def own_launcher() -> json_values.JsonObject | None:
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
    """Says that Python runs in this process. After the first call it must be repeated."""
    self._write(_ALIVE)

  def leave(self) -> None:
    """Says that no more signs will come."""
    self._write(_LEAVES)

  def _write(self, sign: bytes) -> None:
    if self._pipe is not None:
      with contextlib.suppress(OSError):  # The launcher has ended; or does not read, and has heartbeats in the pipe.
        os.write(self._pipe, sign)


def _is_pipe(descriptor: int) -> bool:
  """Whether a descriptor still is a pipe here: the launcher's program may have closed it before it has started this."""
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
