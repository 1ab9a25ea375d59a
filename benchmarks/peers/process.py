"""The conductor's end of a measurement's process: see protocol.py."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
import pathlib
import selectors
import subprocess
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]


class PeerError(RuntimeError):
  """A process has ended, or has not answered in time; the message has the last lines of its output."""


@dataclasses.dataclass(frozen=True)
class Turn:
  """The result of a process's turn.

  Attributes:
    amount: of the workload's unit.
    seconds: on the wall.
    work_seconds: of all its cores.
    values: other measurements, such as the last loss.
    note: how the work was run.
    peak_bytes: the most memory that the process has had.
  """

  amount: int
  seconds: float
  work_seconds: float
  values: Mapping[str, float]
  note: str
  peak_bytes: int

  @property
  def rate(self) -> float:
    """Amount a second."""
    return self.amount / self.seconds


class Process:
  """One measurement, in a separate process.

  Attributes:
    ready: the process's description of itself: `multiple`, `parameters`, `first_loss`, `is_reduced`, `versions`.
    seconds_to_ready: from its start.
  """

  def __init__(self, command: Sequence[str], log: pathlib.Path, seconds_allowed: float = 600):
    """Starts it, and waits until it is ready.

    Args:
      command: of the process.
      log: where its standard error goes.
      seconds_allowed: for each answer.

    Raises:
      PeerError: it has ended, or is silent.
    """
    self._log, self._seconds_allowed, self._rest = log, seconds_allowed, b''
    start = time.perf_counter()
    with log.open('wb') as errors:
      self._process = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd=ROOT,
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
      )
    try:
      self.ready: Mapping[str, Any] = self._next()['ready']
    except BaseException:
      self.close()
      raise
    self.seconds_to_ready = time.perf_counter() - start

  def run(self, amount: int) -> Turn:
    """Lets it do an amount, and waits.

    Raises:
      PeerError: as in `__init__`.
    """
    return Turn(**self._ask({'amount': amount}))

  def loss(self) -> float | None:
    """The loss of the check batch after the work so far; None if the work has none.

    Raises:
      PeerError: as in `__init__`.
    """
    return self._ask({'loss': 'now'})['loss']

  @property
  def is_alive(self) -> bool:
    """Whether the process can still be asked."""
    return self._process.poll() is None

  def _ask(self, request: Mapping[str, Any]) -> Any:
    assert self._process.stdin is not None
    try:
      self._process.stdin.write(json.dumps(request).encode() + b'\n')
      self._process.stdin.flush()
    except BrokenPipeError:
      raise self._error('has ended') from None
    return self._next()

  def close(self) -> None:
    """Ends it."""
    if self._process.stdin is not None:
      try:
        self._process.stdin.close()
      except BrokenPipeError:
        pass
    self._wait()
    if self._process.stdout is not None:
      self._process.stdout.close()

  def _wait(self) -> None:
    try:
      self._process.wait(20)
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()

  def _next(self) -> Any:
    """The next message."""
    assert self._process.stdout is not None
    deadline = time.monotonic() + self._seconds_allowed
    with selectors.DefaultSelector() as selector:
      selector.register(self._process.stdout, selectors.EVENT_READ)
      while b'\n' not in self._rest:
        if not selector.select(max(0.0, deadline - time.monotonic())):
          self._process.kill()
          raise self._error(f'was silent for {self._seconds_allowed:.0f} s')
        more = os.read(self._process.stdout.fileno(), 2**16)
        if not more:
          self._wait()  # Its last output comes after it has closed the pipe.
          raise self._error('has ended')
        self._rest += more
    line, self._rest = self._rest.split(b'\n', 1)
    return json.loads(line)

  def _error(self, what: str) -> PeerError:
    lines = [line for line in self._log.read_text(errors='replace').splitlines() if line.strip()]
    return PeerError(f'{what}: {lines[-1].strip()[:300] if lines else "no message"}')
