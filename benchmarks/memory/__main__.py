"""Memory of trainings, here and in PyTorch: `python -m benchmarks.memory [SUBJECT ...]`, part of `make bench`.

python -m benchmarks.memory                                    all; writes benchmarks/MEMORY.md
python -m benchmarks.memory decoder --variants=plain,remat --rounds=1

Each way of each training is a process of its own on all cores. What counts is what it takes at most above what it had
before the training was made: Python, libraries and data. The price of a variant in time is the ratio of its steps to
those of 'plain', which takes turns with it.
"""

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import statistics
import sys
import tempfile

from benchmarks.memory import subjects
from benchmarks.peers import environments
from benchmarks.peers import machine
from benchmarks.peers import process
from benchmarks.peers import report
from benchmarks.peers import rounds

RESULTS = process.ROOT / 'benchmarks/MEMORY.md'
_LIBRARIES = {'ours': subjects.VARIANTS, 'torch': subjects.IN_PYTORCH}
_HEAD = (
  *('way', 'library', 'start, MB', 'steps, MB', 'of plain', 'ms a step', 'of plain', "XLA's plan, MB", 'in place, MB'),
  'remarks',
)


@dataclasses.dataclass(frozen=True)
class Found:
  """What one way of one library has taken.

  Attributes:
    values: of the worker's last turn: bytes.
    seconds: of a step, the median of its turns.
    slower: times as long as 'plain' in the same rounds; 0 for none.
    note: how it was executed, or why it was not measured.
    parameters: that are trained.
  """

  values: Mapping[str, float] = dataclasses.field(default_factory=dict)
  seconds: float = 0.0
  slower: float = 0.0
  note: str = ''
  parameters: int = 0


def _start(subject: str, library: str, variant: str, folder: pathlib.Path) -> process.Process:
  command = [sys.executable, '-m', 'benchmarks.memory.worker', subject, library, variant]
  return process.Process(command, folder / f'{subject}.{library}.{variant}.log')


def measure(subject: subjects.Subject, library: str, variants: Sequence[str], num_rounds: int) -> dict[str, Found]:
  """The ways of one library, each beside 'plain'.

  Args:
    subject: what is trained.
    library: 'ours' or 'torch'.
    variants: which ways; 'plain' is measured whatever they are.
    num_rounds: turns of each.
  """
  folder = pathlib.Path(tempfile.mkdtemp(prefix='memory-'))
  found: dict[str, Found] = {}
  plain = _start(subject.name, library, 'plain', folder)
  try:
    plain.run(1)  # PyTorch's second loop is not as slow as its first; ours has compiled.
    alone = [plain.run(1) for _ in range(num_rounds)]
    found['plain'] = _found(plain, alone, 0.0)
    for variant in variants:
      if variant == 'plain' or variant not in _LIBRARIES[library]:
        continue
      try:
        theirs = _start(subject.name, library, variant, folder)
      except process.PeerError as error:
        found[variant] = Found(note=f'failed: {error}')
        continue
      try:
        turns = rounds.duel(plain, theirs, (1, 1), num_rounds)
        slower = statistics.median(b.seconds / a.seconds for a, b in zip(turns.ours, turns.theirs))
        found[variant] = _found(theirs, turns.theirs, slower)
      finally:
        theirs.close()
  finally:
    plain.close()
  return found


def _found(started, turns, slower):
  seconds = statistics.median(turn.values['seconds_a_step'] for turn in turns)
  return Found(turns[-1].values, seconds, slower, turns[-1].note, started.ready['parameters'])


def table(found: Mapping[str, Mapping[str, Found]]) -> list[Sequence[str]]:
  """A row for each way and library.

  Args:
    found: library -> way -> what it has taken.
  """
  rows: list[Sequence[str]] = [_HEAD]
  megabytes = lambda value: f'{value / 1e6:,.0f}'
  for library, ways in found.items():
    for way, each in ways.items():
      values = each.values
      if not values:
        rows.append((way, library, *[''] * (len(_HEAD) - 3), each.note))
        continue
      rows.append(
        (
          way,
          library,
          megabytes(values['start']),
          megabytes(values['steps']),
          f'{values["steps"] / ways["plain"].values["steps"]:.2f}',
          f'{1000 * each.seconds:,.0f}',
          f'{each.slower:.2f}' if each.slower else '',
          megabytes(values['plan_temporary']) if 'plan_temporary' in values else '',
          f'{megabytes(values["plan_in_place"])} of {megabytes(values["plan_results"])}'
          if 'plan_in_place' in values
          else '',
          each.note,
        )
      )
  return rows


def check(found: Mapping[str, Mapping[str, Found]]) -> None:
  """Refuses to compare trainings of different size."""
  sizes = {each.parameters for ways in found.values() for each in ways.values() if each.values}
  if len(sizes) > 1:
    raise SystemExit(f'not the same work: {", ".join(f"{size:,}" for size in sorted(sizes))} parameters')


def document(tables: Mapping[str, str], head: Sequence[str]) -> str:
  """MEMORY.md: the tables in Markdown by their titles, and lines about the machine."""
  ways = ', '.join(f'`{name}`: {text}' for name, text in subjects.VARIANTS.items())
  parts = [
    '# Memory of a training',
    '`python -m benchmarks.memory` has written this file. Each row is a process of its own. *start*: the most that it '
    'has taken, above what it had before the training was made, until the first steps were done (building, tracing, '
    "compiling); *steps*: the same in the steps after that. *XLA's plan*: what the program needs that is neither an "
    'input nor a result. *in place*: of its results, what takes the place of an input (donated: weights and slots are '
    f'not there twice). Ways: {ways}. PyTorch updates in place, eagerly.',
    '\n'.join(f'- {line}' for line in head),
    *(f'## {title}\n\n{text}' for title, text in tables.items()),
  ]
  return '\n\n'.join(parts) + '\n'


def main(arguments: Sequence[str] | None = None) -> None:
  """Prints a table for each training, and writes all of them if all were measured."""
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.memory', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('subjects', nargs='*', metavar='SUBJECT', help=f'of {", ".join(subjects.SUBJECTS)}')
  parser.add_argument('--variants', default=','.join(subjects.VARIANTS), help='separated by commas')
  parser.add_argument('--libraries', default=','.join(_LIBRARIES), help='separated by commas')
  parser.add_argument('--rounds', type=int, default=3, help='turns of each')
  parser.add_argument(
    '--results', type=pathlib.Path, help='where the tables are written; MEMORY.md if all are measured'
  )
  options = parser.parse_args(arguments)
  for given, known in (
    (options.subjects, subjects.SUBJECTS),
    (options.variants.split(','), subjects.VARIANTS),
    (options.libraries.split(','), _LIBRARIES),
  ):
    unknown = [name for name in given if name not in known]
    if unknown:
      parser.error(f'{unknown[0]}: there are {", ".join(known)}')
  tables: dict[str, str] = {}
  head = [*machine.describe()]
  head.append(machine.versions(environments.ENVIRONMENTS['project'].versions(['tensorflow', 'tf_keras', 'torch'])))
  for name in options.subjects or subjects.SUBJECTS:
    subject = subjects.SUBJECTS[name]
    print(f'\n{subject.title}', flush=True)
    found = {}
    for library in options.libraries.split(','):
      missing = environments.ENVIRONMENTS['project'].missing(['torch']) if library == 'torch' else ''
      if missing:
        found[library] = {'plain': Found(note=missing)}
      else:
        found[library] = measure(subject, library, options.variants.split(','), options.rounds)
    check(found)
    print(report.as_text(table(found)), flush=True)
    tables[subject.title] = report.as_markdown(table(found))
  is_whole = not arguments and not sys.argv[1:]
  path = options.results or (RESULTS if is_whole else None)
  if path:
    path.write_text(document(tables, head))


if __name__ == '__main__':
  main()
