"""Records from tables in CSV and from documents in plain text or Markdown."""

from collections.abc import Sequence
import csv
import gzip
import hashlib
import io
import os

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.data import json_records
from official_ext.data import numbered_records

TABLES = {'.csv': ',', '.tsv': '\t'}
DOCUMENTS = ('.txt', '.md')


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


def table(file: str) -> PlainRecords:
  """The rows of a table of RFC 4180 with a header: dictionaries of strings. Blank lines do not count.

  Args:
    file: UTF-8, with commas (.csv) or tabs (.tsv); also packed by gzip (.csv.gz).

  Raises:
    UserError: it is not UTF-8, has no header, or a row has more cells than the header.
    OSError: it cannot be read.
  """
  content = _content(file)
  csv.field_size_limit(json_records.MAX_LINE_BYTES)
  delimiter = TABLES[os.path.splitext(file.removesuffix('.gz'))[1].lower()]
  reader = csv.DictReader(io.StringIO(_text(content, file), newline=''), delimiter=delimiter)
  records, places = [], []
  try:
    names = reader.fieldnames or []
    repeated = next((name for name in names if names.count(name) > 1), None)
    if not names or repeated is not None:
      what = 'has no header' if not names else f'has the column {repeated!r} more than once'
      raise errors.UserError(f'{file}, line 1: {what}; name each column once')
    for record in reader:
      if None in record:
        raise errors.UserError(f'{file}, line {reader.line_num}: has more cells than the header; quote commas in texts')
      records.append({name: value or '' for name, value in record.items()})
      places.append(f'{file}, line {reader.line_num}')
  except csv.Error as error:
    raise errors.UserError(f'{file}, line {reader.line_num}: is invalid CSV: {error}') from error
  return PlainRecords(records, file, places, content)


def document(file: str) -> PlainRecords:
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
