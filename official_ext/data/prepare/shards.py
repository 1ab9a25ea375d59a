"""Writes one shard, in any process on any machine: the same bytes everywhere. No TensorFlow.

It is written under another name, synced and renamed. Beside it lies a note with its checksum, written last: only a
shard whose note fits counts.
"""

from collections.abc import Mapping
import contextlib
import hashlib
import json
import os

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.data import numbered_records
from official_ext.data import record_report
from official_ext.data import tf_records
from official_ext.data.prepare import pieces as pieces_lib
from official_ext.data.prepare import rows
from official_ext.data.prepare import shard_writers

_PARTIAL = '.partial'

# The errors that a job can end with.
DONE, BAD_INPUT, NO_STORAGE, FAILED = 'done', 'bad_input', 'no_storage', 'failed'


def write_or_tell(job: Mapping[str, object]) -> json_types.JsonObject:
  """Writes a shard, unless it exists already.

  Args:
    job: of `Plan.job`.

  Returns:
    JSON values: `name`; `end`, how it ended; then `note`, and `was_there`; else `message`, a line.
  """
  try:
    note = verified(job)
    was_there = note is not None
    return {'name': job['name'], 'end': DONE, 'note': note or _write(job), 'was_there': was_there}
  except errors.UserError as error:
    return {'name': job['name'], 'end': BAD_INPUT, 'message': str(error)}
  except errors.StorageError as error:
    return {'name': job['name'], 'end': NO_STORAGE, 'message': str(error)}
  except OSError as error:
    where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else _path(job)
    return {'name': job['name'], 'end': NO_STORAGE, 'message': f'{where}: {error.strerror or error}'}
  except Exception as error:  # pylint: disable=broad-except  # A reader of files may raise anything.
    return {'name': job['name'], 'end': FAILED, 'message': f'{job["name"]}: {type(error).__name__}: {error}'}


def verified(job: Mapping[str, object]) -> dict[str, object] | None:
  """The note of a shard that exists, of this plan, and whole; else None."""
  try:
    note = json.loads(paths.read(_note_path(job)))
    path = _path(job)
    if note['plan'] == job['plan'] and os.path.getsize(path) == note['bytes'] and _sha256(path) == note['sha256']:
      return note
  except (OSError, ValueError, KeyError, TypeError):
    pass
  return None


def num_rows(job: json_types.JsonObject) -> int:
  """The number of rows of a shard by its note; 0 without one."""
  try:
    return json.loads(paths.read(_note_path(job)))['records']
  except (OSError, ValueError, KeyError, TypeError):
    return 0


def remove(job: Mapping[str, object]) -> None:
  """Removes a shard and its note, if they exist."""
  for path in (_note_path(job), _path(job)):
    with contextlib.suppress(FileNotFoundError):
      os.remove(path)


def remove_partial(folder: str) -> None:
  """Removes the leftovers of processes that were killed while they wrote in a folder."""
  for name in paths.names(folder):
    if name.endswith(_PARTIAL):
      path = os.path.join(folder, name)
      with contextlib.suppress(FileNotFoundError):
        if os.path.isdir(path):
          paths.remove_folder(path)
        else:
          os.remove(path)


def partial(path: str) -> str:
  """The path under which this process writes a file: see `remove_partial`."""
  return f'{path}.{os.uname().nodename}-{os.getpid()}{_PARTIAL}'


def _write(job):
  path, note_path = _path(job), _note_path(job)
  # Of a first process that was killed, or a machine that was taken for lost, another may be writing the same.
  temporary = partial(path)
  records = _records(job)
  try:
    with shard_writers.writer_of(path)(path, temporary) as writer:
      report = rows.write_rows(job, records, writer.write)
    paths.sync_to_disk(temporary)
    note = _note(job, temporary, writer.count, report)
    paths.rename(temporary, path)
    paths.write_atomically(note_path, json.dumps(note).encode(), partial(note_path))
    return note
  finally:
    with contextlib.suppress(OSError):
      os.remove(temporary)


def _records(job) -> numbered_records.Records:
  found = []
  for values in job['pieces']:
    piece = pieces_lib.Piece(*values)
    found.append(pieces_lib.open_piece(piece, job['files'], job['labels'], job.get('records', ())))
  return numbered_records.ConcatenatedRecords(found)


def _note(job: Mapping[str, object], path: str, count: int, report: record_report.RecordReport) -> dict[str, object]:
  return {
    'plan': job['plan'],
    'records': count,
    'bytes': os.path.getsize(path),
    'sha256': _sha256(path),
    'report': report.counts(),
    **({'details': report.details} if report.details else {}),
  }


def _path(job):
  return os.path.join(job['folder'], job['name'])


def _note_path(job):
  """Beside TFRecord shards, under a name that patterns such as `train*` do not match."""
  prefix = 'note-' if job['name'].endswith(tf_records.ENDING) else ''
  return os.path.join(job['folder'], f'{prefix}{job["name"]}.json')


def _sha256(path: str) -> str:
  with open(path, 'rb') as f:
    return hashlib.file_digest(f, 'sha256').hexdigest()
