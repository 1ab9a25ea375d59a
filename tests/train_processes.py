"""train.py, or another script, as a process that is forked from one that has TensorFlow imported."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAIN = ROOT / 'train.py'
_START_SECONDS = 600  # Importing TensorFlow takes 12 seconds of a processor, which has other work too.
_END_SECONDS = 10


def environment(changes: Mapping[str, str | None] | None = None) -> Mapping[str, str]:
  """This process's environment with `changes`, of which None takes a name away.

  No GPU: a test must not depend on its machine.
  """
  kept = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
  changed = {**kept, 'CUDA_VISIBLE_DEVICES': '', 'COLUMNS': '120', **(changes or {})}
  return {name: value for name, value in changed.items() if value is not None}


# The environment of a process whose programs run for a few steps only: compiling them is most of its time.
UNOPTIMISED = {'XLA_FLAGS': '--xla_backend_optimization_level=0'}


def dumping_programs(folder: pathlib.Path) -> dict[str, str]:
  """The environment of such a process, for which XLA writes its programs as text into a folder."""
  return {'XLA_FLAGS': f'{UNOPTIMISED["XLA_FLAGS"]} --xla_dump_to={folder} --xla_dump_hlo_as_text'}


def slurm_variables(rank: int, step: str) -> dict[str, str]:
  """The environment that SLURM gives to one of two workers on this machine; their step must differ from others'."""
  return {
    'SLURM_JOB_ID': str(os.getpid()),
    'SLURM_STEP_ID': step,
    'SLURM_STEP_NUM_TASKS': '2',
    'SLURM_NTASKS': '2',
    'SLURM_STEP_NODELIST': 'localhost',
    'SLURM_STEP_TASKS_PER_NODE': '2',
    'SLURM_PROCID': str(rank),
    'SLURM_LOCALID': str(rank),
    'SLURM_NODEID': '0',
  }


@dataclasses.dataclass
class _Child:
  """A process that a server has forked: its number, and its exit status, or minus its signal, once it has ended."""

  pid: int
  returncode: int | None = None


class Server:
  """A process that has TensorFlow imported, and forks: see prefork.py."""

  def __init__(self, under: Sequence[str] = ()):
    """Starts it.

    Args:
      under: words before its command, such as those of strace.
    """
    self._process = subprocess.Popen(
      [*under, sys.executable, '-m', 'tests.prefork'],
      cwd=ROOT,
      env=environment(),
      text=True,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
    )
    self._changed = threading.Condition()
    self._has_ended = False
    self._started: _Child | None = None
    self._running: dict[int, _Child] = {}  # By their numbers, which the system gives again to later ones.
    self._starting = threading.Lock()
    threading.Thread(target=self._read, daemon=True).start()

  def _read(self):
    for line in self._process.stdout:
      self._note(json.loads(line))
    with self._changed:
      self._has_ended = True
      self._changed.notify_all()

  def _note(self, answer: Mapping[str, int]) -> None:
    with self._changed:
      if 'status' in answer:
        self._running.pop(answer['pid']).returncode = answer['status']
      else:
        self._started = self._running[answer['pid']] = _Child(answer['pid'])
      self._changed.notify_all()

  def start(
    self,
    arguments: Sequence[str],
    stdout: pathlib.Path,
    stderr: pathlib.Path | None = None,
    env: Mapping[str, str | None] | None = None,
    cwd: pathlib.Path = ROOT,
    script: pathlib.Path = TRAIN,
  ) -> 'ForkedProcess':
    """Starts `python SCRIPT ARGUMENTS`, its output at the end of files; without `stderr`, both in one."""
    request = {
      'script': str(script),
      'arguments': [str(argument) for argument in arguments],
      'environment': dict(environment(env)),
      'cwd': str(cwd),
      'stdout': str(stdout),
      'stderr': stderr and str(stderr),
    }
    with self._starting, self._changed:
      self._started = None
      self._process.stdin.write(json.dumps(request) + '\n')
      self._process.stdin.flush()
      if not self._changed.wait_for(lambda: self._started is not None, _START_SECONDS):
        raise RuntimeError('the server does not answer')
      return ForkedProcess(self, self._started)

  def status(self, child: '_Child', timeout: float | None) -> int | None:
    """The exit status of a child, or minus its signal; None if it still runs after `timeout` seconds."""
    with self._changed:
      self._changed.wait_for(lambda: child.returncode is not None or self._has_ended, timeout)
      if child.returncode is None and self._has_ended:
        raise RuntimeError('the process that forks has ended, and with it the status of its children')
      return child.returncode

  def close(self) -> None:
    """Ends the server. Its children continue."""
    self._process.stdin.close()
    try:
      self._process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()


class ForkedProcess:
  """A child of a `Server`, with subprocess.Popen's words."""

  def __init__(self, server: Server, child: _Child):
    self._server, self.child, self.pid = server, child, child.pid
    self.stdout = None

  @property
  def returncode(self) -> int | None:
    return self.child.returncode

  def poll(self) -> int | None:
    return self._server.status(self.child, 0)

  def wait(self, timeout: float | None = None) -> int:
    status = self._server.status(self.child, timeout)
    if status is None:
      raise subprocess.TimeoutExpired(f'process {self.pid}', timeout or 0)
    return status

  def send_signal(self, number: int) -> None:
    if self.poll() is None:
      os.kill(self.pid, number)

  def kill(self) -> None:
    self.send_signal(signal.SIGKILL)


class PipedProcess(ForkedProcess):
  """A child whose output, stdout and stderr in one, comes through the text pipe `stdout`."""

  def __init__(self, server: Server, arguments: Sequence[str], env=None, cwd=ROOT):
    with tempfile.TemporaryDirectory() as folder:
      fifo = pathlib.Path(folder) / 'output'
      os.mkfifo(fifo)
      reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
      super().__init__(server, server.start(arguments, fifo, env=env, cwd=cwd).child)
      select.select([reader], [], [], _START_SECONDS)  # Until the writer has opened it, which may come after its start.
      os.set_blocking(reader, True)
    self.stdout = os.fdopen(reader, 'r')

  def communicate(self, timeout: float | None = None):
    """(the rest of the output, None) at the end of the process."""
    output = []
    if self.stdout is not None:
      thread = threading.Thread(target=lambda: output.append(self.stdout.read()), daemon=True)
      thread.start()
      deadline = None if timeout is None else time.monotonic() + timeout
      thread.join(timeout)
      timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
    self.wait(timeout)
    return ''.join(output), None


def run(
  server: Server, arguments: Sequence[str], timeout: float, env=None, cwd=ROOT, script=TRAIN
) -> subprocess.CompletedProcess:
  """Runs a script to its end; after `timeout` seconds it is killed.

  Raises:
    subprocess.TimeoutExpired: it was killed.
  """
  with tempfile.TemporaryDirectory() as folder:
    stdout, stderr = pathlib.Path(folder) / 'stdout', pathlib.Path(folder) / 'stderr'
    process = server.start(arguments, stdout, stderr, env, cwd, script)
    try:
      status = process.wait(timeout)
    except subprocess.TimeoutExpired:
      process.kill()
      raise
    return subprocess.CompletedProcess([str(script), *arguments], status, stdout.read_text(), stderr.read_text())


class Script:
  """A process that runs code, forked from one that has TensorFlow imported."""

  def __init__(self, server, folder: pathlib.Path, code, arguments=(), env=None):
    self._folder, self._arguments = folder, arguments
    script = folder / 'script.py'
    script.write_text(textwrap.dedent(code))
    self.process = server.start(arguments, folder / 'stdout', folder / 'stderr', env, script=script)

  def stdout(self) -> str:
    """Its output so far."""
    path = self._folder / 'stdout'
    return path.read_text() if path.exists() else ''

  def finish(self, timeout=120) -> subprocess.CompletedProcess:
    """Waits for its end: its status, stdout and stderr."""
    status = self.process.wait(timeout)
    output = ((self._folder / name).read_text() for name in ('stdout', 'stderr'))
    return subprocess.CompletedProcess(self._arguments, status, *output)

  def kill(self) -> None:
    self.process.kill()
