"""Tables of duels: as text for a terminal, in Markdown for RESULTS.md."""

from collections.abc import Mapping, Sequence
import dataclasses

from benchmarks.peers import catalogue
from benchmarks.peers import rounds

_HEAD = ('peer', 'speed', 'range', 'ratio', 'range', 'goal', '', 'GiB', 'loss', 'remarks')


@dataclasses.dataclass(frozen=True)
class Row:
  """What was found about a peer.

  Attributes:
    peer: it.
    duel: its turns and ours; None if there are none.
    remarks: why there are none, in what its work differs, how it was run.
    ready_seconds: from the start of its process until it was ready, imports included.
  """

  peer: catalogue.Peer
  duel: rounds.Duel | None = None
  remarks: tuple[str, ...] = ()
  ready_seconds: float = 0.0


def cells(workload: catalogue.Workload, rows: Sequence[Row]) -> list[tuple[str, ...]]:
  """The table of a workload: its head, ours by all turns, and a row for each peer."""
  table = [_HEAD]
  ours = [turn for row in rows if row.duel for turn in row.duel.ours]
  if ours:
    note = f'{ours[-1].note}; ' if ours[-1].note else ''
    table.append(_row(workload, workload.ours.name, ours, None, None, f'{note}all its turns'))
  for row in rows:
    remarks = '; '.join(row.remarks)
    if row.duel is None:
      table.append((row.peer.name, *[''] * (len(_HEAD) - 2), remarks))
    else:
      note = row.duel.theirs[-1].note
      remarks = '; '.join(filter(None, (note, remarks)))
      table.append(_row(workload, row.peer.name, row.duel.theirs, row.duel.ratio, row.peer.goal, remarks))
  return table


def _row(workload, name, turns, ratio, goal, remarks):
  loss = turns[-1].values.get('loss')
  found = [f'{key} {value:.3g}' for key, value in turns[-1].values.items() if key != 'loss']
  return (
    name,
    *_speed(workload, rounds.rate(turns)),
    f'{ratio.median:.2f}' if ratio else '',
    f'{ratio.low:.2f} to {ratio.high:.2f}' if ratio else '',
    f'>= {goal:.2f}' if goal else '',
    '' if not goal else 'met' if ratio.median >= goal else 'not met',
    f'{max(turn.peak_bytes for turn in turns) / 2**30:.2f}',
    '' if loss is None else f'{loss:.3f}',
    '; '.join(filter(None, (*found, remarks))),
  )


def _speed(workload: catalogue.Workload, rate: rounds.Spread) -> tuple[str, str]:
  """The median, and the range."""
  if workload.inverse_unit:  # The fastest is the least.
    number = lambda value: f'{1000 / value:,.0f}' if value < 100 else f'{1000 / value:,.2f}'
    return f'{number(rate.median)} ms a {workload.inverse_unit}', f'{number(rate.high)} to {number(rate.low)}'
  number = lambda value: f'{value:,.0f}'
  return f'{number(rate.median)} {workload.unit}/s', f'{number(rate.low)} to {number(rate.high)}'


def as_text(table: Sequence[Sequence[str]]) -> str:
  """Columns beside each other; columns that are empty are left out."""
  rows = _without_empty_columns(table)
  widths = [max(map(len, column)) for column in zip(*rows)]
  return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def as_markdown(table: Sequence[Sequence[str]]) -> str:
  """The same as a table of Markdown."""
  head, *rows = _without_empty_columns(table)
  lines = [head, ['---'] * len(head), *rows]
  return '\n'.join(f'| {" | ".join(cell.replace("|", "/") for cell in line)} |' for line in lines)


def _without_empty_columns(table):
  kept = [any(column[1:]) for column in zip(*table)]
  return [[cell for cell, is_kept in zip(row, kept) if is_kept] for row in table]


def document(tables: Mapping[str, str], head: Sequence[str]) -> str:
  """RESULTS.md.

  Args:
    tables: title -> the table in Markdown.
    head: lines about the machine and the run.
  """
  parts = [
    '# Beside its peers',
    "`make bench` has written this file. Ratios are our speed over the peer's, in turns next to each other: the median "
    'of the rounds, and their range. Speeds drift from run to run; ratios are what to read. benchmarks/peers says what '
    'is computed, benchmarks/NOTES.md what was tried.',
    '\n'.join(f'- {line}' for line in head),
    *(f'## {title}\n\n{table}' for title, table in tables.items()),
  ]
  return '\n\n'.join(parts) + '\n'
