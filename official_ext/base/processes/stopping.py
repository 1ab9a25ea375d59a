"""The signals that stop processes: who sends them, and their names."""

import contextlib
import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _libc() -> ctypes.CDLL | None:
  with contextlib.suppress(OSError):
    return ctypes.CDLL(None)
  return None


_LIBC = _libc()  # Loaded before a fork: a child must not load libraries until its exec.


def signals() -> tuple[signal.Signals, ...]:
  """The signals that ask a process to stop: SIGTERM, SIGINT, and SIGHUP unless it is ignored, as under nohup."""
  is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
  return (signal.SIGTERM, signal.SIGINT, *(() if is_ignored else (signal.SIGHUP,)))


def name_of(number: int) -> str:
  """The name of a signal, such as SIGTERM; `signal 77` if it has none."""
  try:
    return signal.Signals(number).name
  except ValueError:
    return f'signal {number}'


def end_with_parent(number: int = signal.SIGTERM) -> None:
  """Makes the kernel send a signal to this process when its parent has ended. Call it between fork and exec.

  Does nothing on other systems than Linux.
  """
  _prctl(_PR_SET_PDEATHSIG, number)


def adopt_descendants() -> None:
  """Makes this process the parent of descendants whose parents have ended. Does nothing on other systems than Linux."""
  _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
  if _LIBC is not None and hasattr(_LIBC, 'prctl'):
    _LIBC.prctl(option, int(value), 0, 0, 0)
