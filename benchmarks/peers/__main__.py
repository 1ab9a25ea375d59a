"""Measures this library beside its peers: `python -m benchmarks.peers [WORKLOAD ...]`, or `make bench`.

python -m benchmarks.peers                        all workloads; writes benchmarks/RESULTS.md
python -m benchmarks.peers digits_mlp c           these, by name or letter
python -m benchmarks.peers a --peers=stock,torch --rounds=2 --seconds=0.3
"""

import argparse
from collections.abc import Sequence
import pathlib
import sys
import tempfile
import time

from benchmarks.peers import catalogue
from benchmarks.peers import checks
from benchmarks.peers import environments
from benchmarks.peers import machine
from benchmarks.peers import process
from benchmarks.peers import report
from benchmarks.peers import rounds


class Conductor:
  """Lets this library and one peer after the other take turns.

  Attributes:
    versions: of the packages that were in use.
  """

  def __init__(self, folder: pathlib.Path, num_rounds: int, seconds: float, cores: int):
    """Starts nothing yet.

    Args:
      folder: for what the processes say on standard error.
      num_rounds: of each peer.
      seconds: of a turn; 0 for the workload's own.
      cores: that each process has; 0 for all.
    """
    self._folder, self._num_rounds, self._seconds, self._cores = folder, num_rounds, seconds, cores
    self.versions: dict[str, str] = {}

  def measure(self, workload: catalogue.Workload, names: Sequence[str]) -> list[report.Row]:
    """A row for each peer of a workload; `names` are those that are wanted, none for all."""
    seconds = self._seconds or workload.turn_seconds
    ours = self._start(workload, workload.ours)
    try:
      amount = rounds.fitting_amount(ours, seconds, workload.most)
      rows = []
      for peer in workload.peers:
        if not names or peer.name in names:
          rows.append(self._beside(workload, peer, ours, amount, seconds))
          _tell(f'  {peer.name:<24}{_in_short(rows[-1])}')
      return rows
    finally:
      ours.close()

  def _beside(self, workload, peer, ours, amount, seconds):
    missing = environments.ENVIRONMENTS[peer.environment].missing(peer.packages)
    if missing:
      return report.Row(peer, remarks=(missing,))
    theirs = None
    try:
      theirs = self._start(workload, peer)
      different = checks.differences(ours.ready, theirs.ready)
      if different:  # A ratio of different work means nothing.
        return report.Row(peer, remarks=('NOT THE SAME WORK: ', *different))
      amounts = amount, rounds.fitting_amount(theirs, seconds, workload.most)
      return report.Row(
        peer, rounds.duel(ours, theirs, amounts, self._num_rounds), ready_seconds=theirs.seconds_to_ready
      )
    except process.PeerError as error:
      return report.Row(peer, remarks=(f'failed: {error}',))
    finally:
      if theirs is not None:
        theirs.close()

  def _start(self, workload, peer):
    python = environments.ENVIRONMENTS[peer.environment].python
    command = [str(python), '-m', 'benchmarks.peers.worker', workload.name, peer.name, f'--cores={self._cores}']
    started = process.Process(command, self._folder / f'{workload.name}.{peer.name}.log')
    self.versions.update(started.ready['versions'])
    return started


def _in_short(row: report.Row) -> str:
  if row.duel is None:
    return '; '.join(row.remarks)
  return f'{row.duel.ratio.median:5.2f}  ({row.duel.ratio.low:.2f} to {row.duel.ratio.high:.2f})'


def _tell(line: str) -> None:
  print(line, flush=True)


def _workloads(names: Sequence[str]) -> list[catalogue.Workload]:
  try:
    return [catalogue.workload(name) for name in names] or list(catalogue.WORKLOADS)
  except KeyError as error:
    known = ', '.join(f'{workload.letter} {workload.name}' for workload in catalogue.WORKLOADS)
    raise SystemExit(f'error: {error.args[0]}: no such workload; there are {known}') from None


def main(arguments: Sequence[str] | None = None) -> int:
  """Prints a table for each workload; 1 if one could not be measured at all."""
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.peers', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('workloads', nargs='*', help='names or letters; all without any')
  parser.add_argument('--peers', default='', help='names, separated by commas; all without any')
  parser.add_argument('--rounds', type=int, default=7, help='turns of each')
  parser.add_argument('--seconds', type=float, default=0.0, help="of a turn; 0 for the workload's own")
  parser.add_argument('--cores', type=int, default=0, help='that each process has; 0 for all')
  parser.add_argument('--results', type=pathlib.Path, help='where the tables are written in Markdown')
  options = parser.parse_args(arguments)
  folder = pathlib.Path(tempfile.mkdtemp(prefix='bench-'))
  head, start, status = machine.describe(), time.perf_counter(), 0
  conductor = Conductor(folder, options.rounds, options.seconds, options.cores)
  tables: dict[str, str] = {}
  for workload in _workloads(options.workloads):
    title = f'({workload.letter}) {workload.name}: {workload.title}'
    _tell(f'\n{title}')
    try:
      rows = conductor.measure(workload, [name for name in options.peers.split(',') if name])
    except process.PeerError as error:  # Ours.
      _tell(f'  failed: {error}')
      tables[title], status = f'Failed: {error}', 1
      continue
    table = report.cells(workload, rows)
    _tell(report.as_text(table))
    tables[title] = report.as_markdown(table)
  minutes = (time.perf_counter() - start) / 60
  head += [machine.versions(conductor.versions), f'{options.rounds} rounds, {minutes:.0f} minutes in all']
  _tell('\n' + '\n'.join(head))
  if options.results:
    options.results.write_text(report.document(tables, head))
  return status


if __name__ == '__main__':
  sys.exit(main())
