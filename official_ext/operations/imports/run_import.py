"""Imports runs of other trackers as folders of runs: run.json, params.yaml, events.jsonl. No TensorFlow.

`import.json` in such a folder names the source. A run of the same source is not imported again, and replaced if its
source has changed. Its record says that it was imported: it cannot be resumed, cloned or trained on.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import hashlib
import os
import re
import shutil

from official_ext.base import credentials
from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import yaml_text
from official_ext.base.files import file_lock
from official_ext.base.files import moments
from official_ext.base.files import paths
from official_ext.base.run_folder import event_names
from official_ext.operations.imports import logged_values
from official_ext.operations.imports import source_runs
from official_ext.operations.imports import tensorboard_logs
from official_ext.operations.imports import tracker_names
from official_ext.operations.imports import trackio_files
from official_ext.operations.imports import wandb_files
from official_ext.operations.runs import commands
from official_ext.operations.runs import json_files
from official_ext.operations.runs import notes
from official_ext.operations.runs import run_folder

FILE = 'import.json'
TAG = 'imported'
_RECORD = 'run.json'
_LOCK, _TEMPORARY = '.import.lock', '.import-'
_PATIENCE_SECONDS = 600.0
_MAX_PART = 100  # Characters of a folder's name.
_BUFFER = 1 << 20
_MAX_TAG = 100


@dataclasses.dataclass(frozen=True)
class Imported:
  """The result for a run.

  Attributes:
    name: the run's, below the folder of runs.
    outcome: 'imported', 'updated' or 'unchanged'.
    num_values: its logged values; None if it is unchanged, and was not read.
    tracker: its source's.
    source: see SourceRun.
    damage: lines about damaged files.
  """

  name: str
  outcome: str
  num_values: int | None
  tracker: str
  source: str
  damage: tuple[str, ...] = ()


def find(source: str, tracker: str | None, damage: list[str]) -> list[source_runs.SourceRun]:
  """The runs in a folder, or in a file of W&B or trackio.

  Args:
    source: its path.
    tracker: a key of `tracker_names.NAMES`; None: all of them.
    damage: gets a line for each file that cannot be read, and whose runs are not known.

  Raises:
    UserError: there are none.
  """
  source = os.path.abspath(source)
  if not os.path.exists(source):
    raise errors.UserError(f'{source}: no such folder; name one with the files of {tracker_names.LISTED}')
  finders = {
    'tensorboard': lambda: tensorboard_logs.find(source),
    'wandb': lambda: wandb_files.find(source),
    'trackio': lambda: trackio_files.find(source, damage),
  }
  try:
    found = [run for name, finder in finders.items() if tracker in (None, name) for run in finder()]
  except OSError as error:
    raise errors.UserError(f'{source}: cannot be read: {error.strerror or error}') from None
  if not found and not damage:
    names = tracker_names.NAMES[tracker] if tracker else tracker_names.LISTED
    raise errors.UserError(
      f'{source}: no runs of {names}; expected *.tfevents.* files, run-*.wandb files, or databases of trackio'
    )
  return found


def import_runs(runs: Sequence[source_runs.SourceRun], root: str, damage: list[str]) -> Iterator[Imported]:
  """Imports runs, one after the other.

  A run is complete in the folder, or not there. An import that was interrupted can be repeated.

  Args:
    runs: the runs.
    root: the folder for their folders, which is made if it does not exist.
    damage: gets a line for each run that cannot be read.

  Raises:
    UserError: another import into the folder lives, or a package is missing.
    StorageError: the folder cannot be written.
  """
  root = os.path.abspath(root)
  with paths.storing(root):
    paths.make_folder(root)
    try:
      lock = file_lock.FileLock(os.path.join(root, _LOCK), _PATIENCE_SECONDS)
      with lock:
        known = _known(root)
        for run in runs:
          try:
            yield _import(run, root, known)
          except source_runs.UnreadableRunError as error:
            damage.append(str(error))
    except TimeoutError:
      raise errors.UserError(f'{root}: another import writes there; retry later') from None


def _known(root: str) -> dict[tuple[str, str], tuple[run_folder.Run, json_types.JsonObject]]:
  """The imported runs in a folder by tracker and source, each with its import.json."""
  found = {}
  for run in run_folder.find_runs(root):
    note = json_files.read(run.file(FILE))
    if note is not None:
      found[str(note.get('tracker')), str(note.get('source'))] = run, note
  return found


def _import(run: source_runs.SourceRun, root: str, known: dict) -> Imported:
  earlier, note = known.get((run.tracker, run.source), (None, {}))
  if earlier is not None and note.get('stamp') == run.stamp:
    return Imported(earlier.name, 'unchanged', None, run.tracker, run.source)
  try:
    content = run.read()
    content = dataclasses.replace(content, config=credentials.mask_values(json_types.json_values(content.config)))
  except RecursionError:
    raise source_runs.UnreadableRunError(f'{run.source}: has values that are nested too deeply') from None
  temporary = os.path.join(root, _TEMPORARY + hashlib.sha256(f'{run.tracker}{run.source}'.encode()).hexdigest()[:16])
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
      _write_notes(content, temporary)
      paths.make_folder(os.path.dirname(folder))
      paths.rename(temporary, folder)
      outcome = 'imported'
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  name = os.path.relpath(folder, root)
  known[run.tracker, run.source] = run_folder.Run(folder, name), {'stamp': run.stamp}
  return Imported(name, outcome, len(content.values), run.tracker, run.source, content.damage)


def _free_folder(root: str, name: str) -> str:
  """A path for a run of a name, at which runs are looked for and nothing is."""
  parts = [_part(part) for part in name.split('/') if part.strip()] or ['run']
  try:
    folder = run_folder.checked_folder(root, '/'.join(parts))
  except errors.UserError:  # Within the folder of a run, such as its `best`.
    parts = ['-'.join(parts)[: 2 * _MAX_PART]]
    folder = run_folder.checked_folder(root, parts[0])
  if os.path.lexists(folder):
    folder = os.path.join(root, commands.free_name(root, '/'.join(parts)))
  return folder


def _part(text: str) -> str:
  """A part of a name as that of a folder: printable, and not hidden."""
  found = ''.join(each if each.isprintable() else '_' for each in text.strip())[:_MAX_PART]
  return re.sub(r'^\.+', lambda match: '_' * len(match[0]), found).encode('utf-8', 'replace').decode()


def _write(run: source_runs.SourceRun, content: source_runs.Content, folder: str) -> list[str]:
  """Writes the files of a run, and returns their names: import.json last."""
  ends = content.values.ends()
  started = content.started if content.started is not None and 0 <= content.started < logged_values.MAX_TIME else None
  if started is None:
    started = ends[0] if ends else 0.0
  ended = max(started, ends[1] if ends else 0.0)
  record = _record(run, content, started, ended)
  end = None if not content.is_end_known else content.status
  _write_events(run, content, record, (started, ended, end), os.path.join(folder, run_folder.EVENTS))
  names = [run_folder.EVENTS]
  if content.config:
    text = yaml_text.dump(content.config)
    paths.write_atomically(os.path.join(folder, run_folder.PARAMS), text.encode('utf-8', 'surrogatepass'))
    names.append(run_folder.PARAMS)
  json_files.write(os.path.join(folder, _RECORD), record)
  note = {'tracker': run.tracker, 'source': run.source, 'stamp': run.stamp, 'imported': moments.now()}
  json_files.write(os.path.join(folder, FILE), note)
  return [*names, _RECORD, FILE]


def _write_events(
  run: source_runs.SourceRun,
  content: source_runs.Content,
  record: json_types.JsonMapping,
  span: tuple[float, float, str | None],
  path: str,
) -> None:
  started, ended, end = span
  line: Callable[[json_types.JsonMapping], bytes] = logged_values.line_of
  with open(path, 'wb', buffering=_BUFFER) as file:
    imported = {'tracker': run.tracker, 'source': run.source}
    file.write(line({'time': round(started, 3), 'event': event_names.IMPORTED, 'step': 0, **imported}))
    for event in content.values.events(started):
      file.write(line(event))
    if end is not None:
      error = {'error': record['error']} if record['error'] else {}
      file.write(line({'time': round(ended, 3), 'event': end, 'step': record['step'], **error}))
    file.flush()
    paths.sync_descriptor(file.fileno())


def _record(
  run: source_runs.SourceRun, content: source_runs.Content, started: float, ended: float
) -> json_types.JsonObject:
  """The content of run.json: no process, no command and no length, as none is known."""
  is_end_known = content.is_end_known
  imported = {
    'tracker': run.tracker,
    'source': run.source,
    'end': '' if is_end_known else f'{tracker_names.NAMES[run.tracker]} records no end',
  }
  return {
    'status': content.status,
    'stage': 'done',
    'step': content.values.last_step(),
    'error': credentials.mask(content.error) or None,
    'mode': 'train_and_eval',
    'train_steps': None,
    'started': moments.of_seconds(started),
    'updated': moments.of_seconds(ended),
    'finished': moments.of_seconds(ended) if is_end_known else None,
    'experiment': content.experiment,
    **({'host': content.host} if content.host else {}),
    'imported': imported,
  }


def _write_notes(content: source_runs.Content, folder: str) -> None:
  """People's tags and note; later imports leave them unchanged."""
  tags = [' '.join(tag.replace(',', ' ').split())[:_MAX_TAG] for tag in content.tags]
  kept = sorted({TAG, *(tag for tag in tags if tag and tag.isprintable())})
  json_files.write(os.path.join(folder, notes.FILE), {'tags': kept, 'note': credentials.mask(content.note)})
