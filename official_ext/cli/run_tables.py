"""Runs as text for a terminal: the tables of `official-ext runs`. Text from a run is escaped."""

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import math
import re
import shlex
import time
from typing import TYPE_CHECKING, Any

from official_ext.base.harmless_text import harmless
from official_ext.operations.runs import comparing
from official_ext.operations.runs import run_checkpoints
from official_ext.operations.runs import summaries
from official_ext.operations.runs import trash

if TYPE_CHECKING:
  from official_ext.operations.curves import goodput  # NumPy, as the next.
  from official_ext.operations.curves import timeline

_MAX_METRICS = 3
_MAX_CELL = 60
_MAX_TEXT = 300  # Characters of a prompt or a completion.


def of_runs(runs: Sequence[summaries.RunSummary], metrics: Sequence[str] = ()) -> list[str]:
  """A table of runs, a line each.

  Args:
    runs: the runs.
    metrics: the names of those to show; by default the last evaluation's, or else the training's.
  """
  header = ['RUN', 'STATUS', 'STEP', '%', 'LEFT', 'EXPERIMENT', 'TAGS', 'METRICS']
  rows = [
    [
      harmless(run.name),
      run.status,
      '' if run.step is None else f'{run.step}/{run.train_steps}' if run.train_steps else str(run.step),
      '' if run.percent is None else f'{run.percent:.0f}',
      duration(run.eta_seconds),
      harmless(run.experiment),
      harmless(','.join(run.tags)),
      _metrics(run, metrics),
    ]
    for run in runs
  ]
  return table([header, *rows])


def _metrics(run: summaries.RunSummary, names: Sequence[str]) -> str:
  if not names:
    shown: Mapping[str, float] = run.evaluation or run.train
    names = list(shown)[:_MAX_METRICS]
    reason = '' if run.status in ('running', 'finished', 'stopping') else harmless(run.reason)[:_MAX_CELL]
    return '  '.join(filter(None, [*(f'{harmless(name)} {number(shown[name])}' for name in names), reason]))
  return '  '.join(f'{harmless(name)} {number(run.metric(name))}' for name in names)


def of_run(
  run: summaries.RunSummary,
  record: Mapping[str, object],
  best: tuple[str, float, int] | None,
  checkpoints: Sequence[run_checkpoints.Checkpoint],
  log: Sequence[str],
  spent: 'goodput.Goodput | None' = None,
) -> list[str]:
  """All about one run, on a screen.

  Args:
    run: the run.
    record: its run.json.
    best: see `comparing.best_of`.
    checkpoints: those without damage.
    log: the end of its output.
    spent: its wall time by purpose.
  """
  skipped = record.get('skipped_updates')
  rows = [
    ('status', run.status + (f': {run.reason}' if run.reason else '')),
    ('stage', record.get('stage')),
    ('step', None if run.step is None else f'{run.step} of {run.train_steps}' if run.train_steps else run.step),
    ('time left', duration(run.eta_seconds)),
    ('speed', None if run.steps_per_second is None else f'{run.steps_per_second:.3g} steps/s'),
    ('goodput', None if spent is None else _goodput(spent)),
    ('training', '  '.join(f'{name} {number(value)}' for name, value in run.train.items())),
    ('validation', _validation(run)),
    ('skipped', f'{skipped} updates: not finite, or a spike of the loss' if skipped else None),
    ('best', None if best is None else f'{best[0]} {number(best[1])} (step {best[2]})'),
    ('checkpoints', ', '.join(each.name for each in checkpoints)),
    ('TensorBoard', f'tensorboard --logdir={shlex.quote(run.path)}'),
    ('experiment', run.experiment),
    ('imported', _origin(record)),
    ('command', record.get('command')),
    ('folder of it', record.get('cwd')),
    ('process', f'{record["pid"]} on {record.get("host")}' if record.get('pid') else None),
    ('started', moment(run.started) + (f', attempt {run.attempt}' if run.attempt else '')),
    ('updated', moment(run.updated)),
    ('devices', record.get('devices')),
    ('git commit', record.get('git_commit')),
    ('tags', ', '.join(run.tags)),
    ('note', run.note),
  ]
  lines = [harmless(run.path), *(f'  {name:<12} {harmless(value)}' for name, value in rows if value not in (None, ''))]
  return [*lines, *(['  log'] if log else []), *(f'    {line}' for line in log)]


def _origin(record: Mapping[str, object]) -> str | None:
  """The tracker and the source of an imported run."""
  imported = record.get('imported')
  return f'from {imported.get("tracker")}: {imported.get("source")}' if isinstance(imported, dict) else None


def _goodput(spent: 'goodput.Goodput') -> str:
  """The share of training in the wall time, and all other shares of a percent at least, the largest first."""
  parts = {name: value for name, value in dataclasses.asdict(spent).items() if name not in ('seconds', 'training')}
  others = [
    f'{name} {value / spent.seconds:.0%}'
    for name, value in sorted(parts.items(), key=lambda item: -item[1])
    if value >= 0.005 * spent.seconds
  ]
  share = f'training is {spent.training / spent.seconds:.0%} of {duration(spent.seconds)}'
  return '; '.join([share, *([', '.join(others)] if others else [])])


def of_completions(log: Mapping[str, Any]) -> list[str]:
  """The completions of one step: for each prompt, its completion and the other values below it."""
  columns = log['columns']
  prompts, others = columns.get('prompts', ()), [name for name in columns if name not in ('prompts', 'completions')]
  lines = [f'  completions at step {log["step"]}']
  for number, (prompt, completion) in enumerate(zip(prompts, columns.get('completions', ()))):
    before = prompts[number - 1] if number else None
    lines += [f'    {_text_cell(prompt)}'] if prompt != before else []  # Completions of a group have one prompt.
    lines.append(f'      -> {_text_cell(completion)}')
    values = '  '.join(f'{harmless(name)} {_text_cell(columns[name][number])}' for name in others)
    lines += [f'         {values}'] if values else []
  return lines


def _text_cell(value: object) -> str:
  """A number, or the end of a text in one line."""
  text = number(value) if value is None or isinstance(value, float) else harmless(value)
  return text if len(text) <= _MAX_TEXT else f'...{text[-_MAX_TEXT:]}'


def _validation(run: summaries.RunSummary) -> str | None:
  metrics = '  '.join(f'{name} {number(value)}' for name, value in run.evaluation.items())
  return f'{metrics}  (step {run.evaluation_step})' if metrics else None


def of_checkpoints(found: Sequence[run_checkpoints.Checkpoint]) -> list[str]:
  """A table of checkpoints, a line each."""
  rows = [['CHECKPOINT', 'STEP', 'FOR', 'MB', 'WRITTEN', 'METRICS']]
  for each in found:
    numbers = [f'{harmless(name)} {number(value)}' for name, value in each.logs.items() if isinstance(value, float)]
    kind = each.damage or ('the best' if each.is_best else each.kind)
    size = f'{each.size / 1e6:.1f}'
    rows.append([harmless(each.name), str(each.step), harmless(kind), size, moment(each.time), '  '.join(numbers)])
  return table(rows)


def of_timeline(found: 'timeline.Timeline') -> list[str]:
  """A line for each event, the last one last."""
  rows = [['TIME', 'EVENT', 'STEP', 'TELLS']]
  for each in found.events:
    steps = str(each.step) if each.count == 1 else f'{each.first_step} to {each.step} ({each.count})'
    values = '  '.join(f'{name} {value}' for name, value in each.values.items())[: 3 * _MAX_CELL]
    event = f'{each.event} ({each.mode})' if each.mode else each.event
    told = harmless(values) + ('  (superseded)' if each.is_superseded else '')
    rows.append([moment(each.time), harmless(event), steps, told])
  return table(rows)


def of_comparison(found: comparing.Comparison) -> list[str]:
  """A table with a column for each run."""
  rows: list[list[str]] = [['', *map(harmless, found.names)]]
  rows += [['status', *found.statuses], ['step', *(_cell(step) for step in found.steps)]]
  for title, group in (('fields that differ', found.params), ('last metrics', found.last)):
    rows += _group(title, {name: [_cell(value) for value in values] for name, values in group.items()})
  best = {
    name: ['-' if pair is None else f'{number(pair[0])} (step {pair[1]})' for pair in pairs]
    for name, pairs in found.best.items()
  }
  rows += _group('best metrics', best)
  rows += _group('origins that differ', {name: list(map(_cell, values)) for name, values in found.origins.items()})
  return table(rows)


def _group(title: str, rows: Mapping[str, Sequence[str]]) -> list[list[str]]:
  if not rows:
    return []
  return [[], [f'{title}:'], *([f'  {harmless(name)}', *values] for name, values in rows.items())]


def of_trash(found: Sequence[trash.Deleted]) -> list[str]:
  """A table of the trash."""
  rows = [[harmless(each.name), harmless(each.deleted), each.key] for each in found]
  return table([['RUN', 'DELETED', 'KEY'], *rows])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
  """Lines whose cells stand below each other."""
  full = [row for row in rows if len(row) > 1]
  widths = [max(len(row[column]) for row in full if column < len(row)) for column in range(max(map(len, full)))]
  return [
    '  '.join(f'{cell:<{width}}' for cell, width in zip(row, widths)).rstrip() if len(row) > 1 else ''.join(row)
    for row in rows
  ]


def markdown(rows: Sequence[Sequence[str]], rule: Sequence[str]) -> list[str]:
  """The lines of a table of GitHub's Markdown: the first row is its head, `rule` the line below it."""
  return [f'| {" | ".join(row)} |' for row in [rows[0], rule, *rows[1:]]]


def markdown_cell(value: object) -> str:
  """A value for a cell of such a table."""
  return re.sub(r'([\\`*_|<>\[\]&~$])', r'\\\1', harmless(value))


def csv_cell(value: object) -> object:
  """A value for a cell of a CSV file; text that a spreadsheet would compute begins with a quote."""
  if not isinstance(value, str):
    return '' if value is None else value
  text = harmless(value)
  return f"'{text}" if text.startswith(('=', '+', '-', '@')) else text


def number(value: object) -> str:
  """A number to four digits; '-' for none."""
  return '-' if value is None else f'{value:.4g}' if isinstance(value, float) else harmless(value)


def duration(seconds: float | None) -> str:
  """Seconds as `1:23:45`; '' for none."""
  if seconds is None or not math.isfinite(seconds):
    return ''
  return str(datetime.timedelta(seconds=round(seconds)))


def moment(seconds: float | None) -> str:
  """A moment in local time; '' for none."""
  try:
    return '' if seconds is None else time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))
  except (OverflowError, ValueError, OSError):
    return ''


def _cell(value: object) -> str:
  text = number(value) if value is None or isinstance(value, float) else harmless(value)
  return text if len(text) <= _MAX_CELL else f'{text[: _MAX_CELL - 3]}...'
