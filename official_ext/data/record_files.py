"""Files and folders of text data: JSON lines, JSON, Parquet, Arrow, CSV, documents, folders of `datasets`.

Paths are literal, with any characters.
"""

from collections.abc import Iterator, Sequence
import contextlib
import os

from absl import logging

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.data import bad_examples
from official_ext.data import input_files
from official_ext.data import json_records
from official_ext.data import numbered_records
from official_ext.data import table_records

_KINDS = ('.jsonl', '.ndjson', '.json', '.parquet', '.arrow')
_ALL_KINDS = (*_KINDS, *table_records.TABLE_ENDINGS, *table_records.DOCUMENT_ENDINGS)
_SPLITS = ('train', 'validation', 'valid', 'dev', 'eval', 'test')
_MAX_OPEN = 64


def open_records(
  input_path: object, split: str = '', at_most: int = -1, field: str = 'input_path'
) -> numbered_records.ConcatenatedRecords:
  """The records of files and folders.

  Args:
    input_path: a path, or several; or patterns, unless a file has that name. A folder is one of `datasets`
      (`save_to_disk`), or holds files, whose names begin with the split if one is requested:
      `train-00000-of-00002.parquet`.
    split: which part of a folder with several; '' if there is one.
    at_most: the number of records to take; -1: all.
    field: the dotted path of `input_path`, for messages.

  Raises:
    UserError: there are no such files, or one is damaged or of another kind.
  """
  parts: list[numbered_records.Records] = []
  left, seen = at_most, dict[str, str]()
  for pattern in input_files.input_patterns(input_path):
    for file in files_of(os.path.expanduser(pattern), split, field):
      if left == 0:
        break
      _warn_of_repeated(file, seen, field)
      parts.append(_open(file, left, field))
      left = max(0, left - len(parts[-1])) if left > 0 else left
  if not parts:
    raise errors.UserError(
      f'{field}: is empty; expected files of JSON lines, Parquet, Arrow, CSV or plain text, or a folder of them'
    )
  return numbered_records.ConcatenatedRecords(parts, at_most)


def _warn_of_repeated(file: str, seen: dict[str, str], field: str) -> None:
  """Reports a file that is named twice, if by other names too: its records count twice."""
  real = file if paths.is_remote(file) else os.path.realpath(file)
  if real in seen:
    also = '' if seen[real] == file else f', as {seen[real]} too'
    logging.warning('%s: %s is named more than once%s: its records are read as often.', field, file, also)
  seen.setdefault(real, file)


def _open(file: str, at_most: int, field: str) -> numbered_records.Records:
  """The records of a file; already open ones, if it has not changed since."""
  if paths.is_remote(file):
    return read_file(file, at_most, field)
  try:
    state = os.stat(file)
  except OSError as error:
    raise errors.UserError(f'{field}: {file}: cannot be read: {error.strerror}') from error
  key = (os.path.abspath(file), state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns, at_most)
  if key not in _opened_files:
    while len(_opened_files) >= _MAX_OPEN:
      del _opened_files[next(iter(_opened_files))]
    _opened_files[key] = read_file(file, at_most, field)
  return _opened_files[key]


_opened_files: dict[object, numbered_records.Records] = {}


def read_file(file: str, at_most: int = -1, field: str = '') -> numbered_records.Records:
  """The records of a file.

  Args:
    file: its path.
    at_most: the number of records that are enough; -1: all.
    field: see `reading`.

  Raises:
    UserError: it cannot be read, is damaged, or of an unknown kind.
  """
  kind = os.path.splitext(file.removesuffix('.gz'))[1].lower()
  with reading(file, field):
    if kind in ('.parquet', '.arrow') and paths.is_remote(file):
      raise errors.UserError(f'{file}: Parquet and Arrow are read from local disks alone; copy it to one')
    if kind == '.parquet':
      return table_records.ParquetRows(file)
    if kind == '.arrow':
      return table_records.ArrowRows(file)
    if kind == '.json' and json_records.begins_with(file, b'['):
      return json_records.json_list(file)
    if kind in _KINDS:
      return json_records.JsonLines(file, at_most)
    if kind in table_records.TABLE_ENDINGS:
      return table_records.csv_records(file)
    if kind in table_records.DOCUMENT_ENDINGS:
      return table_records.document_records(file)
    raise errors.UserError(f'{file}: is of an unknown kind; its name should end with one of {", ".join(_ALL_KINDS)}')


@contextlib.contextmanager
def reading(path: str, field: str = '') -> Iterator[None]:
  """A context in which a file or a folder is opened: errors become a UserError that names it.

  Args:
    path: of the file or folder.
    field: the flag or dotted path that it is from, the start of messages; '': none does.
  """
  prefix = f'{field}: ' if field else ''
  try:
    yield
  except errors.UserError as error:
    raise errors.UserError(f'{prefix}{error}') from error
  except Exception as error:  # Readers of damaged files raise nearly anything: zlib.error, RecursionError, Arrow's own.
    reason = bad_examples.reason_of_file(error)
    named = error.filename if isinstance(error, OSError) else None
    where = os.fsdecode(named) if isinstance(named, (str, bytes)) else path
    raise errors.UserError(f'{prefix}{where}: cannot be read: {reason}') from error


def files_of(path: str, split: str, field: str) -> list[str]:
  """The files of a path or pattern.

  Args:
    path: a file, a folder, or a pattern, unless a file has that name.
    split: of a folder with several; '' if there is one.
    field: the flag or dotted path that it is from, for messages.

  Raises:
    UserError: there are no such files.
  """
  if paths.is_folder(path):
    return _files_in(path, split, field)
  files = input_files.matching_files(path)
  if not files:
    raise errors.UserError(f'{field}: {path}: No such file or directory')
  return [file for match in files for file in (_files_in(match, split, field) if os.path.isdir(match) else [match])]


def _files_in(folder: str, split: str, field: str) -> list[str]:
  names = _names(folder, field)
  if 'dataset_dict.json' in names:
    splits = json_values.read_required_file(os.path.join(folder, 'dataset_dict.json'), field).get('splits', [])
    return _files_in(os.path.join(folder, _chosen(split, splits, folder, field)), '', field)
  if 'state.json' in names:
    found = json_values.read_required_file(os.path.join(folder, 'state.json'), field)
    own = found.get('_split')
    if split and own and split != own:
      raise errors.UserError(f'{_split_field(field)}: {split!r}: {folder} holds the split {own!r} alone')
    return [os.path.join(folder, file['filename']) for file in found.get('_data_files', [])]
  files = data_files(folder, field) or _files_ending(folder, tuple(table_records.TABLE_ENDINGS), field)
  if not files:
    return _documents_in(folder, field)
  splits = sorted({name for name in _SPLITS for file in files if os.path.basename(file).startswith(name)})
  if split:
    files = [file for file in files if os.path.basename(file).startswith(split)]
  elif len(splits) > 1:  # Training on a test set is never intended.
    raise errors.UserError(f'{_split_field(field)}: {folder} has several splits: {", ".join(splits)}; name one')
  if not files:
    raise errors.UserError(f'{field}: {folder}: holds no files that begin with {split!r}')
  return files


def _files_ending(folder: str, endings: tuple[str, ...], field: str) -> list[str]:
  return [os.path.join(folder, name) for name in _names(folder, field) if name.lower().endswith(endings)]


def _documents_in(folder: str, field: str) -> list[str]:
  """The documents of a folder and the folders in it, sorted: only of one without other data, which may have a README.

  Raises:
    UserError: it has no documents.
  """
  files = [
    os.path.join(place, name)
    for place, _, names in os.walk(folder)
    for name in names
    if name.lower().endswith(table_records.DOCUMENT_ENDINGS)
  ]
  if not files:
    raise errors.UserError(f'{field}: {folder}: holds no files that end with one of {", ".join(_ALL_KINDS)}')
  return sorted(files)


def data_files(folder: str, field: str = '') -> list[str]:
  """The files of records that a folder holds, sorted, then the files in its folder `data`.

  Args:
    folder: its path.
    field: see `reading`.

  Raises:
    UserError: it cannot be read.
  """
  names = _names(folder, field)
  places = [(folder, names)]
  if 'data' in names:
    data = os.path.join(folder, 'data')
    places.append((data, _names(data, field)))
  return [os.path.join(place, name) for place, there in places for name in there if _is_data(name)]


def _names(folder: str, field: str) -> list[str]:
  with reading(folder, field):
    return paths.names(folder)


def _is_data(name: str) -> bool:
  kind = os.path.splitext(name.removesuffix('.gz'))[1].lower()
  return kind in _KINDS and name not in ('dataset_info.json', 'dataset_infos.json')


def _chosen(split: str, splits: Sequence[str], folder: str, field: str) -> str:
  if split in splits:
    return split
  if not split and len(splits) == 1:
    return splits[0]
  hint = errors.did_you_mean(split, splits, f'there are {", ".join(splits)}')
  raise errors.UserError(f'{_split_field(field)}: {folder} has no split {split!r}; {hint}')


def _split_field(field: str) -> str:
  """The field `split` next to an `input_path`; otherwise the flag of a command."""
  return field.removesuffix('input_path') + 'split' if field.endswith('input_path') else '--split'
