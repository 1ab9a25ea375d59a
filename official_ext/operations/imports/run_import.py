"""Imports runs of TensorBoard as folders of runs: run.json, params.yaml, events.jsonl.

`import.json` in such a folder names the source. A run of the same source is not imported again; it is replaced if its
source has changed. Its record says that it was imported: it cannot be resumed, cloned or trained on.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import hashlib
import os
import re
import shutil

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import safe_text
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import run_files
from official_ext.operations.imports import tensorboard_files
from official_ext.operations.runs import commands
from official_ext.operations.runs import run_folders

FILE = 'import.json'
TAG = 'imported'
_RECORD = 'run.json'
_LOCK, _TEMPORARY = '.import.lock', '.import-'
_PATIENCE_SECONDS = 600.0
_MAX_PART = 100  # Characters of a folder's name.
_BUFFER = 1 << 20
_TRACKER = 'tensorboard'  # In run.json, events.jsonl and import.json. Earlier versions imported from others too.


@dataclasses.dataclass(frozen=True)
class Imported:
  """The result for a run.

  Attributes:
    name: the run's, below the folder of runs.
    outcome: 'imported', 'updated' or 'unchanged'.
    num_values: its logged values; None if it is unchanged, and was not read.
    damage: lines about damaged files.
    num_superseded: the values that a restart of the run has logged again; they are left out.
  """

  name: str
  outcome: str
  num_values: int | None
  damage: tuple[str, ...] = ()
  num_superseded: int = 0


def find(source: str) -> list[tensorboard_files.SourceRun]:
  """The runs in a folder.

  Args:
    source: its path.

  Raises:
    UserError: it has no runs.
  """
  source = os.path.abspath(source)
  if not os.path.exists(source):
    raise errors.UserError(f'{source}: no such folder; name one with the files of TensorBoard')
  try:
    found = list(tensorboard_files.find_source_runs(source))
  except OSError as error:
    raise errors.UserError(f'{source}: cannot be read: {error.strerror or error}') from None
  if not found:
    raise errors.UserError(f'{source}: no runs of TensorBoard; expected *.tfevents.* files')
  return found


def import_runs(runs: Sequence[tensorboard_files.SourceRun], root: str, damage: list[str]) -> Iterator[Imported]:
  """Imports runs, one after the other.

  A run is complete in the folder, or not there. An import that was interrupted can be repeated.

  Args:
    runs: the runs.
    root: the folder for their folders, which is made if it does not exist.
    damage: gets a line for each run that cannot be read.

  Raises:
    UserError: another import into the folder lives.
    StorageError: the folder cannot be written.
  """
  root = os.path.abspath(root)
  with paths.storing(root):
    paths.make_folder(root)
    try:
      lock = local_files.FileLock(os.path.join(root, _LOCK), _PATIENCE_SECONDS)
      with lock:
        known = _known(root)
        for run in runs:
          try:
            yield _import(run, root, known)
          except tensorboard_files.UnreadableRunError as error:
            damage.append(str(error))
    except TimeoutError:
      raise errors.UserError(f'{root}: another import writes there; retry later') from None


def _known(root: str) -> dict[str, tuple[run_folders.Run, json_values.JsonObject]]:
  """The runs in a folder that were imported from TensorBoard by source, each with its import.json."""
  found = {}
  for run in run_folders.find_runs(root):
    note = json_values.read_file(run.file(FILE))
    if note is not None and note.get('tracker') == _TRACKER:
      found[str(note.get('source'))] = run, note
  return found


def _import(run: tensorboard_files.SourceRun, root: str, known: dict) -> Imported:
  earlier, note = known.get(run.source, (None, {}))
  if earlier is not None and note.get('stamp') == run.stamp:
    return Imported(earlier.name, 'unchanged', None)
  try:
    content = run.read()
    content = dataclasses.replace(content, config=safe_text.mask_values(json_values.as_strict(content.config)))
  except RecursionError:
    raise tensorboard_files.UnreadableRunError(f'{run.source}: has values that are nested too deeply') from None
  temporary = os.path.join(root, _TEMPORARY + hashlib.sha256(run.source.encode()).hexdigest()[:16])
  shutil.rmtree(temporary, ignore_errors=True)  # Of an import that was killed.
  os.mkdir(temporary)
  try:
    names = _write(run, content, temporary)
    if earlier is not None:
      for name in names:  # import.json is the last one: until then the import can be repeated.
        os.replace(os.path.join(temporary, name), earlier.file(name))
      paths.sync_to_disk(earlier.path)
      outcome, folder = 'updated', earlier.path
    else:
      folder = _free_folder(root, content.name)
      json_values.write_file(os.path.join(temporary, run_folders.NOTES), {'tags': [TAG], 'note': ''})
      paths.make_folder(os.path.dirname(folder))
      paths.rename(temporary, folder)
      outcome = 'imported'
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  name = os.path.relpath(folder, root)
  known[run.source] = run_folders.Run(folder, name), {'stamp': run.stamp}
  return Imported(name, outcome, len(content.values), content.damage, content.values.num_superseded)


def _free_folder(root: str, name: str) -> str:
  """A path for a run of a name, at which runs are looked for and nothing is."""
  parts = [_part(part) for part in name.split('/') if part.strip()] or ['run']
  try:
    folder = run_folders.checked_folder(root, '/'.join(parts))
  except errors.UserError:  # Within the folder of a run, such as its `best`.
    parts = ['-'.join(parts)[: 2 * _MAX_PART]]
    folder = run_folders.checked_folder(root, parts[0])
  if os.path.lexists(folder):
    folder = os.path.join(root, commands.free_name(root, '/'.join(parts)))
  return folder


def _part(text: str) -> str:
  """A part of a name as the name of a folder: printable, and not hidden."""
  found = ''.join(each if each.isprintable() else '_' for each in text.strip())[:_MAX_PART]
  return re.sub(r'^\.+', lambda match: '_' * len(match[0]), found).encode('utf-8', 'replace').decode()


def _write(run: tensorboard_files.SourceRun, content: tensorboard_files.Content, folder: str) -> list[str]:
  """Writes the files of a run, and returns their names: import.json last."""
  started, ended = content.values.ends() or (0.0, 0.0)
  record = _record(run, content, started, ended)
  end = None if not content.is_end_known else content.status
  _write_events(run, content, record, (started, ended, end), os.path.join(folder, run_folders.EVENTS))
  names = [run_folders.EVENTS]
  if content.config:
    text = config_text.dump(content.config)
    paths.write_atomically(os.path.join(folder, run_folders.PARAMS), text.encode('utf-8', 'surrogatepass'))
    names.append(run_folders.PARAMS)
  json_values.write_file(os.path.join(folder, _RECORD), record)
  note = {'tracker': _TRACKER, 'source': run.source, 'stamp': run.stamp, 'imported': json_values.timestamp_now()}
  json_values.write_file(os.path.join(folder, FILE), note)
  return [*names, _RECORD, FILE]


def _write_events(
  run: tensorboard_files.SourceRun,
  content: tensorboard_files.Content,
  record: json_values.JsonMapping,
  span: tuple[float, float, str | None],
  path: str,
) -> None:
  started, ended, end = span
  line: Callable[[json_values.JsonMapping], bytes] = tensorboard_files.event_line
  with open(path, 'wb', buffering=_BUFFER) as file:
    imported = {'tracker': _TRACKER, 'source': run.source}
    file.write(line({'time': round(started, 3), 'event': run_files.IMPORTED_EVENT, 'step': 0, **imported}))
    for event in content.values.events(started):
      file.write(line(event))
    if end is not None:
      error = {'error': record['error']} if record['error'] else {}
      file.write(line({'time': round(ended, 3), 'event': end, 'step': record['step'], **error}))
    file.flush()
    paths.sync_descriptor(file.fileno())


def _record(
  run: tensorboard_files.SourceRun, content: tensorboard_files.Content, started: float, ended: float
) -> json_values.JsonObject:
  """The content of run.json: no process, no command and no length, as none is known."""
  is_end_known = content.is_end_known
  imported = {
    'tracker': _TRACKER,
    'source': run.source,
    'end': '' if is_end_known else 'TensorBoard records no end',
  }
  return {
    'status': content.status,
    'stage': 'done',
    'step': content.values.last_step(),
    'error': content.error or None,
    'mode': 'train_and_eval',
    'train_steps': None,
    'started': json_values.timestamp_of(started),
    'updated': json_values.timestamp_of(ended),
    'finished': json_values.timestamp_of(ended) if is_end_known else None,
    'experiment': '',
    'imported': imported,
  }
