"""The runs of a folder with their summaries: status, step, last metrics.

The contents of their files are cached, by the files' size, time and inode. The cache lies in the user's cache folder
(base/files/cache.py). It is rebuilt from the files if it is missing, damaged, or of another version. Facts that change
with time, such as whether a process lives, are not in it.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import json
import math
import os
import threading
import time
import zlib

import official_ext.base
from official_ext.base import json_values
from official_ext.base import processes
from official_ext.base.files import cache
from official_ext.base.files import paths
from official_ext.operations.runs import event_log
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import statuses
from official_ext.operations.runs import trash

# Of a run's record: the fields for a summary, and for the judgement of its status.
RECORD_KEYS = (
  'status',
  'stage',
  'step',
  'error',
  'mode',
  'host',
  'pid',
  'pid_start',
  'boot_id',
  'pid_namespace',
  'machine_id',
  'launcher',
  'train_steps',
  'attempt',
  'started',
  'updated',
  'heartbeat',
  'monotonic',
  'finished',
  'experiment',
  'early_stopped',
  'imported',
)


@dataclasses.dataclass(frozen=True)
class RunSummary:
  """A run in a line.

  Attributes:
    name: see run_folders.py.
    path: likewise.
    status: see statuses.py.
    reason: likewise.
    experiment: the name of its experiment; '' if it is not known.
    mode: the mode of its last start.
    step: the last step that it has reached; None if it has not begun.
    train_steps: the step at which its training ends.
    percent: how much of that is done, 0 to 100.
    eta_seconds: how long the training still takes, of a run that trains.
    steps_per_second: how fast it trained last.
    train: its last training metrics.
    evaluation: its last validation metrics.
    evaluation_step: their step; None without an evaluation.
    attempt: how often it was started.
    started: when it was last started, in seconds since 1970.
    updated: when it last reached another step or stage, or its end.
    tags: see run_folders.py.
    note: likewise.
    is_archived: whether it is kept out of lists: see trash.py.
    start: distinguishes its last start from any other of any run; '' if it is not known.
  """

  name: str
  path: str
  status: str
  reason: str
  experiment: str = ''
  mode: str = ''
  step: int | None = None
  train_steps: int | None = None
  percent: float | None = None
  eta_seconds: float | None = None
  steps_per_second: float | None = None
  train: Mapping[str, float] = dataclasses.field(default_factory=dict)
  evaluation: Mapping[str, float] = dataclasses.field(default_factory=dict)
  evaluation_step: int | None = None
  attempt: int | None = None
  started: float | None = None
  updated: float | None = None
  tags: tuple[str, ...] = ()
  note: str = ''
  is_archived: bool = False
  start: str = ''

  def metric(self, name: str) -> float | None:
    """A metric by its name: of the last evaluation, or else of the last training loop; None without it."""
    value = self.evaluation_metric(name)
    return self.train.get(name) if value is None else value

  def evaluation_metric(self, name: str) -> float | None:
    """A metric of the last evaluation; `validation_accuracy` is the evaluation's metric of the training's name."""
    return self.evaluation.get(name, self.evaluation.get(name.removeprefix('validation_')))

  def as_dict(self) -> json_values.JsonObject:
    """JSON values; a number that is not finite is a string, as in events.jsonl."""
    return json_values.as_strict(dataclasses.asdict(self))


def summarise(
  name: str,
  path: str,
  files: json_values.JsonMapping,
  hung_seconds: float = statuses.HUNG_SECONDS,
) -> RunSummary:
  """Summarises a run as it stands now.

  Args:
    name: see RunSummary.
    path: likewise.
    files: the contents of its files: record, started, stop_request, notes, archived (None if missing), and
      events, a LastEvents.
    hung_seconds: see statuses.py.
  """
  record, events = files['record'] or {}, files['events']
  found = statuses.judge(files['record'], files['started'], files['stop_request'], hung_seconds)
  last, train = events.last or {}, events.train or {}
  step = last.get('step', record.get('step'))
  train_steps = record.get('train_steps') or None
  noted = run_folders.parse_notes(files['notes'])
  return RunSummary(
    name=name,
    path=path,
    status=found.status,
    reason=found.reason,
    experiment=_text_of(record.get('experiment')),
    mode=_text_of(record.get('mode')),
    step=step,
    train_steps=train_steps,
    percent=_percent(step, train_steps),
    eta_seconds=_time_left(train) if found.status in ('running', 'stopping') else None,
    steps_per_second=_finite_number(train.get('steps_per_second')),
    train=event_log.metrics_of(train),
    evaluation=event_log.metrics_of(events.evaluation),
    evaluation_step=(events.evaluation or {}).get('step'),
    attempt=record.get('attempt'),
    started=json_values.timestamp_seconds(record.get('started'))
    or json_values.timestamp_seconds((files['started'] or {}).get('started')),
    updated=json_values.timestamp_seconds(record.get('updated')) or _finite_number(last.get('time')),
    tags=noted.tags,
    note=noted.note,
    is_archived=files['archived'] is not None,
    start=_start(files['record'], files['started']),
  )


def _start(record: json_values.JsonMapping | None, started: json_values.JsonMapping | None) -> str:
  newest = started if statuses.is_later(started, record) else record
  process = processes.parse_identity(newest or {})
  if newest is None or process is None:
    return ''
  return f'{process.boot_id or process.host}/{process.pid}/{process.pid_start or newest.get("started")}'


def _time_left(train: Mapping[str, object]) -> float | None:
  """The present rest of the time that was left at a training event."""
  left, then = _finite_number(train.get('eta_seconds')), _finite_number(train.get('time'))
  if left is None or then is None or not math.isfinite(left):
    return None
  return max(0.0, left - max(0.0, time.time() - then))


def _percent(step: int | None, train_steps: int | None) -> float | None:
  """How much of a training is done, 0 to 100; None if that is not known."""
  if step is None or not train_steps or train_steps < 0:
    return None
  return max(0.0, min(100.0, 100.0 * step / train_steps))


def _finite_number(value: object) -> float | None:
  return value if json_values.is_number(value) else None


def _text_of(value: object) -> str:
  return value if isinstance(value, str) else ''


_FORMAT = 2
_MAX_BYTES = 1 << 30
_RACY_SECONDS = 0.1  # A file that has just changed may change again within one tick of its file system's clock.


class RunIndex:
  """The runs of a folder. Threads may share one."""

  def __init__(self, root: str, cache_folder: str | None = None, origin: str = ''):
    """Reads nothing yet.

    Args:
      root: the folder with the runs.
      cache_folder: where the cache is; None: in the user's cache folder.
      origin: the remote folder of which `root` is a copy, for the paths in summaries; '' if it is none.
    """
    self.root = paths.absolute(root)
    self._origin = origin
    folder = cache_folder or os.path.join(cache.root(), 'runs')
    name = cache.key_of(os.path.realpath(self.root))
    self._facts = _Cache(os.path.join(folder, f'{name}.json'))
    self._params = _Cache(os.path.join(folder, f'{name}.params.json'))
    self._lock = threading.Lock()
    self._params_lock = threading.Lock()  # Separate: configurations take longer to read.
    self._settled: dict[str, tuple[json_values.JsonObject, RunSummary]] = {}

  def summaries_of(self, names: Iterable[str]) -> list[RunSummary]:
    """A current summary of each existing run of some names, without reading the others.

    Args:
      names: as `summaries` has them.
    """
    found = []
    with self._lock:
      known = self._facts.entries()
      for name in names:
        run = run_folders.Run(os.path.normpath(os.path.join(self.root, name)), name)
        try:
          files = _files_of(run, paths.names(run.path))
        except OSError:
          continue
        keys = {part: _key_of_file(path) for part, path in files.items()}
        entry = known.get(name)
        if entry is None or entry['keys'] != keys:
          entry = known[name] = _read_files(run, files, keys, entry)
        found.append(summarise(name, self._place(name), _parsed(entry)))
    return found

  def _place(self, name: str) -> str:
    """The path of a run in a summary."""
    path = os.path.normpath(os.path.join(self.root, name))
    return path.replace(self.root, self._origin, 1) if self._origin else path

  def summaries(self, hung_seconds: float = statuses.HUNG_SECONDS) -> list[RunSummary]:
    """A summary of each run, as it stands now, by name.

    Raises:
      UserError: the folder cannot be read.
    """
    with self._lock:
      known, read_any = self._facts.entries(), False
      facts: dict[str, json_values.JsonObject] = {}
      for run, names in run_folders.scan(self.root):
        files = _files_of(run, names)
        keys = {part: _key_of_file(path) for part, path in files.items()}
        entry = known.get(run.name)
        if entry is None or entry['keys'] != keys:
          entry = _read_files(run, files, keys, entry)
          read_any = True
        facts[run.name] = entry
      if read_any or len(facts) != len(known):
        self._facts.replace(facts)
      found = [self._summary(name, entry, hung_seconds) for name, entry in facts.items()]
      self._settled = {name: kept for name, kept in self._settled.items() if name in facts}
      return found

  def _summary(self, name, entry, hung_seconds):
    """The summary of a run; the same object as before if its files and its status have not changed."""
    kept = self._settled.get(name)
    if kept is not None and kept[0] is entry:
      return kept[1]
    summary = summarise(name, self._place(name), _parsed(entry), hung_seconds)
    if statuses.is_settled(entry['record'], entry['started']):
      self._settled[name] = entry, summary
    return summary

  def params(self) -> dict[str, json_values.JsonObject]:
    """The configuration of each run that has one, by name: dotted path -> value. Short names are added as keys."""
    with self._params_lock:
      known, entries, read_any = self._params.entries(), {}, False
      for run, names in run_folders.scan(self.root):
        if run_folders.PARAMS not in names:
          continue
        key = [_key_of_file(run.file(run_folders.PARAMS)), 'run.json' in names]
        entry = known.get(run.name)
        if entry is None or entry['key'] != key:
          short_names = (run.record() or {}).get('short_names')
          entry = {
            'key': key,
            'values': json_values.as_strict(run_folders.read_params(run) or {}),
            'short_names': short_names if isinstance(short_names, dict) else {},
          }
          read_any = True
        entries[run.name] = entry
      if read_any or len(entries) != len(known):
        self._params.replace(entries)
      return {
        name: run_folders.with_short_names(entry['values'], entry['short_names']) for name, entry in entries.items()
      }


def summary_of(run: run_folders.Run) -> RunSummary:
  """The summary of one run as it stands now, without the cache."""
  files = _files_of(run, paths.names(run.path))
  return summarise(run.name, run.place, _parsed(_read_files(run, files, {}, None)))


class _Cache:
  """Entries by the name of their run, in memory and in a file."""

  def __init__(self, path: str):
    self._path = path
    self._entries: json_values.JsonObject | None = None

  def entries(self) -> json_values.JsonObject:
    """The cached contents; {} if there is no valid file."""
    if self._entries is None:
      self._entries = self._load()
    return self._entries

  def replace(self, entries: json_values.JsonObject) -> None:
    """Keeps other entries from now on. If the file cannot be written, they are in memory alone."""
    self._entries = entries
    content = json.dumps(entries).encode()
    header = {'format': _FORMAT, 'version': official_ext.base.__version__, 'crc': zlib.crc32(content)}
    try:
      os.makedirs(os.path.dirname(self._path), exist_ok=True)
      temporary = f'{self._path}.tmp-{os.getpid()}-{threading.get_ident()}'
      paths.write_atomically(self._path, json.dumps(header).encode() + b'\n' + content, temporary, sync=False)
    except OSError:
      pass

  def _load(self) -> dict[str, object]:
    try:
      header, _, content = paths.read(self._path, _MAX_BYTES).partition(b'\n')
      expected = {'format': _FORMAT, 'version': official_ext.base.__version__, 'crc': zlib.crc32(content)}
      return json.loads(content) if json.loads(header) == expected else {}
    except (OSError, ValueError, RecursionError):
      return {}


def _files_of(run: run_folders.Run, names: list[str]) -> dict[str, str | None]:
  """The path of each file that a summary needs; None for a missing one."""
  modes = run_folders.modes_in(names)
  mode = modes[0] if modes else 'train'
  files = {
    'record': run_folders.name_of_mode('run', 'json', mode),
    'started': run_folders.name_of_mode('started', 'json', mode),
    'stop_request': run_folders.name_of_mode('stop', 'json', mode),
    'notes': run_folders.NOTES,
    'archived': trash.ARCHIVED,
    'events': run_folders.name_of_mode('events', 'jsonl', mode),
  }
  there = set(names)
  return {part: f'{run.path}/{name}' if name in there else None for part, name in files.items()}


def _key_of_file(path: str | None) -> list[int] | None:
  """The stamp of a file: its size, time and inode; None if it is missing."""
  if path is None:
    return None
  try:
    found = os.stat(path)
  except OSError:
    return None
  # Unequal to any other where another change may go unseen.
  racy = time.time_ns() if abs(time.time() - found.st_mtime) < _RACY_SECONDS else 0
  return [found.st_size, found.st_mtime_ns, found.st_ino, racy]


def _read_files(run, files, keys, before) -> json_values.JsonObject:
  """The contents of a run's files. The earlier contents of unchanged files are reused."""
  entry: dict[str, object] = {'keys': keys}
  for part, path in files.items():
    if before is not None and before['keys'][part] == keys[part]:
      entry[part] = before[part]
    elif path is None:
      entry[part] = None
    elif part == 'record':
      name = os.path.basename(path)
      record = run.record('train' if name == 'run.json' else name.split('.')[1])
      entry[part] = None if record is None else {key: record[key] for key in RECORD_KEYS if key in record}
    elif part == 'events':
      found = event_log.read_last(path)
      last = {key: value for key, value in (found.last or {}).items() if key in ('event', 'step', 'time')}
      entry[part] = [last, found.train, found.evaluation]
    else:
      entry[part] = json_values.read_file(path)
  return entry


def _parsed(entry: json_values.JsonMapping) -> json_values.JsonObject:
  return {**entry, 'events': event_log.LastEvents(*(entry['events'] or ()))}
