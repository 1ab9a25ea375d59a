"""Records from tables (CSV, Parquet, Arrow), and from documents in plain text or Markdown.

Tables in CSV and documents are read into memory. Parquet is read by row groups, and Arrow is mapped into memory.
"""

import bisect
from collections.abc import Callable, Sequence
import csv
import functools
import gzip
import hashlib
import io
import json
import os
import threading
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.data import bad_examples
from official_ext.data import json_records
from official_ext.data import numbered_records

TABLE_ENDINGS = {'.csv': ',', '.tsv': '\t'}
DOCUMENT_ENDINGS = ('.txt', '.md')


class PlainRecords(numbered_records.ListRecords):
  """The records of one file, in memory."""

  def __init__(self, records: Sequence[numbered_records.Record], file: str, places: Sequence[str], content: bytes):
    """Takes records that were read.

    Args:
      records: dictionaries.
      file: their file.
      places: the place of each, for messages.
      content: the bytes of the file.
    """
    super().__init__(records)
    self.files, self._places, self._content = [file], places, hashlib.sha256(content).hexdigest()[:32]

  def place(self, index: int) -> str:
    return self._places[index]

  @property
  def digest(self) -> str:
    return self._content


def csv_records(file: str) -> PlainRecords:
  """The rows of a table of RFC 4180 with a header: dictionaries of strings. Blank lines do not count.

  Args:
    file: UTF-8, with commas (.csv) or tabs (.tsv); also packed by gzip (.csv.gz).

  Raises:
    UserError: it is not UTF-8, has no header, a row has more cells than the header, or quotation marks are not paired.
      In a .tsv they also may not join what may be rows: most writers of such files leave marks as they are.
    OSError: it cannot be read.
  """
  content = _content(file)
  csv.field_size_limit(json_records.MAX_LINE_BYTES)
  delimiter = TABLE_ENDINGS[os.path.splitext(file.removesuffix('.gz'))[1].lower()]
  reader = csv.DictReader(io.StringIO(_text(content, file), newline=''), delimiter=delimiter, strict=True)
  records, places, end = [], [], 0
  try:
    names = reader.fieldnames or []
    repeated = next((name for name in names if names.count(name) > 1), None)
    if not names or repeated is not None:
      what = 'has no header' if not names else f'has the column {repeated!r} more than once'
      raise errors.UserError(f'{file}, line 1: {what}; name each column once')
    end = reader.line_num
    for record in reader:
      if delimiter == '\t' and any(map(_may_be_rows, record.values())):
        raise csv.Error('a field has several lines with tabs')
      if None in record:
        raise errors.UserError(f'{file}, line {reader.line_num}: has more cells than the header; quote commas in texts')
      records.append({name: value or '' for name, value in record.items()})
      places.append(f'{file}, line {reader.line_num}')
      end = reader.line_num
  except csv.Error as error:
    raise errors.UserError(
      f'{file}, line {end + 1}: is invalid CSV: {error}; a text with a quotation mark needs marks around it, and '
      'two for each inside; or write JSON lines'
    ) from error
  return PlainRecords(records, file, places, content)


def _may_be_rows(field: object) -> bool:
  """Whether a field may be several rows that two unpaired marks have joined: a doubled mark in it rules that out."""
  return isinstance(field, str) and '\n' in field and '\t' in field and '"' not in field


def document_records(file: str) -> PlainRecords:
  """A document as one record with the columns `text` and `file`, the name of the file.

  Args:
    file: UTF-8.

  Raises:
    UserError: it is not UTF-8.
    OSError: it cannot be read.
  """
  content = _content(file)
  record = {'text': _text(content, file), 'file': os.path.basename(file)}
  return PlainRecords([record], file, [file], content)


def _content(file: str) -> bytes:
  content = paths.read(file)
  return gzip.decompress(content) if file.endswith('.gz') else content


def _text(content: bytes, file: str) -> str:
  try:
    return content.decode('utf-8-sig')
  except UnicodeDecodeError as error:
    raise errors.UserError(f'{file}: is not UTF-8 at byte {error.start}; store it as UTF-8') from error


def _check_names(path: str, fields: Any, inside: str = '') -> None:
  """Refuses columns of one name: a record is a dictionary, which keeps the last of them.

  Raises:
    UserError: two columns, or two fields of a struct, have one name.
  """
  names = [field.name for field in fields]
  for field in fields:
    place = f'{inside}.{field.name}' if inside else field.name
    if names.count(field.name) > 1:
      raise errors.UserError(f'{path}: has the column {place!r} more than once; rename or drop one of them')
    kind = field.type
    while hasattr(kind, 'value_field'):  # A list.
      kind = kind.value_type
    if kind.num_fields and hasattr(kind, 'field') and hasattr(kind, 'get_field_index'):
      _check_names(path, [kind.field(number) for number in range(kind.num_fields)], place)


_JSON = 'arrow.json'  # Arrow's canonical extension of texts.
_Decode = Callable[[Any], Any]


def _json_columns(schema: Any) -> dict[str, _Decode]:
  """Column -> the function that reads its JSON texts, of columns that hold some anywhere in them.

  `datasets` keeps values of mixed types, such as arguments of tools, as JSON texts: in columns of Arrow's type for
  them, or in plain texts with the feature Json in the metadata of the schema.
  """
  try:
    features = json.loads((schema.metadata or {}).get(b'huggingface') or '{}')['info']['features']
  except (ValueError, KeyError, TypeError):  # Of another program, or none.
    features = {}
  found = {field.name: _json_inside(field, features.get(field.name)) for field in schema}
  return {name: decode for name, decode in found.items() if decode is not None}


def _json_inside(field, feature) -> _Decode | None:
  """A function for the values of a field of Arrow; None if there is no JSON text in them.

  Args:
    field: of Arrow.
    feature: its description by `datasets`; None without one.
  """
  kind, described = field.type, feature if isinstance(feature, dict) else {}
  is_json = str(kind) == f'extension<{_JSON}>' or (field.metadata or {}).get(b'ARROW:extension:name') == _JSON.encode()
  if is_json or described.get('_type') == 'Json':
    return lambda value: json.loads(value) if isinstance(value, str) else value
  if hasattr(kind, 'value_field'):
    inner = feature[0] if isinstance(feature, list) else described.get('feature')
    decode = _json_inside(kind.value_field, inner)
    return None if decode is None else lambda value: None if value is None else [decode(item) for item in value]
  if kind.num_fields and hasattr(kind, 'get_field_index'):
    fields = [kind.field(number) for number in range(kind.num_fields)]
    inside = {each.name: _json_inside(each, described.get(each.name)) for each in fields}
    known = {name: decode for name, decode in inside.items() if decode is not None}
    return (lambda value: value if value is None else _decoded(value, known)) if known else None
  return None


def _decoded(record: dict[str, Any], columns: dict[str, _Decode]) -> dict[str, Any]:
  return {name: columns[name](value) if name in columns else value for name, value in record.items()}


class _TableRecords(numbered_records.Records):
  """Rows of Arrow tables that are parts of a file."""

  def __init__(self, path: str, lengths: Sequence[int], part_of: Callable[[int], Any], schema: Any):
    """Takes the number of rows of each part, the function that reads one as a table or record batch, and the schema."""
    self._part_of = part_of
    self._json = _json_columns(schema)
    self._path, self.files = path, [path]
    self._starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    self._lock = threading.Lock()

  def __len__(self) -> int:
    return int(self._starts[-1])

  def read(self, index: int) -> numbered_records.Record:
    number = bisect.bisect_right(self._starts, index) - 1
    try:
      with self._lock:
        part = self._part_of(number)
      (record,) = part.slice(index - int(self._starts[number]), 1).to_pylist()
      record = _decoded(record, self._json)
    except Exception as error:  # Arrow's own.
      raise bad_examples.BadExampleError(
        f'{self.place(index)}: cannot be read: {bad_examples.reason_of_file(error)}'
      ) from error
    return record

  def place(self, index: int) -> str:
    return f'{self._path}, row {index}'

  @functools.cached_property
  def digest(self) -> str:
    with open(self._path, 'rb') as f:
      found = hashlib.file_digest(f, 'sha256').hexdigest()[:32]
    return f'{found}-json' if self._json else found  # Earlier versions left their texts as they are.


class ParquetRows(_TableRecords):
  """A Parquet file. Two row groups are in memory at a time."""

  def __init__(self, path: str):
    from pyarrow import parquet  # pylint: disable=g-import-not-at-top

    self._file = parquet.ParquetFile(path, memory_map=True)
    _check_names(path, self._file.schema_arrow)
    metadata = self._file.metadata
    lengths = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    super().__init__(path, lengths, functools.lru_cache(maxsize=2)(self._file.read_row_group), self._file.schema_arrow)


class ArrowRows(_TableRecords):
  """An Arrow file or stream, mapped into memory."""

  def __init__(self, path: str):
    import pyarrow  # pylint: disable=g-import-not-at-top

    mapped = pyarrow.memory_map(path)
    try:
      table = pyarrow.ipc.open_stream(mapped).read_all()
    except pyarrow.ArrowInvalid:
      mapped.seek(0)
      table = pyarrow.ipc.open_file(mapped).read_all()
    _check_names(path, table.schema)
    parts = table.to_batches()
    super().__init__(path, [part.num_rows for part in parts], parts.__getitem__, table.schema)
