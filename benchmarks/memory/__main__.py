"""Memory of trainings, here and in PyTorch: `python -m benchmarks.memory [SUBJECT ...]`, part of `make bench`.

python -m benchmarks.memory                           all; benchmarks/MEMORY.md, docs/images/performance/memory.json
python -m benchmarks.memory decoder --variants=plain,remat     these alone; the others are unchanged

Each way of each training is a separate process on all cores. The measure is the peak above the memory
before the training was made: Python, libraries and data. The price of a variant in time is the ratio of its steps to
those of 'plain', which takes turns with it.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any

from benchmarks.memory import subjects
from benchmarks.peers import environments
from benchmarks.peers import machine
from benchmarks.peers import process
from benchmarks.peers import report
from benchmarks.peers import rounds

RESULTS = process.ROOT / 'benchmarks/MEMORY.md'
FIGURES = process.ROOT / 'docs/images/performance/memory.json'
_LIBRARIES = {'ours': subjects.VARIANTS, 'torch': subjects.IN_PYTORCH}
_HEAD = (
  *('way', 'library', 'start, MB', 'steps, MB', 'of plain', 'ms a step', 'of plain', "XLA's plan, MB", 'in place, MB'),
  'remarks',
)


@dataclasses.dataclass(frozen=True)
class Found:
  """The memory of one variant of one library.

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


def measure(
  subject: subjects.Subject, library: str, variants: Sequence[str], num_rounds: int
) -> Iterator[tuple[str, Found]]:
  """Yields the ways of one library, each measured beside 'plain'.

  Args:
    subject: of the training.
    library: 'ours' or 'torch'.
    variants: which ways; 'plain' is measured in any case.
    num_rounds: turns of each.
  """
  folder = pathlib.Path(tempfile.mkdtemp(prefix='memory-'))
  plain = _start(subject.name, library, 'plain', folder)
  try:
    plain.run(1)  # PyTorch's second loop is not as slow as its first; ours has compiled.
    alone = [plain.run(1) for _ in range(num_rounds)]
    yield 'plain', _found(plain, alone, 0.0)
    for variant in variants:
      if variant == 'plain' or variant not in _LIBRARIES[library] or variant not in subject.variants:
        continue
      try:
        theirs = _start(subject.name, library, variant, folder)
      except process.PeerError as error:
        yield variant, Found(note=f'failed: {error}')
        continue
      try:
        turns = rounds.duel(plain, theirs, (1, 1), num_rounds)
        slower = statistics.median(b.seconds / a.seconds for a, b in zip(turns.ours, turns.theirs))
        yield variant, _found(theirs, turns.theirs, slower)
      finally:
        theirs.close()
  finally:
    plain.close()


def _found(started, turns, slower):
  seconds = statistics.median(turn.values['seconds_a_step'] for turn in turns)
  return Found(turns[-1].values, seconds, slower, turns[-1].note, started.ready['parameters'])


def table(found: Mapping[str, Mapping[str, Found]]) -> list[Sequence[str]]:
  """A row for each way and library.

  Args:
    found: library -> way -> its memory.
  """
  rows: list[Sequence[str]] = [_HEAD]
  megabytes = lambda value: f'{value / 1e6:,.0f}'
  for library, ways in found.items():
    plain = ways['plain'].values if 'plain' in ways else {}
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
          f'{values["steps"] / plain["steps"]:.2f}' if plain else '',
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


def document(figures: Mapping[str, Any]) -> str:
  """MEMORY.md, from memory.json: the machine, and the results of each subject."""
  ways = ', '.join(f'`{name}`: {text}' for name, text in subjects.VARIANTS.items())
  parts = [
    '# Memory of a training',
    '`python -m benchmarks.memory` has written this file. Each row is a separate process. *start*: the most that it '
    'has taken, above what it had before the training was made, until the first steps were done (building, tracing, '
    "compiling); *steps*: the same in the steps after that. *XLA's plan*: what the program needs that is neither an "
    'input nor a result. *in place*: of its results, what takes the place of an input (donated: weights and slots are '
    f'not there twice). Ways: {ways}. PyTorch updates in place, eagerly.',
    '\n'.join(f'- {line}' for line in figures['machine']),
  ]
  for name, subject in subjects.SUBJECTS.items():
    if name in figures['found']:
      parts.append(f'## {subject.title}\n\n{report.as_markdown(table(_loaded(figures["found"][name])))}')
  return '\n\n'.join(parts) + '\n'


def _loaded(of_subject: Mapping[str, Any]) -> dict[str, dict[str, Found]]:
  return {library: {way: Found(**each) for way, each in ways.items()} for library, ways in of_subject.items()}


def _merged(path: pathlib.Path, name: str, found: Mapping[str, Mapping[str, Found]]) -> dict[str, Any]:
  """The contents of the file, with new results of a subject in place of earlier ones."""
  figures = json.loads(path.read_text()) if path.exists() else {'found': {}}
  figures['machine'] = [
    *machine.describe()[:2],
    machine.versions(environments.ENVIRONMENTS['project'].versions(['tensorflow', 'tf_keras', 'torch'])),
  ]
  of_subject = figures['found'].setdefault(name, {})
  for library, ways in found.items():
    merged = of_subject.get(library, {}) | {way: dataclasses.asdict(each) for way, each in ways.items()}
    of_subject[library] = {way: merged[way] for way in subjects.VARIANTS if way in merged}
  figures['found'][name] = {library: of_subject[library] for library in _LIBRARIES if library in of_subject}
  return figures


def main(arguments: Sequence[str] | None = None) -> None:
  """Prints a table for each training, and writes it beside those that were measured before."""
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.memory', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('subjects', nargs='*', metavar='SUBJECT', help=f'of {", ".join(subjects.SUBJECTS)}')
  parser.add_argument('--variants', default=','.join(subjects.VARIANTS), help='separated by commas')
  parser.add_argument('--libraries', default=','.join(_LIBRARIES), help='separated by commas')
  parser.add_argument('--rounds', type=int, default=3, help='turns of each')
  parser.add_argument('--results', type=pathlib.Path, default=RESULTS, help='the tables')
  parser.add_argument('--figures', type=pathlib.Path, default=FIGURES, help='what they are made from')
  options = parser.parse_args(arguments)
  for given, known in (
    (options.subjects, subjects.SUBJECTS),
    (options.variants.split(','), subjects.VARIANTS),
    (options.libraries.split(','), _LIBRARIES),
  ):
    unknown = [name for name in given if name not in known]
    if unknown:
      parser.error(f'{unknown[0]}: there are {", ".join(known)}')
  for name in options.subjects or subjects.SUBJECTS:
    subject = subjects.SUBJECTS[name]
    print(f'\n{subject.title}', flush=True)
    for library in options.libraries.split(','):
      missing = environments.ENVIRONMENTS['project'].missing(['torch']) if library == 'torch' else ''
      ways = (
        [('plain', Found(note=missing))]
        if missing
        else measure(subject, library, options.variants.split(','), options.rounds)
      )
      for way, each in ways:  # Written at once: a later failure does not lose it.
        figures = _merged(options.figures, name, {library: {way: each}})
        check(_loaded(figures['found'][name]))
        options.figures.parent.mkdir(parents=True, exist_ok=True)
        options.figures.write_text(json.dumps(figures, indent=1) + '\n')
        options.results.write_text(document(figures))
        print(f'  {library} {way}', flush=True)
    print(report.as_text(table(_loaded(json.loads(options.figures.read_text())['found'][name]))), flush=True)


if __name__ == '__main__':
  main()
