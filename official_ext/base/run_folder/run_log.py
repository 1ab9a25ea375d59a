"""Keeps the output of a run in `run.log` in its folder, as a starter of detached runs does.

`copying` replaces sys.stdout and sys.stderr by streams that also hand their text to a log. The log holds the lines in
memory until `begin` names the folder: a run that is refused leaves no file. Each line is one write to the file, so that
the lines of a killed process stay.

The file holds what Python prints. Libraries in C++ and child processes write to the descriptors of the process, and so
to the terminal alone; the file of a detached run, which has these descriptors, has their lines too. The process that
prints into the file already, as a detached run does, keeps no second copy.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import glob
import os
import re
import stat
import sys
import threading
from typing import Any, TextIO

from absl import logging

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import launcher
from official_ext.base import safe_text
from official_ext.base import tracebacks
from official_ext.base.files import local_files
from official_ext.base.files import paths

_MAX_HELD = 10_000  # Lines before the run begins.
_MAX_LINE = 1 << 16  # Characters of a line that does not end.
_CONTROL = re.compile(r'\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)')


def path_of(model_dir: str, mode: str = 'train') -> str:
  """The path of the output of a run: modes that train share `run.log`, each other mode has its own file."""
  return os.path.join(model_dir, 'run.log' if 'train' in mode else f'run.{mode}.log')


_lock = threading.RLock()  # A signal handler may print.


def _renew_lock() -> None:
  """Frees the lock in a forked process, which has no thread that would release it."""
  global _lock
  _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class _Log:
  """Lines of text; held in memory until there is a file."""

  def __init__(self):
    self._held: list[str] | None = []
    self._file: int | None = None

  def begin(self, path: str, header: str) -> None:
    """Writes the header and the held lines to the end of a file, which takes all later lines. '' for no file.

    A file that cannot be written is reported in a warning: it does not end a run.
    """
    with _lock:
      held, self._held = self._held or [], None
      if not path or self._file is not None or _is_written_already(path):
        return
      try:
        self._file = local_files.open_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
      except OSError as error:
        print(
          f'warning: {path}: cannot be written: {errors.reason_of(error)}; move it away, to keep the output',
          file=sys.stderr,
          flush=True,
        )
        return
      for line in [header, *held]:
        self.add(line)

  def add(self, line: str) -> None:
    """Takes a line, without its end."""
    with _lock:
      if self._held is not None:
        if len(self._held) < _MAX_HELD:
          self._held.append(line)
      elif self._file is not None:
        with contextlib.suppress(OSError):  # As on a full disk; the run has its own reports of that.
          os.write(self._file, f'{safe_text.mask(line)}\n'.encode(errors='backslashreplace'))

  def close(self) -> None:
    """Ends the file."""
    with _lock:
      self._held = None
      if self._file is not None:
        os.close(self._file)
        self._file = None


class CopiedStream:
  """A text stream whose lines go to a log too; it otherwise behaves as the stream inside it.

  Attributes:
    original: the stream inside it, for text that is not to be copied, such as a line that is redrawn.
  """

  def __init__(self, original: TextIO, add: Callable[[str], None]):
    self.original = original
    self._add = add
    self._rest = ''

  def write(self, text: str) -> int:
    """Writes the text, and copies the lines that end in it."""
    return self.write_as(text, text)

  def write_as(self, shown: str, text: str) -> int:
    """Writes `shown`, and copies the lines of `text`, as of one that is broken into the rows of a terminal."""
    self.original.write(shown)
    with _lock:
      *lines, rest = (self._rest + text).split('\n')
      self._rest = rest.rpartition('\r')[2][-_MAX_LINE:] if not rest.endswith('\r') else rest[-_MAX_LINE:]
      for line in lines:
        self._add(_plain(line))
    return len(text)

  def writelines(self, lines: Any) -> None:
    """See `write`."""
    for line in lines:
      self.write(line)

  def end_line(self) -> None:
    """Copies a last line that has no end."""
    rest, self._rest = self._rest, ''
    if rest.strip():
      self._add(_plain(rest))

  def __iter__(self) -> Iterator[str]:
    return iter(self.original)

  def __getattr__(self, name: str) -> Any:
    return getattr(self.original, name)


def _plain(line: str) -> str:
  """A line as it stands in the end: without the parts that a carriage return has overwritten, and without colours."""
  return _CONTROL.sub('', line.rstrip('\r').rpartition('\r')[2])


_logs: list[_Log] = []


@contextlib.contextmanager
def copying() -> Iterator[None]:
  """A context in which printed lines are kept for the run that begins in it: see `begin`.

  An error that leaves the context is the last line of the log.
  """
  log, before = _Log(), (sys.stdout, sys.stderr)
  streams = [CopiedStream(stream, log.add) if stream is not None else None for stream in before]
  handler = logging.get_absl_handler().python_handler
  handles_stderr = handler.stream is before[1]
  sys.stdout, sys.stderr = streams
  if handles_stderr:
    handler.stream = sys.stderr
  _logs.append(log)
  try:
    yield
  except BaseException as error:
    log.add(_describe(error))
    raise
  finally:
    _logs.remove(log)
    for place, name in enumerate(('stdout', 'stderr')):
      if getattr(sys, name) is streams[place]:
        setattr(sys, name, before[place])
    if handles_stderr and handler.stream is streams[1]:
      handler.stream = before[1]
    for stream in filter(None, streams):
      stream.end_line()
    log.close()


def _describe(error: BaseException) -> str:
  label = 'preempted' if isinstance(error, errors.PreemptedError) else 'error'
  is_ours = type(error).__module__ == errors.__name__
  return f'{label}: {tracebacks.text_of(error) if is_ours else tracebacks.message_of(error)}'


def begin(model_dir: str, mode: str, attempt: int, keeps: bool) -> None:
  """Begins the file of the run in a folder, if `copying` is active: `[TIME] attempt N: COMMAND`, then its lines.

  Args:
    model_dir: the run's folder. One that is remote gets no file: appending would write it whole for each line.
    mode: the driver's.
    attempt: the number of the start, from 1.
    keeps: whether this process keeps the output; of several workers, only the chief does.
  """
  if not _logs:
    return
  path = path_of(model_dir, mode) if keeps and not paths.is_remote(model_dir) else ''
  command = safe_text.printable(launcher.own_command())
  _logs[-1].begin(path, f'[{json_values.timestamp_now()}] attempt {attempt}: {command}')


def _is_written_already(path: str) -> bool:
  """Whether the output of this process is in a file already: its own, through its launcher, or a pipe as to `tee`."""
  parent = (launcher.own_launcher() or {}).get('pid')
  descriptors: list[int | str] = [1, 2]
  if parent is not None:
    descriptors += [f'/proc/{parent}/fd/{number}' for number in (1, 2)]
  try:
    file = os.stat(path)
  except OSError:  # It does not exist yet.
    return False
  outputs = _stats(descriptors)
  if any(os.path.samestat(each, file) for each in outputs):
    return True
  pipes = [each for each in outputs if stat.S_ISFIFO(each.st_mode)]
  if not pipes:
    return False
  others = set(glob.glob('/proc/[0-9]*')) - {f'/proc/{os.getpid()}'}
  held = (_stats(glob.glob(f'{folder}/fd/*')) for folder in others)  # None of another user's.
  return any(
    any(os.path.samestat(each, file) for each in found)
    and any(os.path.samestat(each, pipe) for each in found for pipe in pipes)
    for found in held
  )


def _stats(descriptors: Iterable[int | str]) -> list[os.stat_result]:
  """Of the ones that can be read."""
  found = []
  for descriptor in descriptors:
    with contextlib.suppress(OSError):
      found.append(os.stat(descriptor))
  return found
