"""The common part of `official-ext runs`: arguments, the named runs, and runs as text for a terminal.

Text from a run is escaped.
"""

import argparse
import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import itertools
import math
import os
import re
import shlex
import time
from typing import TYPE_CHECKING, Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import number_ranges
from official_ext.base import terminal_row
from official_ext.base.files import paths
from official_ext.base.safe_text import printable as harmless
from official_ext.cli import arguments as arguments_lib
from official_ext.cli import json_output
from official_ext.operations.runs import artifacts
from official_ext.operations.runs import event_log
from official_ext.operations.runs import remote_runs
from official_ext.operations.runs import run_comparison
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from official_ext.operations.runs import trash

if TYPE_CHECKING:
  from official_ext.operations.curves import timing


_MAX_METRICS = 3
_MAX_CELL = 60
_MAX_TEXT = 300  # Characters of a prompt or a completion.


def runs_table(runs: Sequence[run_index.RunSummary], metrics: Sequence[str] = ()) -> list[str]:
  """A table of runs, a line each.

  Args:
    runs: the runs.
    metrics: the names of the metrics to show; by default the last evaluation's, or else the training's.
  """
  header = ['RUN', 'STATUS', 'STEP', '%', 'LEFT', 'EXPERIMENT', 'TAGS', 'METRICS']
  rows = [
    [
      harmless(run.name),
      run.status,
      '' if run.step is None else f'{run.step}/{run.train_steps}' if run.train_steps else str(run.step),
      '' if run.percent is None else f'{run.percent:.0f}',
      duration_text(run.eta_seconds),
      harmless(run.experiment),
      harmless(','.join(run.tags)),
      _metrics(run, metrics),
    ]
    for run in runs
  ]
  return text_table([header, *rows])


def _metrics(run: run_index.RunSummary, names: Sequence[str]) -> str:
  if not names:
    shown: Mapping[str, float] = run.evaluation or run.train
    names = list(shown)[:_MAX_METRICS]
    reason = '' if run.status in ('running', 'finished', 'stopping') else harmless(_cause(run.reason))[:_MAX_CELL]
    return '  '.join(filter(None, [*(f'{harmless(name)} {number_text(shown[name])}' for name in names), reason]))
  return '  '.join(f'{harmless(name)} {number_text(run.metric(name))}' for name in names)


def _cause(reason: str) -> str:
  """The cause in a reason, for a narrow column: without the status and the type of the error before it."""
  return re.sub(r'^(?:ended with status \d+[^:]*: )?(?:error: |\w+Error: )?', '', reason)


def run_lines(
  run: run_index.RunSummary,
  record: Mapping[str, object],
  best: tuple[str, float, int] | None,
  checkpoints: Sequence[artifacts.Checkpoint],
  log: Sequence[str],
  spent: 'timing.Goodput | None' = None,
  title: str = 'log',
) -> list[str]:
  """All about one run, on a screen.

  Args:
    run: the run.
    record: its run.json.
    best: see `run_comparison.best_of`.
    checkpoints: the undamaged ones.
    log: the end of its output.
    spent: its wall time by purpose.
    title: of `log`.
  """
  skipped = record.get('skipped_updates')
  balances: Any = record.get('balance') or {}
  rows = [
    ('status', run.status + (f': {run.reason}' if run.reason else '')),
    ('stage', record.get('stage')),
    ('step', None if run.step is None else f'{run.step} of {run.train_steps}' if run.train_steps else run.step),
    ('time left', duration_text(run.eta_seconds)),
    ('speed', None if run.steps_per_second is None else f'{run.steps_per_second:.3g} steps/s'),
    ('goodput', None if spent is None else _goodput(spent)),
    ('training', '  '.join(f'{name} {number_text(value)}' for name, value in run.train.items())),
    ('validation', _validation(run)),
    ('skipped', f'{skipped} updates: not finite, or a spike of the loss' if skipped else None),
    ('best', None if best is None else f'{best[0]} {number_text(best[1])} (step {best[2]})'),
    ('checkpoints', ', '.join(each.name for each in checkpoints)),
    ('TensorBoard', f'tensorboard --logdir={shlex.quote(run.path)}'),
    ('experiment', run.experiment),
    ('imported', _origin(record)),
    ('command', record.get('command')),
    ('folder of it', record.get('cwd')),
    ('process', f'{record["pid"]} on {record.get("host")}' if record.get('pid') else None),
    ('started', moment_text(run.started) + (f', attempt {run.attempt}' if run.attempt else '')),
    ('updated', moment_text(run.updated)),
    ('devices', record.get('devices')),
    *((name, '; '.join(each['text'] for each in found)) for name, found in balances.items()),
    ('git commit', record.get('git_commit')),
    ('tags', ', '.join(run.tags)),
    ('note', run.note),
  ]
  lines = [harmless(run.path), *(f'  {name:<12} {harmless(value)}' for name, value in rows if value not in (None, ''))]
  return [*lines, *([f'  {title}'] if log else []), *(f'    {line}' for line in log)]


# Event -> what has happened; the names in braces are values of the event, those of `shown` their words.
_HAPPENED = {
  'start': 'started: {mode}',
  'imported': 'imported from {tracker}',
  'restored': 'restored {checkpoint}',
  'compiled': 'compiled the step in {seconds} s: {step_shape}',
  'train': 'trained to step {step}: {metrics}',
  'eval': 'evaluated step {step}: {metrics}',
  'completions': 'completed prompts at step {step}',
  'checkpoint': 'saved {checkpoint}',
  'checkpoint_failed': 'could not save {checkpoint}: {error}',
  'update_skipped': 'skipped the update of step {step}: {cause}',
  'rollback': 'rolled back from step {from_step} to {step}: {reason}',
  'learning_rate_reduced': 'reduced the learning rate at step {step}: {metrics}',
  'early_stopped': 'stopped early at step {step}: {reason}',
  'preempted': 'preempted at step {step}: {error}',
  'finished': 'finished at step {step}',
  'failed': 'failed at step {step}: {error}',
  'hung': 'hung at step {step}: {error}',
}


def event_lines(events: Iterable[Mapping[str, Any]]) -> list[str]:
  """A line for each event: its time, and what has happened, in words and numbers of four digits.

  Skipped updates that follow each other share a line.
  """
  lines: list[str] = []
  for name, group in itertools.groupby(events, key=lambda event: event.get('event')):
    found = list(group)
    together = name == 'update_skipped' and len(found) > 1
    for event in found[-1:] if together else found:
      words = _words_of(event)
      if together:
        cause = next((f': {each["cause"]}' for each in found if each.get('cause')), '')
        steps = [step for each in found if isinstance(step := each.get('step'), int)]
        words = f'skipped {len(found)} updates, of {number_ranges.describe_with_noun("step", steps, most=5)}{cause}'
      lines.append(harmless(f'{moment_text(event.get("time"))}  {words}'))
  return lines


def _words_of(event: Mapping[str, Any]) -> str:
  metrics = '  '.join(f'{name} {number_text(value)}' for name, value in event_log.metrics_of(event).items())
  values = {name: number_text(value) for name, value in event.items() if isinstance(value, (str, int, float))}
  values['metrics'] = metrics
  if 'checkpoint' in event:
    values['checkpoint'] = os.path.basename(str(event['checkpoint']))
  text = _HAPPENED.get(str(event.get('event')), '{event} at step {step}: {metrics}')
  return text.format_map(collections.defaultdict(str, values)).rstrip(': ')


def _origin(record: Mapping[str, object]) -> str | None:
  """The tracker and the source of an imported run."""
  imported = record.get('imported')
  return f'from {imported.get("tracker")}: {imported.get("source")}' if isinstance(imported, dict) else None


def _goodput(spent: 'timing.Goodput') -> str:
  """The share of training in the wall time, and all other shares of a percent at least, the largest first."""
  parts = {name: value for name, value in dataclasses.asdict(spent).items() if name not in ('seconds', 'training')}
  others = [
    f'{name} {value / spent.seconds:.0%}'
    for name, value in sorted(parts.items(), key=lambda item: -item[1])
    if value >= 0.005 * spent.seconds
  ]
  share = f'training is {spent.training / spent.seconds:.0%} of {duration_text(spent.seconds)}'
  return '; '.join([share, *([', '.join(others)] if others else [])])


def completions_table(log: Mapping[str, Any]) -> list[str]:
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
  text = number_text(value) if value is None or isinstance(value, float) else harmless(value)
  return text if len(text) <= _MAX_TEXT else f'...{text[-_MAX_TEXT:]}'


def _validation(run: run_index.RunSummary) -> str | None:
  metrics = '  '.join(f'{name} {number_text(value)}' for name, value in run.evaluation.items())
  return f'{metrics}  (step {run.evaluation_step})' if metrics else None


def checkpoints_table(found: Sequence[artifacts.Checkpoint]) -> list[str]:
  """A table of checkpoints, a line each."""
  rows = [['CHECKPOINT', 'STEP', 'FOR', 'MB', 'WRITTEN', 'METRICS']]
  for each in found:
    numbers = [
      f'{harmless(name)} {number_text(value)}' for name, value in each.logs.items() if isinstance(value, float)
    ]
    kind = each.damage or ('the best' if each.is_best else each.kind)
    size = f'{each.size / 1e6:.1f}'
    rows.append([harmless(each.name), str(each.step), harmless(kind), size, moment_text(each.time), '  '.join(numbers)])
  return text_table(rows)


def timeline_table(found: 'timing.Timeline') -> list[str]:
  """A line for each event, the last one last."""
  rows = [['TIME', 'EVENT', 'STEP', 'VALUES']]
  for each in found.events:
    steps = str(each.step) if each.count == 1 else f'{each.first_step} to {each.step} ({each.count})'
    values = '  '.join(f'{name} {number_text(value)}' for name, value in each.values.items())[: 3 * _MAX_CELL]
    event = f'{each.event} ({each.mode})' if each.mode else each.event
    shown = harmless(values) + ('  (superseded)' if each.is_superseded else '')
    rows.append([moment_text(each.time), harmless(event), steps, shown])
  return text_table(rows)


def comparison_tables(found: run_comparison.Comparison) -> list[str]:
  """A table with a column for each run."""
  rows: list[list[str]] = [['', *map(harmless, found.names)]]
  rows += [['status', *found.statuses], ['step', *(_cell(step) for step in found.steps)]]
  for title, group in (('fields that differ', found.params), ('last metrics', found.last)):
    rows += _group(title, {name: [_cell(value) for value in values] for name, values in group.items()})
  best = {
    name: ['-' if pair is None else f'{number_text(pair[0])} (step {pair[1]})' for pair in pairs]
    for name, pairs in found.best.items()
  }
  rows += _group('best metrics', best)
  rows += _group('origins that differ', {name: list(map(_cell, values)) for name, values in found.origins.items()})
  return text_table(rows)


def _group(title: str, rows: Mapping[str, Sequence[str]]) -> list[list[str]]:
  if not rows:
    return []
  return [[], [f'{title}:'], *([f'  {harmless(name)}', *values] for name, values in rows.items())]


def trash_table(found: Sequence[trash.Deleted]) -> list[str]:
  """A table of the trash."""
  rows = [[harmless(each.name), harmless(each.deleted), each.key] for each in found]
  return text_table([['RUN', 'DELETED', 'KEY'], *rows])


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
  """Lines with aligned columns."""
  full = [row for row in rows if len(row) > 1]
  widths = [max(len(row[column]) for row in full if column < len(row)) for column in range(max(map(len, full)))]
  return [
    '  '.join(f'{cell:<{width}}' for cell, width in zip(row, widths)).rstrip() if len(row) > 1 else ''.join(row)
    for row in rows
  ]


def markdown_table(rows: Sequence[Sequence[str]], rule: Sequence[str]) -> list[str]:
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


def number_text(value: object) -> str:
  """A number to four digits; '-' for none."""
  return '-' if value is None else f'{value:.4g}' if isinstance(value, float) else harmless(value)


def duration_text(seconds: float | None) -> str:
  """Seconds as `1:23:45`; '' for none."""
  if seconds is None or not math.isfinite(seconds):
    return ''
  return terminal_row.duration(seconds)


def moment_text(seconds: float | None) -> str:
  """A moment in local time; '' for none."""
  try:
    return '' if seconds is None else time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))
  except (OverflowError, ValueError, OSError):
    return ''


def _cell(value: object) -> str:
  text = number_text(value) if value is None or isinstance(value, float) else harmless(value)
  return text if len(text) <= _MAX_CELL else f'{text[: _MAX_CELL - 3]}...'


def error_lines(error: Exception) -> list[str]:
  """The lines of an error, each harmless for a terminal and a line indeed."""
  return [harmless(line) for line in (error.lines if isinstance(error, errors.UserErrors) else [str(error)])]


def add_command(
  commands: Any,
  name: str,
  function: Callable[[Any], int | None],
  text: str,
  runs: str = 'RUN',
  as_json: bool = False,
  takes_remote: bool = False,
) -> arguments_lib.Parser:
  """Adds a command with RUNS_DIR, with any number of runs unless `runs` is '', and with --json if it has that.

  Args:
    commands: of `official-ext runs`.
    name: the command's.
    function: the implementation, called with the arguments.
    text: its help.
    runs: the name of the runs in the help.
    as_json: whether it prints JSON too.
    takes_remote: whether it takes copies of remote runs: see remote_runs.py.
  """
  found = arguments_lib.add_command(commands, name, function, text)
  found.set_defaults(takes_remote=takes_remote)
  found.add_argument('root', metavar='RUNS_DIR', type=arguments_lib.folder, help='the folder of the runs')
  if runs:
    found.add_argument('runs', metavar=runs, nargs='*', type=arguments_lib.folder, help='the path of a run below it')
  if as_json:
    found.add_argument(json_output.FLAG, action='store_true', help='print JSON')
  return found


def runs_of(options: argparse.Namespace, at_least: int = 1) -> tuple[str, list[run_folders.Run]]:
  """The folder with the runs, and the named runs. RUNS_DIR may itself be a run, and the first one.

  Runs on remote file systems are copied: see remote_runs.py. Such a run is named by its path, or below a remote
  RUNS_DIR by its name. Local and remote runs may be named together.
  """
  if remote := next(filter(paths.is_remote, (options.root, *options.runs)), ''):
    _check_takes_remote(options, remote)
    return options.root, _with_remote(options.root, options.runs, at_least)
  root, names = root_of(options), list(options.runs)
  if run_folders.is_run(root) and not (names and all(_is_below(root, name) for name in names)):
    names, root = [root, *names], os.path.dirname(os.path.abspath(root))
  found = {run.path: run for run in (run_folders.get_run(root, name) for name in names)}  # Each once.
  if len(found) < at_least:
    raise errors.UserError(f'{root}: name {"a run" if at_least == 1 else "two runs or more"} in this folder')
  return root, list(found.values())


def _with_remote(root: str, names: Sequence[str], at_least: int) -> list[run_folders.Run]:
  """The runs that are named by a command with remote paths."""
  root = paths.expanded(root)
  below = [os.path.join(root, name) for name in names]
  found = [paths.absolute(paths.expanded(name)) for name in names]
  found = [near if run_folders.is_run(near) or not run_folders.is_run(far) else far for near, far in zip(below, found)]
  found = [paths.real(path) for path in found]
  are_below = names and all(run_folders.paths_below(paths.real(root), path) for path in found)
  if not names or (run_folders.is_run(root) and not are_below):
    found = [paths.real(root), *found]
  found = list(dict.fromkeys(found))
  if len(found) < at_least:
    raise errors.UserError(f'{root}: name two runs or more, each by its path')
  titles = [path.removeprefix(f'{paths.real(root)}/') for path in found]
  titles = [os.path.basename(title) if title == path else title for title, path in zip(titles, found)]
  titles = [title if titles.count(title) == 1 else path for title, path in zip(titles, found)]
  for path in found:
    if not paths.is_remote(path) and not run_folders.is_run(path):
      raise errors.UserError(f'{path}: no run; name the folder that has its run.json')
  return [
    remote_runs.copied(path, title) if paths.is_remote(path) else run_folders.Run(path, title)
    for path, title in zip(found, titles)
  ]


def _check_takes_remote(options: argparse.Namespace, path: str) -> None:
  if not options.takes_remote:
    raise errors.UserError(
      f'{path}: `runs {options.command}` requires locks and renames of folders, which remote storage lacks; copy the '
      'run to a local folder'
    )


def index_of(options: argparse.Namespace, only_summaries: bool = True) -> run_index.RunIndex:
  """The runs in RUNS_DIR; in a copy, if it is remote.

  Args:
    options: of the command.
    only_summaries: whether no more of the runs is read than the index does.

  Raises:
    UserError: it cannot be read.
  """
  root = paths.expanded(options.root)
  if not paths.is_remote(root):
    return run_index.RunIndex(root_of(options))
  _check_takes_remote(options, root)
  mirror = remote_runs.Mirror(root, only_summaries)
  mirror.refresh()
  return run_index.RunIndex(mirror.path, mirror.cache, mirror.root)


def root_of(options: argparse.Namespace) -> str:
  """RUNS_DIR, which must be a local folder that exists."""
  root = paths.expanded(options.root)
  if paths.is_remote(root):
    _check_takes_remote(argparse.Namespace(command=options.command, takes_remote=False), root)
  run_folders.check_root(root)
  return root


def _is_below(root: str, name: str) -> bool:
  path = os.path.abspath(os.path.join(root, name))
  return run_folders.is_run(path) and run_folders.paths_below(os.path.abspath(root), path)


def do_with_each(runs: Sequence[object], do: Callable[[Any], json_values.JsonObject], as_json: bool = False) -> None:
  """Does something with each of some runs, and reports all errors at the end.

  Args:
    runs: the runs.
    do: called with each; returns its JSON document.
    as_json: whether the documents of those without an error are printed.
  """
  failures: list[Exception] = []
  documents: list[json_values.JsonObject] = []
  for one in runs:
    try:
      documents.append(do(one))
    except (errors.UserError, errors.StorageError) as error:
      if len(runs) == 1:
        raise
      failures.append(error)
  if as_json:
    print_json_of(documents)
  if failures:
    raise errors.joined([line for error in failures for line in error_lines(error)], failures)


def print_lines(lines: Sequence[str]) -> None:
  """Prints each line."""
  for line in lines:
    print(line)


def print_json_of(values: Sequence[object]) -> None:
  """Prints one thing for one run, a list for several, nothing for none."""
  if values:
    json_output.print_document(values[0] if len(values) == 1 else values)


def split_words(values: Sequence[str]) -> list[str]:
  """The words of a flag that is given several times, or has several with commas between them."""
  return [word for value in values for word in value.split(',') if word]


def run_of(options: argparse.Namespace) -> run_folders.Run:
  """The one run that is named."""
  _, runs = runs_of(options)
  if len(runs) > 1:
    raise errors.UserError(f'{options.root}: one run at a time, and {len(runs)} are named')
  return runs[0]


def print_state(name: str, what: str) -> json_values.JsonObject:
  """Prints the state of a run, in one line; returns it as JSON."""
  print(harmless(f'{name}: {what}'), flush=True)
  return {'name': name, 'state': what.partition(';')[0]}
