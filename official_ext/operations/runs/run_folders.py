"""Runs as folders: how they are found and named, and their configuration, tags and notes.

A run need not be complete: files may be missing, damaged or of another version.
"""

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import functools
import os
import re

import yaml

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import run_status

PARAMS = 'params.yaml'
EVENTS = 'events.jsonl'

_RECORD = re.compile(r'(?:run|started)(?:\.([a-z][a-z_]*))?\.json')
# Folders that runs and their tools make, in which no runs are.
_INSIDE_RUNS = frozenset(
  ('train', 'validation', 'best', 'best_ckpt', 'ema_checkpoints', 'export', 'plugins', '__pycache__', 'node_modules')
)
_CHECKPOINT_PART = re.compile(r'ckpt-\d+.*|variables|assets|.*\.tmp-.*')


@dataclasses.dataclass(frozen=True)
class Run:
  """A run: a folder with its record (`run.json`, `run.{mode}.json`), params.yaml and events.jsonl, or some of
  them.

  All methods read the present files; one that is missing, half written or damaged reads as none.

  Attributes:
    path: the absolute path of the folder.
    name: its path below the folder in which it was found, with slashes; '.' for that folder itself.
    origin: the remote folder of which `path` is a copy: see remote_runs.py; '' for a local run.
  """

  path: str
  name: str
  origin: str = ''

  @property
  def place(self) -> str:
    """The run's folder, local or remote."""
    return self.origin or self.path

  def file(self, name: str) -> str:
    """The path of a file of the run."""
    return os.path.join(self.path, name)

  def modes(self) -> list[str]:
    """The modes of which the folder has a record or a process, 'train' first: it covers all modes that train."""
    return modes_in(_names(self.path))

  def file_of_mode(self, stem: str, extension: str, mode: str = 'train') -> str:
    """The path of a file that each mode has: `run.log` of modes that train, `run.eval.log`."""
    return self.file(name_of_mode(stem, extension, mode))

  def log_path(self, mode: str = 'train') -> str:
    """The path of the output of a mode: `run.log`."""
    # base/run_folder/run_log.py has the same names.
    return self.file_of_mode('run', 'log', mode)

  def record(self, mode: str = 'train') -> json_values.JsonObject | None:
    """The record of a mode: see training/record/run_record.py. None if it is missing or cannot be read."""
    return run_status.read(self.path, mode)

  def first_record(self) -> json_values.JsonObject | None:
    """The record of the first mode that has one; None if no mode has."""
    return next((record for record in map(self.record, self.modes()) if record is not None), None)

  def started(self, mode: str = 'train') -> json_values.JsonObject | None:
    """The process that was started detached for a mode, and how it ended: `started.json`, see run_processes.py.

    None for a copy of the folder of a living run: see run_status.read.
    """
    record = json_values.read_file(run_status.path_of(self.path, mode))
    if record is not None and run_status.is_copy(self.path, record):
      return None
    return json_values.read_file(self.file_of_mode('started', 'json', mode))

  def stop_request(self, mode: str = 'train') -> json_values.JsonObject | None:
    """The stop request of a mode, and its time: `stop.json`, see run_processes.py."""
    return json_values.read_file(self.file_of_mode('stop', 'json', mode))

  def exists(self) -> bool:
    """Whether the folder still holds a run."""
    return is_run(self.path)


def name_of_mode(stem: str, extension: str, mode: str = 'train') -> str:
  """The name of a file that each mode has: see `Run.file_of_mode`."""
  return f'{stem}.{extension}' if 'train' in mode else f'{stem}.{mode}.{extension}'


def modes_in(names: Iterable[str]) -> list[str]:
  """The modes of which a folder with these names has a record or a process, 'train' first."""
  found = {match[1] or '' for match in map(_RECORD.fullmatch, names) if match}
  return [mode or 'train' for mode in sorted(found)]


def is_run(folder: str) -> bool:
  """Whether a folder holds a run."""
  return is_run_of(_names(folder))


def find_runs(root: str) -> list[Run]:
  """All runs in a folder and in the folders below, by name: see `scan`."""
  return [run for run, _ in scan(root)]


def scan(root: str) -> list[tuple[Run, list[str]]]:
  """All runs in a folder and in the folders below, by name, each with the names in its folder.

  Folders that runs make inside of themselves, and hidden ones, are not searched. A symbolic link counts if it leads to
  the folder of a run that is not found without it; no link is searched, so that neither loops nor other disks are.

  Args:
    root: the folder.

  Raises:
    UserError: it cannot be read.
  """
  root = paths.absolute(root)
  try:
    os.listdir(root)
  except OSError as error:
    raise errors.UserError(f'{root}: cannot be read: {error.strerror}; name the folder that has your runs') from None
  links: list[str] = []
  found = [(Run(folder, _name(folder, root)), names) for folder, names in _search(root, links)]
  if links:
    known = {os.path.realpath(run.path) for run, _ in found}
    for link in sorted(links):
      names, target = _names(link), os.path.realpath(link)
      if target not in known and is_run_of(names):
        known.add(target)
        found.append((Run(link, _name(link, root)), names))
  return sorted(found, key=lambda pair: _in_order(pair[0].name))


def get_run(root: str, name: str) -> Run:
  """The run of a name below `root`, or of a path that leads there.

  Raises:
    UserError: it does not exist, or is not below `root`.
  """
  root = paths.absolute(root)
  found = find_run(root, name)
  if found is not None:
    return found
  near = errors.did_you_mean(name, [run.name for run in find_runs(root)], before='; ')
  raise errors.UserError(f'{name}: no run of that name in {root}{near or "; `official-ext runs list` shows them"}')


def find_run(root: str, name: str) -> Run | None:
  """The run of a name below `root`, or of a path that leads there; None if it does not exist."""
  root = paths.absolute(root)
  for path in (os.path.join(root, name), name):
    path = os.path.abspath(path)
    if is_run(path) and paths_below(root, path):
      return Run(path, _name(path, root))
  return None


def check_root(root: str) -> None:
  """Raises UserError if a folder of runs does not exist."""
  if not os.path.isdir(root):
    raise errors.UserError(f'{root}: no such folder; name the one that has your runs')


def checked_folder(root: str, name: str) -> str:
  """The path of a new run in a folder, which need not exist.

  Raises:
    UserError: the name leads out of it, or to a place in which runs are not looked for.
  """
  is_remote = paths.is_remote(root)
  root = paths.real(root) if is_remote else os.path.abspath(root)
  folder = os.path.join(root, os.path.normpath(name)) if is_remote else os.path.abspath(os.path.join(root, name))
  parts = name.rstrip('/').split('/')
  if not name or folder == root or not paths_below(root, folder) or any(p.startswith('.') for p in parts):
    raise errors.UserError(f'--name={name}: must be a name in {root}, and no part of it may begin with a dot')
  parent = folder
  while parent != root:
    parent, part = os.path.split(parent)
    if is_run(parent) and not may_have_runs(part, inside_run=True):
      raise errors.UserError(f'--name={name}: {parent} is a run, and in its folder {part} no runs are looked for')
  return folder


def paths_below(root: str, path: str) -> bool:
  """Whether a path is `root` or below it, by its letters: the target of a symbolic link in `root` counts as below."""
  return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _search(root: str, links: list[str]) -> Iterator[tuple[str, list[str]]]:
  """The folders of runs and the names in them, without following links, which are noted."""
  pending = [root]
  while pending:
    folder = pending.pop()
    names, folders = [], []
    try:
      with os.scandir(folder) as entries:
        for entry in entries:
          names.append(entry.name)
          try:
            if entry.is_dir(follow_symlinks=False):
              folders.append(entry.name)
            elif entry.is_symlink() and entry.is_dir() and not entry.name.startswith('.'):
              links.append(entry.path)
          except OSError:  # A link into a loop, or a file system that is gone.
            continue
    except OSError:  # Not ours to read, or deleted a moment ago.
      continue
    inside = is_run_of(names)
    if inside:
      yield folder, names
    pending += [os.path.join(folder, name) for name in folders if may_have_runs(name, inside)]


def may_have_runs(name: str, inside_run: bool) -> bool:
  """Whether runs are looked for in a folder of this name, which may be inside of a run."""
  if name.startswith('.'):
    return False
  return not inside_run or (name not in _INSIDE_RUNS and not _CHECKPOINT_PART.fullmatch(name))


def is_run_of(names: list[str]) -> bool:
  """Whether a folder with these names holds a run."""
  if PARAMS in names and EVENTS in names:
    return True
  return any(name.startswith(('run.', 'started.')) and _RECORD.fullmatch(name) for name in names)


def _names(folder: str) -> list[str]:
  try:
    return paths.names(folder)
  except OSError:
    return []


def _name(path: str, root: str) -> str:
  return path[len(root.rstrip(os.sep)) + 1 :].replace(os.sep, '/') or '.'


@functools.lru_cache(maxsize=100_000)
def _in_order(name: str) -> tuple:
  """A key that sorts run2 before run10."""
  parts = re.split(r'(\d+)', name)
  return tuple((0, int(part), part) if part.isdigit() and part.isascii() else (1, 0, part) for part in parts if part)


_MAX_PARAMS_BYTES = 10_000_000
_FAST_LOADER = getattr(yaml, 'CSafeLoader', None)
# Aliases, tags, several documents or values a line, brackets in brackets, and numbers that YAML 1.1 reads otherwise.
_UNUSUAL = re.compile(
  r"""(?mx) ^\s*[&*!?%|>] | :\s+[&*!|>] | ^--- | ^\s*-\s | [\[{][^\]}\n]*[\[{]
  | :\s+ ['"]? [-+]? (?: [0-9]+ [eE] | 0[0-9] | 0o | [0-9_]+ [-:_] )
  | :\s+ (?: [yYnN] | yes | no | on | off | Yes | No | On | Off | YES | NO | ON | OFF ) \s*$"""
)


def read_params(run: Run) -> json_values.JsonObject | None:
  """Dotted path -> value of a run's params.yaml; None if it is missing or cannot be read."""
  values = read_nested_params(run)
  return None if values is None else config_text.flatten(values)


def read_nested_params(run: Run) -> json_values.JsonObject | None:
  """A run's params.yaml unchanged; None if it is missing or cannot be read."""
  try:
    values = _parse_params(paths.read(run.file(PARAMS), _MAX_PARAMS_BYTES).decode())
  except (OSError, UnicodeDecodeError, errors.UserError, RecursionError):
    return None
  return values if isinstance(values, dict) else None


def _parse_params(text: str) -> json_values.Json:
  """The values of a params.yaml.

  The driver's YAML means the same in YAML 1.1, for which there is a reader that is six times as fast. It is
  given nothing that would fill memory or the stack, and nothing else that the driver does not write.
  """
  if _FAST_LOADER is not None and not _UNUSUAL.search(text):
    try:
      return yaml.load(text, Loader=_FAST_LOADER)
    except yaml.YAMLError:
      pass
  return config_text.load(text, PARAMS)


def with_short_names(values: Mapping[str, object], short_names: Mapping[str, object]) -> json_values.JsonObject:
  """A flat configuration that has the values of short names too.

  Args:
    values: dotted path -> value.
    short_names: short name -> path, as run.json has them.
  """
  short = {name: values[path] for name, path in short_names.items() if isinstance(path, str) and path in values}
  return {**short, **values}


def values_of_field(name: str, values: Mapping[str, object]) -> list[json_values.Json]:
  """The meanings of a name in a configuration: its value, or the values of all paths that end with it; [] if none does.

  Args:
    name: a dotted path, a short name, or the end of a path, such as `cosine.decay_steps`.
    values: see `with_short_names`.
  """
  if name in values:
    return [values[name]]
  return [value for path, value in values.items() if path.endswith(f'.{name}')]


NOTES = 'notes.json'
_NOTES_LOCK = 'notes.lock'
_MAX_TAG = 100
_MAX_NOTE = 10_000


@dataclasses.dataclass(frozen=True)
class Notes:
  """People's notes on a run.

  Attributes:
    tags: words, sorted.
    note: a text; '' for none.
  """

  tags: tuple[str, ...] = ()
  note: str = ''


def parse_notes(values: dict | None) -> Notes:
  """The notes in the content of a file; invalid parts of it are left out."""
  tags, note = (values or {}).get('tags'), (values or {}).get('note')
  words = {tag for tag in tags if isinstance(tag, str) and tag} if isinstance(tags, list) else set()
  return Notes(tuple(sorted(words)), note if isinstance(note, str) else '')


def read_notes(run: Run) -> Notes:
  """The notes of a run; none if it has no file, or none that can be read."""
  return parse_notes(json_values.read_file(run.file(NOTES)))


def change_notes(run: Run, add: Iterable[str] = (), remove: Iterable[str] = (), note: str | None = None) -> Notes:
  """Changes the notes of a run. Of several processes at once none loses another's changes.

  Args:
    run: the run.
    add: tags that it gets.
    remove: tags that it loses; a missing one is not an error.
    note: its text from now on; '' for none; None leaves it.

  Raises:
    UserError: a tag is empty, too long, or has a comma or a line break; or the note is too long.
    StorageError: the folder cannot be written.
  """
  for tag in add:
    if not tag.strip() or len(tag) > _MAX_TAG or ',' in tag or not tag.isprintable():
      raise errors.UserError(f'--tag={tag!r}: a tag has 1 to {_MAX_TAG} letters in one line, and no comma')
  if note is not None and len(note) > _MAX_NOTE:
    raise errors.UserError(f'--note: {len(note)} letters; {_MAX_NOTE} are possible')
  try:
    with local_files.FileLock(run.file(_NOTES_LOCK)):
      before = read_notes(run)
      tags = (set(before.tags) | {tag.strip() for tag in add}) - set(remove)
      after = Notes(tuple(sorted(tags)), before.note if note is None else note)
      json_values.write_file(run.file(NOTES), {'tags': list(after.tags), 'note': after.note})
  except OSError as error:
    raise errors.StorageError(f'{run.file(NOTES)}: cannot be written: {os.strerror(error.errno or 0)}') from error
  return after
