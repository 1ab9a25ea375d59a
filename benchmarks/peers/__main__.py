"""Measures this library beside its peers: `python -m benchmarks.peers [WORKLOAD ...]`, or `make bench`.

python -m benchmarks.peers                        all workloads
python -m benchmarks.peers digits_mlp c           these, by name or letter
python -m benchmarks.peers a --peers=stock,torch --rounds=2 --seconds=0.3
"""

import argparse
from collections.abc import Sequence
import datetime
import pathlib
import shutil
import sys
import tempfile
import time

from benchmarks.peers import catalogue
from benchmarks.peers import conductor
from benchmarks.peers import entries
from benchmarks.peers import machine
from benchmarks.peers import quick
from benchmarks.peers import report
from benchmarks.peers import results


def _in_short(row: report.Row) -> str:
  if row.duel is None:
    return '; '.join(row.remarks)
  return f'{row.duel.ratio.median:5.2f}  ({row.duel.ratio.low:.2f} to {row.duel.ratio.high:.2f})'


def _print_line(line: str) -> None:
  print(line, flush=True)


def _print_row(row: report.Row) -> None:
  _print_line(f'  {row.peer.name:<28}{_in_short(row)}')


def _workloads(names: Sequence[str]) -> list[entries.Workload]:
  try:
    found = [workload for name in names for workload in catalogue.workloads(name)] or list(catalogue.WORKLOADS)
  except KeyError as error:
    known = ', '.join(f'{workload.letter} {workload.name}' for workload in catalogue.WORKLOADS)
    raise SystemExit(f'error: {error.args[0]}: no such workload; there are {known}') from None
  return list({workload.name: workload for workload in found}.values())


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.peers', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('workloads', nargs='*', help='names or letters; all without any')
  parser.add_argument('--peers', default='', help='names, separated by commas; all without any')
  parser.add_argument('--rounds', type=int, default=0, help="turns of each; 0 for the workload's own")
  parser.add_argument('--seconds', type=float, default=0.0, help="of a turn; 0 for the workload's own")
  parser.add_argument('--cores', type=int, default=0, help='that each process has; 0 for all')
  parser.add_argument(
    '--results',
    type=pathlib.Path,
    help='a Markdown file for the goals; results/KIND.md beside it keeps the tables of this kind of processor',
  )
  quick_help = 'some ratios beside those recorded in FILE and results/ beside it, in ten minutes; 1 if one is slower'
  parser.add_argument('--quick', type=pathlib.Path, metavar='FILE', help=quick_help)
  options = parser.parse_args(arguments)
  if options.results and options.peers:
    raise SystemExit('error: --results: a table of some --peers would replace the whole one; leave one of them out')
  return options


def _measure(workload: entries.Workload, options: argparse.Namespace, folder: pathlib.Path) -> bool:
  """Measures, prints and keeps one workload. Returns whether all its peers that are installed have run."""
  head = machine.describe()
  _print_line(f'\n({workload.letter}) {workload.name}: {workload.title}')
  settings = conductor.Settings(options.rounds, options.seconds, options.cores)
  turns = conductor.Conductor(folder, settings, _print_row)
  start = time.perf_counter()
  rows = turns.measure(workload, [name for name in options.peers.split(',') if name])
  minutes = (time.perf_counter() - start) / 60
  head = [
    f'{datetime.datetime.now():%Y-%m-%d %H:%M}, {minutes:.1f} minutes; {head[0]}',
    *head[1:],
    machine.versions(turns.versions),
  ]
  goals = report.goals(workload, rows)
  for table in (report.cells(workload, rows), [report.GOAL_HEAD, *goals] if goals else []):
    if table:
      _print_line('\n' + report.as_text(table))
  _print_line('\n' + '\n'.join(head))
  if options.results:
    results.write(options.results, machine.kind(), results.section(workload, rows, head))
  return not any(remark.startswith(('failed', 'NOT')) for row in rows for remark in row.remarks)


def main(arguments: Sequence[str] | None = None) -> int:
  """Prints a table for each workload; 1 if a peer that is installed could not be measured."""
  options = _options(arguments)
  folder, start = pathlib.Path(tempfile.mkdtemp(prefix='bench-')), time.perf_counter()
  if options.quick:
    return quick.run(options.quick, folder, _print_line)
  all_well = True
  for workload in _workloads(options.workloads):
    all_well &= _measure(workload, options, folder)
  _print_line(f'\n{(time.perf_counter() - start) / 60:.0f} minutes in all')
  if all_well:
    shutil.rmtree(folder)
  else:
    _print_line(f'not all could be measured: see their output in {folder}')
  return 0 if all_well else 1


if __name__ == '__main__':
  sys.exit(main())
