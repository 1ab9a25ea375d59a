"""Some ratios beside the recorded ones of the same kind of processor: whether a change has made something slower.

It takes ten minutes on two cores, all workloads an hour. A ratio is slower if its whole range lies below the recorded
one: then the change is outside of what the rounds differ by.
"""

from collections.abc import Callable
import pathlib

from benchmarks.peers import catalogue
from benchmarks.peers import conductor
from benchmarks.peers import machine
from benchmarks.peers import report
from benchmarks.peers import results
from benchmarks.peers import rounds

ROUNDS = 3
# Workload -> the peers that say most about it, and are quick to start and to compile.
CHOSEN = {
  'digits_mlp': ('stock', 'bare_xla_100_steps'),
  'digits_conv': ('stock',),
  'decoder': ('by_hand_guarded', 'torch'),
  'images': ('input_reader',),
  'texts': ('input_reader',),
  'two_replicas': ('stock',),
  'evaluation': ('bare_graph', 'torch'),
  'sft': ('trl',),
}
SLOWER, FASTER = 'slower', 'faster: make bench records it'
_HEAD = ('workload', 'peer', 'recorded', 'measured', '')


def run(path: pathlib.Path, folder: pathlib.Path, print_line: Callable[[str], None]) -> int:
  """Measures, and prints a table.

  Args:
    path: of RESULTS.md, beside which are the records.
    folder: for the processes' output.
    print_line: prints a line.

  Returns:
    1 if a ratio is slower than the recorded one, or could not be measured; else 0.
  """
  kind = machine.kind()
  recorded = results.ratios(path, kind)
  if not recorded:
    print_line(f'no ratios are recorded for {kind}: run make bench')
  table, all_well = [_HEAD], True
  for name, peers in CHOSEN.items():
    print_line(name)
    settings = conductor.Settings(ROUNDS)
    for row in conductor.Conductor(folder, settings).measure(catalogue.workload(name), peers):
      before = recorded.get((name, row.peer.name))
      found = row.duel.ratio if row.duel else None
      verdict = '; '.join(row.remarks) if found is None else compared(before, found)
      all_well &= found is not None and verdict != SLOWER
      table.append((name, row.peer.name, _shown(before), _shown(found), verdict))
  print_line('\n' + report.as_text(table))
  print_line('\n'.join(machine.describe()))
  return 0 if all_well else 1


def compared(before: rounds.Spread | None, found: rounds.Spread) -> str:
  """What a ratio is beside the recorded one; '' if their ranges meet."""
  if before is None:
    return 'not recorded'
  if found.high < before.low:
    return SLOWER
  return FASTER if found.low > before.high else ''


def _shown(spread: rounds.Spread | None) -> str:
  return f'{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})' if spread else ''
