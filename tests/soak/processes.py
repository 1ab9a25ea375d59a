"""Training runs as processes that can be killed at a chosen moment."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import datetime
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
from typing import Any

from tests import train_processes

_POLL_SECONDS = 0.002
# After which a run hangs: one that is only slow, because other work shares its cores, compiles for minutes.
_LONGEST_SECONDS = 1200


class RealProcess:
  """`python train.py ARGUMENTS`."""

  def __init__(self, arguments: Sequence[str], log: pathlib.Path, env: Mapping[str, str] | None = None):
    with log.open('ab') as output:
      self._process = subprocess.Popen(
        [sys.executable, str(train_processes.ROOT / 'train.py'), *arguments],
        cwd=train_processes.ROOT,
        env=train_processes.environment(env),
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
      )
    self.pid = self._process.pid

  def poll(self) -> int | None:
    return self._process.poll()

  def wait(self, timeout: float) -> int:
    return self._process.wait(timeout)


@dataclasses.dataclass
class Moment:
  """When to kill: asked every two milliseconds.

  Attributes:
    name: for people.
    has_come: called with (the run's folder, seconds since the start of this attempt).
    delay: seconds to wait then.
  """

  name: str
  has_come: Callable[[pathlib.Path, float], bool]
  delay: float = 0.0


def after(seconds: float) -> Moment:
  return Moment(f'after {seconds:.2f} s', lambda folder, elapsed: elapsed >= seconds)


def in_stage(stage: str, step: int = 0, delay: float = 0.0) -> Moment:
  """When run.json of this attempt says 'train', 'eval' or 'save' at `step` or later."""
  began = time.time()

  def has_come(folder, elapsed):
    record = read_record(folder)
    return started(record) >= began and record.get('stage') == stage and (record.get('step') or 0) >= step

  return Moment(f'in {stage} from step {step}', has_come, delay)


def in_writing(step: int = 0) -> Moment:
  """When there are files of a checkpoint at `step` or later, and no manifest yet."""
  return Moment(f'writing a checkpoint from {step}', lambda folder, elapsed: any(s >= step for s in unfinished(folder)))


def read_record(folder: pathlib.Path) -> Mapping[str, Any]:
  """run.json; {} where there is none."""
  try:
    return json.loads((folder / 'run.json').read_text())
  except (OSError, ValueError):
    return {}


def started(record: Mapping[str, Any]) -> float:
  """When the attempt in run.json began, in seconds since 1970; 0 where it tells of none."""
  text = record.get('started')
  # Written in milliseconds, rounded down.
  return datetime.datetime.fromisoformat(text).timestamp() + 0.001 if text else 0.0


def unfinished(folder: pathlib.Path) -> set[int]:
  """The steps of checkpoints that are being written, or were cut off."""
  try:
    names = os.listdir(folder)
  except FileNotFoundError:
    return set()
  steps = {int(match[1]) for match in (re.match(r'ckpt-(\d+)(?!.*\.broken)', name) for name in names) if match}
  return {step for step in steps if f'ckpt-{step}.manifest.json' not in names}


class Attempt:
  """One start of a run: a process, or one for each worker."""

  def __init__(self, folder: pathlib.Path, processes: Sequence[object]):
    self._folder, self._processes, self._began = folder, list(processes), time.monotonic()

  def kill_at(self, moment: Moment, which: Sequence[int] | None = None, timeout: float = _LONGEST_SECONDS) -> bool:
    """Kills the processes (of these workers; None: all) when `moment` has come.

    Returns:
      False where the run had ended before.
    """
    if not self._reach(moment, timeout):
      return False
    alive = all(process.poll() is None for process in self._processes)
    self._kill(range(len(self._processes)) if which is None else which)
    return alive

  def starve_at(self, moment: Moment, num_bytes: int = 2**20, timeout: float = _LONGEST_SECONDS) -> bool:
    """Lets the processes have no more memory than `num_bytes` beyond their memory at `moment`.

    Returns:
      False where the run had ended before.
    """
    if not self._reach(moment, timeout):
      return False
    for process in self._processes:
      size = re.search(r'VmSize:\s+(\d+) kB', pathlib.Path(f'/proc/{process.pid}/status').read_text())
      limit = int(size[1]) * 1024 + num_bytes
      resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))
    return True

  def move_at(self, moment: Moment, control_group: pathlib.Path, timeout: float = _LONGEST_SECONDS) -> bool:
    """Moves the processes into a control group at `moment`.

    Returns:
      False where the run had ended before.
    """
    if not self._reach(moment, timeout):
      return False
    for process in self._processes:
      (control_group / 'cgroup.procs').write_text(str(process.pid))
    return True

  def _reach(self, moment: Moment, timeout: float) -> bool:
    """Waits for a moment; False where the run has ended before."""
    while not moment.has_come(self._folder, elapsed := time.monotonic() - self._began):
      if any(process.poll() is not None for process in self._processes):
        return False
      if elapsed > timeout:
        self._kill(range(len(self._processes)))
        raise TimeoutError(f'{moment.name} has not come in {timeout} s')
      time.sleep(_POLL_SECONDS)
    time.sleep(moment.delay)
    return True

  def _kill(self, which):
    for index in which:
      if self._processes[index].poll() is None:
        os.kill(self._processes[index].pid, signal.SIGKILL)

  def wait(self, timeout: float = _LONGEST_SECONDS) -> list[int]:
    """Waits for the end; the exit statuses. The rest is killed then.

    Raises:
      TimeoutError: it has not ended.
    """
    deadline = time.monotonic() + timeout
    try:
      return [process.wait(max(0.01, deadline - time.monotonic())) for process in self._processes]
    except subprocess.TimeoutExpired:
      self._kill(range(len(self._processes)))
      raise TimeoutError(f'still running after {timeout} s') from None
