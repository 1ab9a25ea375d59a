"""The whole of a preparation: its folder, its plan, its shards by an engine, its result."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import time
from typing import Protocol

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import terminal_row
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.data import input_files
from official_ext.data import record_report
from official_ext.data.prepare import planning
from official_ext.data.prepare import shards

_LOCK = '.prepare.lock'


class Engine(Protocol):
  """An engine that runs `shards.write_or_report` somewhere."""

  def answers(self, jobs: Iterable[dict[str, object]]) -> Iterator[json_values.JsonObject | None]:
    """The answers to jobs, as they come, and reports before them; None every now and then."""


ShowProgress = Callable[[str, bool], None]
MakeEngine = Callable[[int], contextlib.AbstractContextManager[Engine]]


@dataclasses.dataclass(frozen=True)
class Prepared:
  """The result of a preparation.

  Attributes:
    plan: the plan executed.
    report: counts of the records.
    rows: how many were written.
    num_bytes: of all shards.
    num_there: the number of shards that an earlier start wrote.
    config_path: of a row format, a file for `--config_file`; '' else.
    notes: of the shards, in order.
    balance: the accounts of the input, as JSON values of `record_report.Balance`.
  """

  plan: planning.Plan
  report: record_report.RecordReport
  rows: int
  num_bytes: int
  num_there: int
  config_path: str
  notes: Sequence[json_values.JsonMapping] = ()
  balance: Sequence[json_values.JsonMapping] = ()


def prepare(
  inputs: Sequence[str],
  folder: str,
  settings: planning.Settings,
  make_engine: MakeEngine,
  row_format: planning.RowFormat | None = None,
  print_line: Callable[[str], None] = lambda line: None,
  stopped_by: Callable[[], str | None] = lambda: None,
  show: ShowProgress = lambda text, is_last: None,
) -> Prepared:
  """Makes shards of records, texts or images: see `prepare_plan`.

  Args:
    inputs: see `planning.make_plan`.
    folder: see `prepare_plan`.
    settings: of the output.
    make_engine: see `prepare_plan`.
    row_format: makes other rows of the records; None: they are written unchanged.
    print_line: see `prepare_plan`.
    stopped_by: see `prepare_plan`.
    show: see `prepare_plan`.
  """
  make_plan = lambda check: planning.make_plan(inputs, settings, row_format, check)
  return prepare_plan(make_plan, inputs, folder, make_engine, row_format, print_line, stopped_by, show)


def prepare_plan(
  make_plan: Callable[[Callable[[], None]], planning.Plan],
  inputs: Sequence[str],
  folder: str,
  make_engine: MakeEngine,
  outputs: planning.Outputs | None = None,
  print_line: Callable[[str], None] = lambda line: None,
  stopped_by: Callable[[], str | None] = lambda: None,
  show: ShowProgress = lambda text, is_last: None,
) -> Prepared:
  """Makes the shards of a plan, or resumes an earlier start of the same preparation.

  Args:
    make_plan: makes the plan; calls its argument while it reads the input, whose exceptions end the planning.
    inputs: the paths given, for messages.
    folder: where to: new, empty, or of this preparation.
    make_engine: makes the engine, for a number of shards.
    outputs: the files in addition to the shards; None for none.
    print_line: takes warnings.
    stopped_by: the name of a signal that asks it to end; None: continue.
    show: takes the state several times a second, and whether it is the last one: `3 of 12 shards, 27 %, 41000 records,
      1300 a second, 0:01:24 left`.

  Raises:
    UserError: of the input or the settings; the folder is of another preparation, or another process is at it.
    StorageError: something cannot be written. No half shard is left.
    PreemptedError: it was preempted.
    WorkerError: a process was lost.
  """
  folder = os.path.abspath(folder)
  _check_apart(inputs, folder)

  def check():
    if signal := stopped_by():
      raise errors.PreemptedError(f'{signal}: no shard is done yet; run the same command again to resume')

  plan = make_plan(check)
  for line in _repeated(plan):
    print_line(f'warning: {line}')
  with paths.storing(folder):
    paths.make_folder(folder)
  with _only_one(folder):
    with paths.storing(folder):
      _check_folder(folder, plan)
      shards.remove_partial(folder)
      # First: the folder is this plan's now.
      _write(os.path.join(folder, input_files.PLAN), json_values.encode(plan.identity()))
      _write_files(folder, outputs)
    try:
      notes, num_there = _notes(plan, folder, make_engine, show, stopped_by)
      _check_unchanged(plan, folder)
      report = record_report.RecordReport.total(record_report.RecordReport(**note['report']) for note in notes)
      _check_any(inputs, report)
    except errors.UserError:
      _forget_if_empty(folder, plan, outputs)  # So that the input may be repaired, which makes it another one.
      raise
    finally:  # Of processes that were stopped.
      with contextlib.suppress(OSError):  # Of a disk that is gone there is another error to report.
        shards.remove_partial(folder)
    with paths.storing(folder):
      results = outputs.results(folder, plan.settings, notes) if outputs else {}
      for name, content in results.items():
        _write(os.path.join(folder, name), content)
      balance = _balance_of(inputs, plan, report, results)
      _write_manifest(folder, plan, notes, report, balance)
  config_path = os.path.join(folder, outputs.config_name) if outputs else ''
  num_bytes, num_rows = (sum(note[name] for note in notes) for name in ('bytes', 'records'))
  return Prepared(plan, report, num_rows, num_bytes, num_there, config_path, notes, balance)


def _balance_of(inputs, plan, report, results) -> list[json_values.JsonObject]:
  """The accounts in the report of a conversion; without one, of the records."""
  known = json.loads(results[input_files.REPORT]) if input_files.REPORT in results else {}
  if 'balance' in known:
    return known['balance']
  found = report.balance(', '.join(inputs))
  found.unit = 'images' if plan.kind == 'images' else found.unit
  found.ignored.update(plan.ignored)
  return [found.values()]


def _check_any(inputs: Sequence[str], report: record_report.RecordReport) -> None:
  if not report.examples:
    names = ', '.join(inputs)
    reason = f'{names}: none of the {report.records} records can be used'
    raise errors.UserErrors([reason, *report.warnings(names, '--')])


def _check_apart(inputs: Sequence[str], folder: str) -> None:
  """Refuses an output that is an input, or a file."""
  for path in inputs:
    if os.path.realpath(os.path.expanduser(path)) == os.path.realpath(folder):
      raise errors.UserError(f'{folder}: is INPUT and OUTPUT at once; name another folder as OUTPUT')
  if os.path.exists(folder) and not os.path.isdir(folder):
    raise errors.UserError(f'{folder}: OUTPUT is a file; name a folder')


def _repeated(plan: planning.Plan) -> Iterator[str]:
  """A line for each input file that was given before, under any name."""
  of_images = ('images', 'annotated')
  pieces = [piece for shard in plan.shards for piece in shard.pieces]
  files = [piece.path for piece in pieces if piece.start == 0 and piece.how not in of_images]
  seen: dict[str, str] = {}
  for file in files:
    content = plan.contents[file].sha256
    if content in seen:
      other = 'was given before' if seen[content] == file else f'has the content of {seen[content]}'
      yield f'INPUT: {file} {other}: its records are prepared more than once'
    seen.setdefault(content, file)


def _check_unchanged(plan: planning.Plan, folder: str) -> None:
  """Makes sure that the input is the planned one; else its shards do not count any more.

  Raises:
    UserError: a file has changed meanwhile.
  """
  changed = set(planning.changed_files(plan.contents))
  if not changed:
    return
  for number, shard in enumerate(plan.shards):
    files = {os.path.join(piece.path, name) for piece in shard.pieces for name in shard.files}
    if changed & ({piece.path for piece in shard.pieces} | files):
      shards.remove(plan.job(number, folder))
  raise errors.UserError(f'{min(changed)}: has changed during the preparation; prepare another folder')


def _notes(plan, folder, make_engine, show, stopped_by) -> tuple[list[json_values.JsonObject], int]:
  """(the note of each shard, in order; how many of them existed before)."""
  found: dict[str, dict[str, object]] = {}
  total, num_there = len(plan.shards), 0
  with (
    make_engine(total) as engine,
    contextlib.closing(engine.answers(plan.job(number, folder) for number in range(total))) as answers,
  ):
    progress = _Progress(plan, show)
    for answer in answers:
      signal = stopped_by()
      if signal:
        raise errors.PreemptedError(
          f'{signal}: {len(found)} of {total} shards are done; run the same command again to resume'
        )
      if answer is None:
        continue
      if answer['end'] == shards.UNDER_WAY:
        progress.note(answer)
        continue
      _raise_failure(answer)
      _check_size(folder, answer)
      found[answer['name']] = answer['note']
      num_there += answer['was_there']
      progress.add(answer)
  return [found[shard.name] for shard in plan.shards], num_there


def _raise_failure(answer: Mapping[str, object]) -> None:
  kinds: dict[str, type[Exception]] = {
    shards.BAD_INPUT: errors.UserError,
    shards.NO_STORAGE: errors.StorageError,
    shards.FAILED: errors.WorkerError,
  }
  if answer['end'] in kinds:
    raise kinds[answer['end']](answer['message'])


def _check_size(folder: str, answer: json_values.JsonObject) -> None:
  """Makes sure that a shard is in the folder that is seen from here, and not in one of that name elsewhere."""
  path, num_bytes = os.path.join(folder, answer['name']), answer['note']['bytes']
  try:
    found = f'{os.path.getsize(path)} bytes found, expected {num_bytes}'
  except OSError as error:
    found = f'{error.strerror}'
  else:
    if os.path.getsize(path) == num_bytes:
      return
  raise errors.StorageError(
    f'{path}: has been written, and {found}; the folder must be one and the same on all machines'
  )


class _Progress:
  """The state in words: whole shards, the share of the input, and the time left, all with the parts of shards."""

  def __init__(self, plan: planning.Plan, show: ShowProgress):
    self._sizes = {shard.name: max(1, sum(piece.size for piece in shard.pieces)) for shard in plan.shards}
    self._show = show
    self._start = time.monotonic()
    self._done = self._there = self._records = 0
    self._size_done = self._size_there = 0
    self._under_way: dict[str, tuple[float, int]] = {}  # The share and the records of unfinished shards.

  def note(self, report: json_values.JsonMapping) -> None:
    """Notes a report before the end of a shard."""
    self._under_way[report['name']] = report['share'], report['records']
    self._show(self._text(), False)

  def add(self, answer: json_values.JsonMapping) -> None:
    """Notes the end of a shard."""
    self._under_way.pop(answer['name'], None)
    size = self._sizes[answer['name']]
    self._done += 1
    self._size_done += size
    if answer['was_there']:
      self._there += 1
      self._size_there += size
    else:
      self._records += answer['note']['report']['records']
    self._show(self._text(), self._done == len(self._sizes))

  def _text(self) -> str:
    total, seconds = sum(self._sizes.values()), max(time.monotonic() - self._start, 1e-3)
    done = self._size_done + sum(self._sizes[name] * share for name, (share, _) in self._under_way.items())
    records = self._records + sum(count for _, count in self._under_way.values())
    text = f'{self._done} of {len(self._sizes)} shards' + (f' ({self._there} existed)' if self._there else '')
    if self._done < len(self._sizes):
      text += f', {100 * done / total:.0f} %'
    if records:
      text += f', {records} records, {records / seconds:.0f} a second'
    worked = done - self._size_there
    if worked > 0 and self._done < len(self._sizes):
      text += f', {terminal_row.duration(seconds * (total - done) / worked)} left'
    return text


@contextlib.contextmanager
def _only_one(folder: str) -> Iterator[None]:
  """A context that one process at a time enters, for a folder."""
  path = os.path.join(folder, _LOCK)
  with contextlib.ExitStack() as stack:
    with paths.storing(path):
      try:
        lock = stack.enter_context(local_files.FileLock(path, 0.0))
      except TimeoutError as error:
        who = paths.read(path).decode(errors='replace')
        raise errors.StateError(f'{folder}: {who} is preparing it; wait for its end, or stop it') from error
      os.ftruncate(lock.descriptor, 0)
      os.write(lock.descriptor, f'process {os.getpid()} on {os.uname().nodename}'.encode())
    yield


def _check_folder(folder: str, plan: planning.Plan) -> None:
  """Refuses a folder with foreign files."""
  try:
    before = json_values.load_file(os.path.join(folder, input_files.PLAN), max_bytes=None)
  except FileNotFoundError:
    others = [name for name in paths.names(folder) if name != _LOCK and not name.endswith('.partial')]
    if others:
      raise errors.UserError(
        f'{folder}: holds {others[0]} already; name a folder that is not, or an empty one'
      ) from None
    return
  except (OSError, ValueError) as error:
    path = os.path.join(folder, input_files.PLAN)
    raise errors.UserError(f'{path}: is damaged ({error}); remove the folder, or name another') from error
  if 'content' not in before.get('inputs', {}):
    raise errors.UserError(
      f'{folder}: was begun by an older version, which did not note the content of its input; name another folder'
    )
  now = plan.identity()
  # Files written without errors are written again with the same contents.
  if now['settings']['on_bad_example'] == 'skip':
    before.get('settings', {}).pop('on_bad_example', None)
    now['settings'].pop('on_bad_example')
  different = list(_differences(before, now))
  if different:
    raise errors.UserErrors([f'{folder}: was begun otherwise; name another folder, or: {line}' for line in different])


def _differences(before: json_values.JsonObject, now: json_values.JsonObject) -> Iterator[str]:
  old, new = ({**part.get('settings', {}), 'kind': part.get('kind')} for part in (before, now))
  for name in sorted({*old, *new}):
    if old.get(name) != new.get(name):
      yield f'{name} was {json.dumps(old.get(name))}, and is {json.dumps(new.get(name))} now'
  for name in sorted({*before.get('inputs', {}), *now['inputs']}):
    if before.get('inputs', {}).get(name) != now['inputs'].get(name):
      yield f'{name} of the input was {before.get("inputs", {}).get(name)}, and is {now["inputs"].get(name)} now'
  if before.get('version') != now['version']:
    yield 'it was another version of this library'


def _forget_if_empty(folder: str, plan: planning.Plan, outputs: planning.Outputs | None) -> None:
  """Frees a folder without rows for another preparation. No process may be writing there."""
  jobs = [plan.job(number, folder) for number in range(len(plan.shards))]
  if any(map(shards.num_rows, jobs)):
    return
  with contextlib.suppress(OSError):  # The input's error is the one to report.
    for job in jobs:
      shards.remove(job)
    for name in outputs.files if outputs else ():
      top = os.path.join(folder, name.split(os.sep)[0])
      if os.path.isdir(top):
        paths.remove_folder(top)
      elif os.path.isfile(top):
        os.remove(top)
    paths.sync_to_disk(folder)  # Without the plan, the rest would look like foreign files.
    paths.remove(os.path.join(folder, input_files.PLAN))


def _write_files(folder: str, outputs: planning.Outputs | None) -> None:
  """Writes the files that a killed start may have left incomplete."""
  for name, content in outputs.files.items() if outputs else ():
    path = os.path.join(folder, name)
    paths.make_folder(os.path.dirname(path))
    shards.remove_partial(os.path.dirname(path))
    _write(path, content)


def _write_manifest(folder, plan, notes, report, balance) -> None:
  listed = [
    {'name': shard.name, **{name: note[name] for name in ('records', 'bytes', 'sha256')}}
    for shard, note in zip(plan.shards, notes)
  ]
  of_plan = {**plan.identity(), 'labels': list(plan.labels)}
  manifest = {**of_plan, 'report': report.counts(), 'balance': balance, 'shards': listed}
  _write(os.path.join(folder, input_files.MANIFEST), json_values.encode(manifest))


def _write(path: str, content: bytes) -> None:
  """Writes a file; the leftover of a kill has a name by which the next start removes it."""
  paths.write_atomically(path, content, shards.partial(path))
