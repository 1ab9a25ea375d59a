"""All runs of a folder in a moment: the contents of their files are cached, by the files' size, time and inode.

The cache lies in the user's cache folder (base/files/cache.py), and is only a cache: it is made anew from the files if
it is missing, damaged, or of another version. Facts that change with time, such as whether a process lives, are not in
it.
"""

from collections.abc import Iterable
import json
import os
import threading
import time
import zlib

import official_ext
from official_ext.base import json_types
from official_ext.base.files import cache
from official_ext.base.files import paths
from official_ext.operations.runs import json_files
from official_ext.operations.runs import judged_status
from official_ext.operations.runs import last_events
from official_ext.operations.runs import notes
from official_ext.operations.runs import params
from official_ext.operations.runs import run_folder
from official_ext.operations.runs import summaries
from official_ext.operations.runs import trash

_FORMAT = 2
_MAX_BYTES = 1 << 30
_RACY_SECONDS = 0.1  # A file that has just changed may change again within one tick of its file system's clock.


class RunIndex:
  """The runs of a folder. Threads may share one."""

  def __init__(self, root: str, cache_folder: str | None = None):
    """Reads nothing yet.

    Args:
      root: the folder with the runs.
      cache_folder: where the cache is; None: in the user's cache folder.
    """
    self.root = os.path.abspath(root)
    folder = cache_folder or os.path.join(cache.root(), 'runs')
    name = cache.key_of(os.path.realpath(self.root))
    self._facts = _Cache(os.path.join(folder, f'{name}.json'))
    self._params = _Cache(os.path.join(folder, f'{name}.params.json'))
    self._lock = threading.Lock()
    self._params_lock = threading.Lock()  # Separate: configurations take longer to read.
    self._settled: dict[str, tuple[json_types.JsonObject, summaries.RunSummary]] = {}

  def summaries_of(self, names: Iterable[str]) -> list[summaries.RunSummary]:
    """A current summary of each existing run of some names, without reading the others.

    Args:
      names: as `summaries` has them.
    """
    found = []
    with self._lock:
      known = self._facts.entries()
      for name in names:
        run = run_folder.Run(os.path.normpath(os.path.join(self.root, name)), name)
        try:
          files = _files_of(run, paths.names(run.path))
        except OSError:
          continue
        keys = {part: _key(path) for part, path in files.items()}
        entry = known.get(name)
        if entry is None or entry['keys'] != keys:
          entry = known[name] = _read(run, files, keys, entry)
        found.append(summaries.summarise(name, run.path, _parsed(entry)))
    return found

  def summaries(self, hung_seconds: float = judged_status.HUNG_SECONDS) -> list[summaries.RunSummary]:
    """A summary of each run, as it stands now, by name.

    Raises:
      UserError: the folder cannot be read.
    """
    with self._lock:
      known, read_any = self._facts.entries(), False
      facts: dict[str, json_types.JsonObject] = {}
      for run, names in run_folder.scan(self.root):
        files = _files_of(run, names)
        keys = {part: _key(path) for part, path in files.items()}
        entry = known.get(run.name)
        if entry is None or entry['keys'] != keys:
          entry = _read(run, files, keys, entry)
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
    path = os.path.normpath(os.path.join(self.root, name))
    summary = summaries.summarise(name, path, _parsed(entry), hung_seconds)
    if judged_status.is_settled(entry['record'], entry['started']):
      self._settled[name] = entry, summary
    return summary

  def params(self) -> dict[str, json_types.JsonObject]:
    """The configuration of each run that has one, by name: dotted path -> value. Short names are added as keys."""
    with self._params_lock:
      known, entries, read_any = self._params.entries(), {}, False
      for run, names in run_folder.scan(self.root):
        if run_folder.PARAMS not in names:
          continue
        key = [_key(run.file(run_folder.PARAMS)), 'run.json' in names]
        entry = known.get(run.name)
        if entry is None or entry['key'] != key:
          short_names = (run.record() or {}).get('short_names')
          entry = {
            'key': key,
            'values': json_types.json_values(params.read(run) or {}),
            'short_names': short_names if isinstance(short_names, dict) else {},
          }
          read_any = True
        entries[run.name] = entry
      if read_any or len(entries) != len(known):
        self._params.replace(entries)
      return {name: params.with_short_names(entry['values'], entry['short_names']) for name, entry in entries.items()}


def summary_of(run: run_folder.Run, hung_seconds: float = judged_status.HUNG_SECONDS) -> summaries.RunSummary:
  """The summary of one run as it stands now, without the cache."""
  files = _files_of(run, paths.names(run.path))
  return summaries.summarise(run.name, run.path, _parsed(_read(run, files, {}, None)), hung_seconds)


class _Cache:
  """Entries by the name of their run, in memory and in a file."""

  def __init__(self, path: str):
    self._path = path
    self._entries: json_types.JsonObject | None = None

  def entries(self) -> json_types.JsonObject:
    """The cached contents; {} if there is no valid file."""
    if self._entries is None:
      self._entries = self._load()
    return self._entries

  def replace(self, entries: json_types.JsonObject) -> None:
    """Keeps other entries from now on. If the file cannot be written, they are in memory alone."""
    self._entries = entries
    content = json.dumps(entries).encode()
    header = {'format': _FORMAT, 'version': official_ext.__version__, 'crc': zlib.crc32(content)}
    try:
      os.makedirs(os.path.dirname(self._path), exist_ok=True)
      temporary = f'{self._path}.tmp-{os.getpid()}-{threading.get_ident()}'
      paths.write_atomically(self._path, json.dumps(header).encode() + b'\n' + content, temporary, sync=False)
    except OSError:
      pass

  def _load(self) -> dict[str, object]:
    try:
      header, _, content = paths.read(self._path, _MAX_BYTES).partition(b'\n')
      expected = {'format': _FORMAT, 'version': official_ext.__version__, 'crc': zlib.crc32(content)}
      return json.loads(content) if json.loads(header) == expected else {}
    except (OSError, ValueError, RecursionError):
      return {}


def _files_of(run: run_folder.Run, names: list[str]) -> dict[str, str | None]:
  """The path of each file that a summary needs; None for a missing one."""
  modes = run_folder.modes_in(names)
  mode = modes[0] if modes else 'train'
  files = {
    'record': run_folder.name_of_mode('run', 'json', mode),
    'started': run_folder.name_of_mode('started', 'json', mode),
    'stop_request': run_folder.name_of_mode('stop', 'json', mode),
    'notes': notes.FILE,
    'archived': trash.ARCHIVED,
    'events': run_folder.name_of_mode('events', 'jsonl', mode),
  }
  there = set(names)
  return {part: f'{run.path}/{name}' if name in there else None for part, name in files.items()}


def _key(path: str | None) -> list[int] | None:
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


def _read(run, files, keys, before) -> json_types.JsonObject:
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
      entry[part] = None if record is None else {key: record[key] for key in summaries.RECORD_KEYS if key in record}
    elif part == 'events':
      found = last_events.read(path)
      last = {key: value for key, value in (found.last or {}).items() if key in ('event', 'step', 'time')}
      entry[part] = [last, found.train, found.evaluation]
    else:
      entry[part] = json_files.read(path)
  return entry


def _parsed(entry: json_types.JsonMapping) -> json_types.JsonObject:
  return {**entry, 'events': last_events.LastEvents(*(entry['events'] or ()))}
