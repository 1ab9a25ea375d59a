"""Lets this library and one peer after the other take turns at a workload."""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import pathlib

from benchmarks.peers import checks
from benchmarks.peers import entries
from benchmarks.peers import environments
from benchmarks.peers import process
from benchmarks.peers import report
from benchmarks.peers import rounds


@dataclasses.dataclass(frozen=True)
class Settings:
  """How long it takes.

  Attributes:
    num_rounds: of each peer; 0 for the workload's own.
    seconds: of a turn; 0 for the workload's own.
    cores: that each process has; 0 for all.
  """

  num_rounds: int = 0
  seconds: float = 0.0
  cores: int = 0


@dataclasses.dataclass
class _Started:
  """A process that has had its first turn.

  Attributes:
    peer: its definition.
    running: the process.
    first: its first turn, in which it has compiled; None if turns are counted from the first on.
    loss: after it; None if that is not compared.
    amount: of a turn, once it is known.
  """

  peer: entries.Peer
  running: process.Process
  first: process.Turn | None
  loss: float | None
  amount: int = 0


class Conductor:
  """Measures workloads.

  Attributes:
    versions: of the packages that were in use.
  """

  def __init__(
    self, folder: pathlib.Path, settings: Settings, print_row: Callable[[report.Row], None] = lambda row: None
  ):
    """Starts nothing yet.

    Args:
      folder: for the processes' standard error.
      settings: how long it takes.
      print_row: called with each row immediately.
    """
    self._folder, self._settings, self._print_row = folder, settings, print_row
    self.versions: dict[str, str] = {}

  def measure(self, workload: entries.Workload, names: Sequence[str] = ()) -> list[report.Row]:
    """A row for each peer of a workload, and one for the fastest; `names` are those requested, none for all."""
    found: dict[str, report.Row] = {}
    wanted = [peer for peer in workload.peers if not names or peer.name in names]
    for beside in dict.fromkeys(peer.beside for peer in wanted):
      ours = _OnDemand(lambda name=beside: self._start(workload, workload.peer(name) if name else workload.ours))
      with contextlib.closing(ours):
        for peer in wanted:
          if peer.beside == beside:
            found[peer.name] = self._beside(workload, peer, ours)
            self._print_row(found[peer.name])
    rows = [found[peer.name] for peer in wanted]
    if workload.final and not names:
      rows += self._fastest(workload, workload.final, rows)
    return rows

  def _fastest(self, workload: entries.Workload, final: entries.Final, rows: Sequence[report.Row]) -> list[report.Row]:
    """The row of the fastest of both sides: by their speeds, which the rows have."""
    rates = {row.peer.name: rounds.rate(row.duel.theirs).median for row in rows if row.duel}
    ours = [turn for row in rows if row.duel and not row.peer.beside for turn in row.duel.ours]
    if ours:
      rates[workload.ours.name] = rounds.rate(ours).median
    fastest = lambda names: max((name for name in names if name in rates), key=rates.get, default='')
    best, other = fastest(final.ours), fastest(final.theirs)
    if not best or not other:
      return []
    peer = dataclasses.replace(workload.peer(other), beside=best, goal=final.goal)
    with contextlib.closing(_OnDemand(lambda: self._start(workload, workload.peer(best)))) as started:
      row = self._beside(workload, peer, started)
    row = dataclasses.replace(row, peer=dataclasses.replace(peer, name=f'{other}, the fastest'))
    self._print_row(row)
    return [row]

  def _beside(self, workload: entries.Workload, peer: entries.Peer, ours: '_OnDemand') -> report.Row:
    missing = environments.ENVIRONMENTS[peer.environment].missing(peer.packages)
    if missing:
      return report.Row(peer, remarks=(missing,))
    try:
      first = ours.started()
      with contextlib.closing(_OnDemand(lambda: self._start(workload, peer, first))) as other:
        return self._duel(workload, first, other.started())
    except Exception as error:  # After any error the other peers continue.
      return report.Row(peer, remarks=(f'failed: {type(error).__name__}: {error}',))

  def _duel(self, workload: entries.Workload, ours: _Started, theirs: _Started) -> report.Row:
    different = checks.differences(ours.running.ready, theirs.running.ready) if workload.same_work else []
    if None not in (ours.loss, theirs.loss, ours.first, theirs.first) and ours.first.amount == theirs.first.amount:
      is_reduced = ours.running.ready['is_reduced'] or theirs.running.ready['is_reduced']
      different += checks.differences_after(ours.first.amount, ours.loss, theirs.loss, is_reduced)
      if not workload.draws_data:
        losses = [(started.running.ready['first_loss'], started.loss) for started in (ours, theirs)]
        different += checks.differences_of_falls(ours.first.amount, *losses, is_reduced)
    if different:  # A ratio of different work means nothing.
      return report.Row(theirs.peer, remarks=('NOT THE SAME WORK: ', *different))
    seconds = self._settings.seconds or workload.turn_seconds
    for started in (ours, theirs):
      started.amount = started.amount or rounds.fitting_amount(started.running, seconds, workload.most)
    num_rounds = self._settings.num_rounds or workload.rounds_of(theirs.peer)
    duel = rounds.duel(ours.running, theirs.running, (ours.amount, theirs.amount), num_rounds)
    return report.Row(theirs.peer, duel, first=theirs.first, first_of_ours=ours.first)

  def _start(self, workload: entries.Workload, peer: entries.Peer, ours: _Started | None = None) -> _Started:
    """Starts a process, and gives it its first turn: as many as ours has had, if it can and losses are compared."""
    python = environments.ENVIRONMENTS[peer.environment].python
    cores = f'--cores={self._settings.cores}'
    command = [str(python), '-m', 'benchmarks.peers.worker', workload.name, peer.name, cores]
    running = process.Process(command, self._folder / f'{workload.name}.{peer.name}.log')
    try:
      self.versions.update(running.ready['versions'])
      amount = running.ready['multiple']
      if workload.same_batches and ours is not None and ours.first and ours.first.amount % amount == 0:
        amount = ours.first.amount
      first = running.run(amount) if workload.warms_up else None
      return _Started(peer, running, first, running.loss() if workload.same_batches else None)
    except BaseException:
      running.close()
      raise


class _OnDemand:
  """A process that is started when it is first needed, and again if it has ended; one that does not start is left."""

  def __init__(self, start: Callable[[], _Started]):
    self._start = start
    self._started: _Started | None = None
    self._failure: process.PeerError | None = None

  def started(self) -> _Started:
    """It, alive.

    Raises:
      PeerError: it does not start.
    """
    if self._failure is not None:
      raise self._failure
    if self._started is None or not self._started.running.is_alive:
      self.close()
      try:
        self._started = self._start()
      except process.PeerError as error:
        self._failure = error
        raise
    return self._started

  def close(self) -> None:
    """Ends it, if it was started."""
    started, self._started = self._started, None
    if started is not None:
      started.running.close()
