"""The results of a workload: its table, and which goals are met."""

from collections.abc import Sequence
import dataclasses

from benchmarks.peers import entries
from benchmarks.peers import process
from benchmarks.peers import rounds

_HEAD = ('peer', 'speed', 'range', 'ratio', 'range', 'compiles in', 'GiB', 'loss', 'remarks')
GOAL_HEAD = ('goal', 'wanted', 'measured', '')


@dataclasses.dataclass(frozen=True)
class Row:
  """The results of a peer.

  Attributes:
    peer: it.
    duel: its turns and ours; None if there are none.
    remarks: why there are none, the differences of its work.
    first: its first turn, in which it compiles.
    first_of_ours: our first turn beside it.
  """

  peer: entries.Peer
  duel: rounds.Duel | None = None
  remarks: tuple[str, ...] = ()
  first: process.Turn | None = None
  first_of_ours: process.Turn | None = None


def cells(workload: entries.Workload, rows: Sequence[Row]) -> list[tuple[str, ...]]:
  """The table of a workload: its head, ours by all turns, and a row for each peer."""
  table = [_HEAD]
  with_ours = [row for row in rows if row.duel and not row.peer.beside]
  if with_ours:
    turns = [turn for row in with_ours for turn in row.duel.ours]
    first = next((row.first_of_ours for row in with_ours if row.first_of_ours), None)
    table.append(_row(workload, workload.ours.name, turns, None, first, 'all its turns'))
  for row in rows:
    beside = f'beside {row.peer.beside}' if row.peer.beside else ''
    remarks = '; '.join(filter(None, (beside, *row.remarks)))
    if row.duel is None:
      table.append((row.peer.name, *[''] * (len(_HEAD) - 2), remarks))
    else:
      table.append(_row(workload, row.peer.name, row.duel.theirs, row.duel.ratio, row.first, remarks))
  return table


def _row(workload, name, turns, ratio, first, remarks):
  last = turns[-1]
  found = [f'{key} {_median(turns, key):.3g}' for key in last.values if key != 'loss']
  return (
    name,
    *_speed(workload, rounds.rate(turns)),
    f'{ratio.median:.2f}' if ratio else '',
    f'{ratio.low:.2f} to {ratio.high:.2f}' if ratio else '',
    _compiles_in(workload, turns, first),
    f'{max(turn.peak_bytes for turn in turns) / 2**30:.2f}',
    '' if 'loss' not in last.values else f'{last.values["loss"]:.3f}',
    '; '.join(filter(None, (*found, last.note, remarks))),
  )


def _median(turns, key):
  return rounds.Spread.of([turn.values[key] for turn in turns]).median


def _compiles_in(workload, turns, first):
  """The time of the first turn beyond a later one of the same amount."""
  if first is None or workload.most == 1:
    return ''
  return f'{max(0.0, first.seconds - first.amount / rounds.rate(turns).median):.1f} s'


def _speed(workload: entries.Workload, rate: rounds.Spread) -> tuple[str, str]:
  """The median, and the range."""
  if workload.inverse_unit:  # The fastest is the least.
    number = lambda value: f'{1000 / value:,.0f}' if value < 100 else f'{1000 / value:,.2f}'
    return f'{number(rate.median)} ms a {workload.inverse_unit}', f'{number(rate.high)} to {number(rate.low)}'
  number = lambda value: f'{value:,.0f}' if value >= 10 else f'{value:.2f}'
  return f'{number(rate.median)} {workload.unit}/s', f'{number(rate.low)} to {number(rate.high)}'


def goals(workload: entries.Workload, rows: Sequence[Row]) -> list[tuple[str, ...]]:
  """The goals of a workload, the measurements, and whether they meet the goals: as `GOAL_HEAD` names them."""
  found = []
  for row in rows:
    name, beside = row.peer.name, row.peer.beside or workload.ours.name
    if row.peer.goal:
      spread = row.duel.ratio if row.duel else None
      found.append((f'{beside} to {name}', f'>= {row.peer.goal:.2f}', *_reached(spread, row.peer.goal)))
    found += _limits(name, row.peer.limits, row.duel.theirs if row.duel else ())
  return found + _limits(
    workload.ours.name, workload.ours.limits, [turn for row in rows if row.duel for turn in row.duel.ours]
  )


def _limits(name, limits, turns):
  found = []
  for key, most in limits.items():
    values = [-turn.values[key] for turn in turns if key in turn.values]
    measured, reached = _reached(rounds.Spread.of(values) if values else None, -most)
    found.append((f'{name}: {key}', f'<= {most:g}', measured, reached))
  return found


def _reached(spread: rounds.Spread | None, least: float) -> tuple[str, str]:
  if spread is None:
    return '', 'not measured'
  number = lambda value: f'{abs(value):.3f}' if least < 0 else f'{value:.2f}'
  verdict = 'met' if spread.median >= least else 'not met'
  is_near = spread.low < least <= spread.high
  measured = f'{number(spread.median)} ({number(spread.low)} to {number(spread.high)})'
  return measured, f'{verdict}, within the spread' if is_near else verdict


def as_text(table: Sequence[Sequence[str]]) -> str:
  """Columns beside each other; columns that are empty are left out."""
  rows = _without_empty_columns(table)
  widths = [max(map(len, column)) for column in zip(*rows)]
  return '\n'.join('  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def as_markdown(table: Sequence[Sequence[str]], keep_all: bool = False) -> str:
  """The same as a table of Markdown; with `keep_all`, empty columns stay."""
  head, *rows = table if keep_all else _without_empty_columns(table)
  lines = [head, ['---'] * len(head), *rows]
  return '\n'.join(f'| {" | ".join(_escaped(cell) for cell in line)} |' for line in lines)


def _escaped(cell: str) -> str:
  return ' '.join(cell.replace('|', '/').split())


def _without_empty_columns(table):
  kept = [any(column[1:]) for column in zip(*table)]
  return [[cell for cell, is_kept in zip(row, kept) if is_kept] for row in table]
