"""RESULTS.md: the goals by kind of processor; results/KIND.md: a section for each workload.

A section is unchanged until that workload is measured again on such a processor.
"""

from collections.abc import Sequence
import os
import pathlib
import re

from benchmarks.peers import catalogue
from benchmarks.peers import entries
from benchmarks.peers import report
from benchmarks.peers import rounds

_INTRODUCTION = """# Beside its peers

`make bench` has written this file and the tables in benchmarks/results, one file for each kind of processor: the newest
of its vector instructions decides which kernels are fast. AMD's Zen 4 has AVX-512, but units of 256 bits, and is a kind
by itself. `make bench BENCH='a c'` measures some workloads again and keeps the others. A ratio is our speed over the
peer's, in turns next to each other: the median of the rounds, and their range. Speeds drift from run to run; ratios are
what to read. "Compiles in" is what the first turn took beyond a later one. A processor that is "limited to avx2" is a
newer one that hides its newer instructions (`python -m benchmarks.limited_cpu avx2 make bench`). benchmarks/peers
describes the computations, benchmarks/NOTES.md the attempts."""
_TITLE = '# Beside its peers: '  # Of the tables of a kind of processor; the folder has others.
_SPREAD = re.compile(r'([\d.]+) to ([\d.]+)')
_MACHINE = re.compile(r'^- .* minutes; (.*), \d+ cores', re.MULTILINE)
_SECTION = re.compile(r'^## (?=\()', re.MULTILINE)


def section(workload: entries.Workload, rows: Sequence[report.Row], head: Sequence[str]) -> str:
  """The section of a workload.

  Args:
    workload: it.
    rows: the results.
    head: the date and the machine.
  """
  parts = [f'({workload.letter}) {workload.name}: {workload.title}', '\n'.join(f'- {line}' for line in head)]
  goals = report.goals(workload, rows)
  if goals:
    parts.append(report.as_markdown([report.GOAL_HEAD, *goals], keep_all=True))
  parts.append(report.as_markdown(report.cells(workload, rows)))
  return '\n\n'.join(parts) + '\n'


def write(path: pathlib.Path, kind: str, written: str) -> None:
  """Puts a section in the place of that of the same workload and the same kind of processor, and renews the goals.

  Other sections stay, except those of removed workloads.

  Args:
    path: of RESULTS.md, with the goals. The sections of a kind are in results/KIND.md beside it.
    kind: of the processor, see `machine.kind`.
    written: the section.
  """
  tables = path.parent / 'results' / f'{kind}.md'
  sections = {_key(found): found for found in [*_sections(tables), written]}
  keys = [f'({workload.letter}) {workload.name}' for workload in catalogue.WORKLOADS]
  ordered = [sections[key].strip() for key in keys if key in sections]
  tables.parent.mkdir(exist_ok=True)
  _replace(tables, [f'{_TITLE}{kind}', *(f'## {found}' for found in ordered)])
  kinds = [found for found in sorted(tables.parent.glob('*.md')) if found.read_text().startswith(_TITLE)]
  _replace(path, [_INTRODUCTION, *_summary(kinds)])


def ratios(path: pathlib.Path, kind: str) -> dict[tuple[str, str], rounds.Spread]:
  """(workload, peer) -> the recorded ratio of a kind of processor.

  Args:
    path: of RESULTS.md.
    kind: see `machine.kind`.
  """
  found = {}
  for section_text in _sections(path.parent / 'results' / f'{kind}.md'):
    name = _key(section_text).split(' ')[-1]
    rows = [line.strip('| ').split(' | ') for line in section_text.splitlines() if line.startswith('| ')]
    head = next((row for row in rows if row[0] == 'peer'), [])
    for row in rows[rows.index(head) + 1 :] if 'ratio' in head else []:
      place = head.index('ratio')
      spread = _SPREAD.fullmatch(row[place + 1].strip()) if len(row) > place + 1 else None
      if spread:
        found[name, row[0]] = rounds.Spread(float(row[place]), *map(float, spread.groups()))
  return found


def _replace(path, parts):
  partial = path.with_name(f'{path.name}.{os.getpid()}')
  partial.write_text('\n\n'.join(parts) + '\n')
  partial.replace(path)


def _sections(path: pathlib.Path) -> list[str]:
  return _SECTION.split(path.read_text())[1:] if path.exists() else []


def _key(found: str) -> str:
  return found.partition(':')[0]


def _summary(files: Sequence[pathlib.Path]) -> list[str]:
  """How many goals each kind of processor meets, and all goals in one table with a column for each kind."""
  goals: dict[tuple[str, ...], dict[str, str]] = {}
  counts = []
  for file in files:
    sections = _sections(file)
    rows = [(_key(found), *row) for found in sections for row in _goals(found)]
    num_met = sum(row[-1].startswith('met') for row in rows)
    machines = ''.join(f' ({name})' for name in sorted(set(_MACHINE.findall(''.join(sections)))))
    counts.append(f'- [{file.stem}](results/{file.name}): {num_met} of {len(rows)} goals are met{machines}')
    for *goal, measured, verdict in rows:
      goals.setdefault(tuple(goal), {})[file.stem] = ', '.join(filter(None, (measured, verdict)))
  kinds = [file.stem for file in files]
  table = [('workload', *report.GOAL_HEAD[:2], *kinds)]
  table += [(*goal, *(found.get(kind, '') for kind in kinds)) for goal, found in sorted(goals.items())]
  return ['## Goals, by kind of processor', '\n'.join(counts), report.as_markdown(table, keep_all=True)]


def _goals(found: str) -> list[tuple[str, ...]]:
  """The rows of the table of goals in a section."""
  rows = [tuple(cell.strip() for cell in line.split('|')[1:-1]) for line in found.splitlines() if line.startswith('|')]
  return [row for row in rows if len(row) == len(report.GOAL_HEAD) and row[-1].startswith(('met', 'not m'))]
