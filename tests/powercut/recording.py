"""Records the writes of processes, by strace."""

from collections.abc import Sequence
import os
import pathlib
import shutil
import subprocess
import tempfile

from tests import train_processes
from tests.powercut import strace_log


def why_not() -> str | None:
  """Why calls cannot be recorded here; None if they can."""
  if shutil.which('strace') is None:
    return 'strace is not there; install it (Debian, Ubuntu: apt install strace)'
  with tempfile.TemporaryDirectory() as folder:
    log = os.path.join(folder, 'log')
    tried = subprocess.run(
      [*_command(log), 'touch', os.path.join(folder, 'file')], capture_output=True, text=True, check=False
    )
    if tried.returncode or 'O_CREAT' not in pathlib.Path(log).read_text():
      return f'strace cannot trace here, which containers may forbid: {tried.stderr.strip()[:200]}'
  return None


def _command(log: str) -> Sequence[str]:
  # --seccomp-bpf: calls that are not recorded cost nothing.
  return ['strace', '--seccomp-bpf', *strace_log.OPTIONS, '-o', log]


class Recorder:
  """A server of processes (see tests/prefork.py) all of whose calls are logged.

  Attributes:
    server: starts them.
  """

  def __init__(self, folder: pathlib.Path):
    """Starts it.

    Args:
      folder: gets the log.
    """
    self._log = folder / 'strace.log'
    self.server = train_processes.Server(under=_command(str(self._log)))
    self._read = 0
    self.server.start([], folder / 'empty.log', script=pathlib.Path(os.devnull)).wait()  # Until TensorFlow is imported.
    self.calls()

  def calls(self) -> Sequence[strace_log.Call]:
    """The calls since the last time."""
    with self._log.open() as file:
      file.seek(self._read)
      text = file.read()
    text = text[: text.rfind('\n') + 1]
    self._read += len(text)  # All of it is ASCII.
    return list(strace_log.read(text))

  def close(self) -> None:
    self.server.close()


def record_command(command: Sequence[str], log: pathlib.Path, cwd: pathlib.Path) -> Sequence[strace_log.Call]:
  """The calls of one command, which imports nothing that takes long.

  Raises:
    RuntimeError: it fails.
  """
  done = subprocess.run([*_command(str(log)), *command], capture_output=True, text=True, check=False, cwd=cwd)
  if done.returncode:
    raise RuntimeError(f'{" ".join(command)}: status {done.returncode}: {done.stderr[-2000:]}')
  return list(strace_log.read(log.read_text()))
