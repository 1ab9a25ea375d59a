"""Sweeps as text for a terminal: the tables of `official-ext sweep`. Text from a file is escaped."""

from collections.abc import Mapping, Sequence

from official_ext.base import json_types
from official_ext.base.harmless_text import harmless
from official_ext.cli import run_tables
from official_ext.operations.sweeps import point_commands

_BAR = 30


def of_sweeps(sweeps: Sequence[json_types.JsonMapping]) -> list[str]:
  """A table of sweeps, a line each: entries as `sweep list --json` has them."""
  rows = [['SWEEP', 'STATUS', 'METHOD', 'POINTS', 'BEST', '']]
  for each in sweeps:
    if each['status'] == 'unreadable':
      rows.append([harmless(each['name']), 'unreadable', '', '', '', harmless(each['reason'])])
      continue
    best = each['best']
    shown = '' if best is None else f'{harmless(each["metric"]["name"])} {run_tables.number(best["value"])}'
    rows.append(
      [
        harmless(each['name']),
        each['status'],
        each['method'],
        _progress(each['counts'], each['num_points']),
        shown,
        '' if best is None else harmless(best['run']),
      ]
    )
  return run_tables.table(rows)


def of_sweep(values: json_types.JsonMapping, order: Sequence[int]) -> list[str]:
  """All about a sweep: `sweep show`.

  Args:
    values: see results.py, with `importances`.
    order: numbers of points, in the order of the table.
  """
  metric = values['metric']
  goal = '' if metric is None else f'{metric["goal"]} {harmless(metric["name"])} ({metric["summary"]} evaluation)'
  counts = ', '.join(f'{count} {status}' for status, count in values['counts'].items())
  lines = run_tables.table(
    [
      ['status', values['status'] + (f' ({values["controller"]})' if values['controller'] else '')],
      ['method', values['method']],
      ['goal', goal or 'none'],
      ['points', f'{counts or "none"}; of {values["num_points"] or "any number"}'],
    ]
  )
  names = [each['name'] for each in values['parameters'] if not each['is_constant']]
  rows = [['POINT', 'STATUS', 'STEP', '' if metric is None else harmless(metric['name']), *map(harmless, names), '']]
  points = {point['point']: point for point in values['points']}
  for number in order:
    point = points[number]
    cells = [_value(point['parameters'].get(name)) for name in names]
    shown = run_tables.number(point['value']) if metric else ''
    step = '' if point['step'] is None else str(point['step'])
    rows.append([str(number), point['status'], step, shown, *cells, harmless(point['reason'])])
  return [*lines, '', *run_tables.table(rows), *_groups(values['seed_groups']), *_importances(values['importances'])]


def _groups(groups: Sequence[json_types.JsonMapping]) -> list[str]:
  if not groups:
    return []
  rows = [['MEAN', 'DEVIATION', 'POINTS', 'PARAMETERS']]
  for group in groups:
    text = ', '.join(f'{harmless(name)}={_value(value)}' for name, value in group['parameters'].items())
    numbers = ','.join(map(str, group['points']))
    rows.append([run_tables.number(group['mean']), run_tables.number(group['deviation']), numbers, text])
  return ['', *run_tables.table(rows)]


def _importances(found: Mapping[str, float] | str) -> list[str]:
  if isinstance(found, str):
    return ['', f'importance of parameters: {found}']
  rows = [[harmless(name), f'{share:.2f}', '#' * round(_BAR * share)] for name, share in found.items()]
  return ['', 'importance of parameters:', *run_tables.table(rows)]


def _progress(counts: Mapping[str, int], total: int | None) -> str:
  known = sum(counts.values())
  over = known - sum(counts.get(status, 0) for status in ('new', 'queued', 'paused', 'starting', 'running', 'stopping'))
  return f'{over}/{total or known}'


def _value(value: object) -> str:
  return (
    '-'
    if value is None
    else run_tables.number(value)
    if isinstance(value, float)
    else harmless(point_commands.text_of(value))
  )
