"""RESULTS.md: a section for each workload, which is unchanged until that workload is measured again."""

from collections.abc import Sequence
import os
import pathlib
import re

from benchmarks.peers import catalogue
from benchmarks.peers import entries
from benchmarks.peers import report

_INTRODUCTION = """# Beside its peers

`make bench` has written this file; `make bench BENCH='a c'` measures some workloads again and keeps the others. A ratio
is our speed over the peer's, in turns next to each other: the median of the rounds, and their range. Speeds drift from
run to run; ratios are what to read. "Compiles in" is what the first turn took beyond a later one. benchmarks/peers says
what is computed and how, benchmarks/NOTES.md what was tried."""
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


def write(path: pathlib.Path, written: str) -> None:
  """Puts a section in the place of that of the same workload; others stay, those of no workload any more go."""
  sections = {_key(found): found for found in [*_sections(path), written]}
  keys = [f'({workload.letter}) {workload.name}' for workload in catalogue.WORKLOADS]
  ordered = [sections[key].strip() for key in keys if key in sections]
  document = '\n\n'.join([_INTRODUCTION, _summary(ordered), *(f'## {found}' for found in ordered)]) + '\n'
  partial = path.with_name(f'{path.name}.{os.getpid()}')
  partial.write_text(document)
  partial.replace(path)


def _sections(path: pathlib.Path) -> list[str]:
  return _SECTION.split(path.read_text())[1:] if path.exists() else []


def _key(found: str) -> str:
  return found.partition(':')[0]


def _summary(sections: Sequence[str]) -> str:
  """All goals in one table."""
  table = [('workload', *report.GOAL_HEAD)]
  for found in sections:
    table += [(_key(found), *row) for row in _goals(found)]
  num_met = sum(row[-1].startswith('met') for row in table[1:])
  return f'## Goals: {num_met} of {len(table) - 1} are met\n\n{report.as_markdown(table, keep_all=True)}'


def _goals(found: str) -> list[tuple[str, ...]]:
  """The rows of the table of goals in a section."""
  rows = [tuple(cell.strip() for cell in line.split('|')[1:-1]) for line in found.splitlines() if line.startswith('|')]
  return [row for row in rows if len(row) == len(report.GOAL_HEAD) and row[-1].startswith(('met', 'not m'))]
