"""Writes one shard, in any process on any machine: the same bytes everywhere.

The parts, in order: the rows of a shard from its records, the writers of files by the ending of their name, and the
writing of a shard. A shard is written under another name, synced and renamed. A note with its checksum is written after
it: only a shard whose note fits counts.

A process that has read ArrayRecord files must not fork a process that writes them. One process may do both.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import hashlib
import importlib
import json
import os
import re
import time
from typing import Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.base.files import tf_records
from official_ext.data import bad_examples
from official_ext.data import numbered_records
from official_ext.data import record_report
from official_ext.data import row_encoding
from official_ext.data.prepare import pieces as pieces_lib

_HINT = 'repair or replace it, or give --on_bad_example=skip'


def write_rows(
  job: json_values.JsonObject, records: numbered_records.Records, write: Callable[[bytes], None]
) -> record_report.RecordReport:
  """Writes the rows of a shard.

  Args:
    job: of `Plan.job`.
    records: of its pieces.
    write: takes each row.

  Returns:
    Counts of the records.

  Raises:
    BadExampleError: a record cannot be used, and none is to be left out.
    OSError: there is no room for the tokens, which are kept in a temporary folder in the same place.
  """
  leaves_out = job['settings']['on_bad_example'] == 'skip'
  make = importlib.import_module(job['row_format']).rows if job['row_format'] else _example_rows
  report = record_report.RecordReport(records=len(records))
  try:
    for row in make(job, records, leaves_out, report):
      write(row)
  except bad_examples.BadExampleError as error:
    raise bad_examples.BadExampleError(f'{error}; {_HINT}') from error
  return report


def _example_rows(job, records, leaves_out, report) -> Iterator[bytes]:
  for number in range(len(records)):
    try:
      row = _example_row(records, number)
    except bad_examples.BadExampleError as error:
      if not leaves_out:
        raise
      report.bad_records += 1
      if len(report.named) < record_report.MAX_NAMED:
        report.named.append(str(error))
    else:
      report.examples += 1
      yield row


def _example_row(records, number):
  record = records.read(number)
  try:
    return row_encoding.encode_example(record)
  except (ValueError, RecursionError) as error:
    raise bad_examples.BadExampleError(f'{records.place(number)}: {bad_examples.reason_of_file(error)}') from error


_OPTIONS = 'group_size:1'  # Each record is read by itself.
_REASON = re.compile(r': ([^;]+);')


class ArrayRecordShard:
  """Writes an ArrayRecord file. Use it as a context: at its end the file is complete."""

  def __init__(self, path: str, temporary: str):
    """Begins a file.

    Args:
      path: the name in messages.
      temporary: the file to write.
    """
    from array_record.python import array_record_module  # pylint: disable=g-import-not-at-top

    self._module = array_record_module
    self._path = path
    self._temporary = temporary
    self.count = 0

  def __enter__(self) -> 'ArrayRecordShard':
    with _explained(self._path):
      self._writer = self._module.ArrayRecordWriter(self._temporary, _OPTIONS)
    return self

  def write(self, row: bytes) -> None:
    """Appends a record."""
    with _explained(self._path):
      self._writer.write(row)
    self.count += 1

  def __exit__(self, kind: object, *_: object) -> None:
    if kind is not None:
      with contextlib.suppress(RuntimeError):
        self._writer.close()
      return
    with _explained(self._path):
      self._writer.close()
    self._check_count()

  def _check_count(self) -> None:
    """A writer of files may fail silently; the number of records is at the file's end."""
    with _explained(self._path):
      reader = self._module.ArrayRecordReader(self._temporary)
      try:
        found = reader.num_records()
      finally:
        reader.close()
    if found != self.count:
      raise errors.StorageError(f'{self._path}: cannot be written: {found} of {self.count} records have arrived')


class TFRecordShard:
  """Writes a TFRecord file. Use it as a context: at its end the file is complete."""

  def __init__(self, path: str, temporary: str):
    """Takes the name in messages, and the file to write."""
    self._path = path
    self._temporary = temporary
    self.count = 0

  def __enter__(self) -> 'TFRecordShard':
    with paths.storing(self._path):
      self._file = open(self._temporary, 'wb')
    return self

  def write(self, row: bytes) -> None:
    """Appends a record."""
    with paths.storing(self._path):
      self._file.write(tf_records.framed(row))
    self.count += 1

  def __exit__(self, kind: object, *_: object) -> None:
    if kind is not None:
      with contextlib.suppress(OSError):
        self._file.close()
      return
    with paths.storing(self._path):
      self._file.close()


def writer_of(path: str) -> type[Any]:
  """The class that writes a file of this name."""
  return TFRecordShard if path.endswith(tf_records.ENDING) else ArrayRecordShard


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
  """A context in which ArrayRecord is written: its errors become one that names the file."""
  try:
    yield
  except RuntimeError as error:
    if isinstance(error, errors.StorageError):
      raise
    match = _REASON.search(str(error))
    reason = match[1] if match else ' '.join(str(error).split())[:200]
    raise errors.StorageError(f'{path}: cannot be written: {reason}') from error


_PARTIAL = '.partial'

# The errors that a job can end with.
DONE, BAD_INPUT, NO_STORAGE, FAILED = 'done', 'bad_input', 'no_storage', 'failed'
UNDER_WAY = 'under_way'  # Of a report before the end.
PART = 'part'  # Of a part of a shard, which `assemble` joins to the others.
_REPORT_SECONDS = 0.5


class _WatchedRecords(numbered_records.Records):
  """Records that report how many of them were read, every now and then."""

  def __init__(self, records: numbered_records.Records, report: Callable[[int], None]):
    self._records, self._report = records, report
    self._reported_at = time.monotonic()
    self.files, self.division = records.files, records.division

  def __len__(self) -> int:
    return len(self._records)

  def read(self, index: int) -> numbered_records.Record:
    """See base class."""
    now = time.monotonic()
    if now - self._reported_at >= _REPORT_SECONDS:
      self._reported_at = now
      self._report(index)
    return self._records.read(index)

  def place(self, index: int) -> str:
    """See base class."""
    return self._records.place(index)

  @property
  def digest(self) -> str:
    """See base class."""
    return self._records.digest


def write_or_report(
  job: Mapping[str, Any], report: Callable[[json_values.JsonObject], None] | None = None
) -> json_values.JsonObject:
  """Writes a shard, unless it exists already, or a part of one: see `divided`.

  Args:
    job: of `Plan.job`.
    report: takes reports before the end: `name`; `end`, UNDER_WAY; `records`, how many were read; `share`, their part
      of the shard's. None: there are none.

  Returns:
    JSON values: `name`; `end`, how it ended; then `note`, and `was_there`; else `message`, a line. Of a part that is
    written, `end` is PART: see `_write_part`.
  """
  try:
    if 'part' in job:
      return _write_part(job, report)
    note = verified(job)
    was_there = note is not None
    return {'name': job['name'], 'end': DONE, 'note': note or _write(job, report), 'was_there': was_there}
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
    note = json_values.load_file(_note_path(job), max_bytes=None)
    path = _path(job)
    if note['plan'] == job['plan'] and os.path.getsize(path) == note['bytes'] and _sha256(path) == note['sha256']:
      return note
  except (OSError, ValueError, KeyError, TypeError):
    pass
  return None


def num_rows(job: json_values.JsonObject) -> int:
  """The number of rows of a shard by its note; 0 without one."""
  try:
    return json_values.load_file(_note_path(job), max_bytes=None)['records']
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


# Parts of a shard, which several processes make at once.

_LEAST_PART_BYTES = 2_000_000  # Of the input: below, the start of a process takes longer.
_LENGTH_BYTES = 8  # Before each row of a part.


def divided(job: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
  """The jobs of the parts of a shard, in order, whose rows make the shard's; [] if it is not to be divided.

  Rows that are packed depend on all records of their shard. Conversions for Model Garden note values of whole shards.

  Args:
    job: of `Plan.job`.
    most: the largest number of parts.
  """
  packs = job['settings'].get('packing', 'none') != 'none'
  number = min(most, sum(pieces_lib.Piece(*values).size for values in job['pieces']) // _LEAST_PART_BYTES)
  if job['kind'] not in ('records', 'images', 'texts') or packs or number < 2:
    return []
  return [{**job, 'part': [part, number]} for part in range(number)]


def _write_part(job, report_progress):
  """Writes the rows of a part into a file; returns `path` of that, `part` and `report`, the counts of its records."""
  part, number = job['part']
  records = _records(job)
  start, end = (len(records) * edge // number for edge in (part, part + 1))
  records = _watched(job, numbered_records.SelectedRecords(records, range(start, end)), report_progress)
  path = partial(f'{_path(job)}.part-{part}')
  with paths.storing(path), open(path, 'wb') as file:

    def write(row: bytes) -> None:
      file.write(len(row).to_bytes(_LENGTH_BYTES, 'little') + row)

    report = write_rows(job, records, write)
  return {'name': job['name'], 'end': PART, 'part': part, 'path': path, 'report': report.counts()}


def assemble(job: Mapping[str, Any], parts: Sequence[json_values.JsonMapping]) -> json_values.JsonObject:
  """Writes a shard of the rows of its parts, as `write_or_report` without parts does.

  Args:
    job: of the shard.
    parts: the answers of `write_or_report` to all jobs of `divided`, in order.
  """
  report = record_report.RecordReport.total(record_report.RecordReport(**part['report']) for part in parts)

  def write_parts(write: Callable[[bytes], None]) -> record_report.RecordReport:
    for part in parts:
      with open(part['path'], 'rb') as file:
        while length := file.read(_LENGTH_BYTES):
          write(file.read(int.from_bytes(length, 'little')))
    return report

  try:
    answer = {'name': job['name'], 'end': DONE, 'note': _write_file(job, write_parts), 'was_there': False}
  except errors.StorageError as error:
    return {'name': job['name'], 'end': NO_STORAGE, 'message': str(error)}
  except OSError as error:
    return {'name': job['name'], 'end': NO_STORAGE, 'message': f'{_path(job)}: {error.strerror or error}'}
  for part in parts:
    with contextlib.suppress(OSError):
      os.remove(part['path'])
  return answer


def _watched(job, records, report_progress):
  """The records, which report how many of them were read."""
  if report_progress is None:
    return records
  length, part = max(1, len(records)), {'part': job['part'][0]} if 'part' in job else {}
  report = lambda count: report_progress(
    {'name': job['name'], 'end': UNDER_WAY, 'records': count, 'share': round(count / length, 4), **part}
  )
  return _WatchedRecords(records, report)


def _write(job, report_progress=None):
  records = _watched(job, _records(job), report_progress)
  return _write_file(job, lambda write: write_rows(job, records, write))


def _write_file(job, write_all):
  """Writes a shard and its note; `write_all` writes all rows by its argument, and returns the counts."""
  path, note_path = _path(job), _note_path(job)
  # Of a first process that was killed, or a machine that was taken for lost, another may be writing the same.
  temporary = partial(path)
  try:
    with writer_of(path)(path, temporary) as writer:
      report = write_all(writer.write)
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
  """The path of a shard's note. For TFRecord shards, patterns such as `train*` do not match its name."""
  prefix = 'note-' if job['name'].endswith(tf_records.ENDING) else ''
  return os.path.join(job['folder'], f'{prefix}{job["name"]}.json')


def _sha256(path: str) -> str:
  with open(path, 'rb') as f:
    return hashlib.file_digest(f, 'sha256').hexdigest()
