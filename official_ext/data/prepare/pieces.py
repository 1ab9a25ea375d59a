"""Pieces of input: ranges of bytes or rows of a file, or images of a folder with a subfolder for each class.

Pieces that follow each other make a shard.
"""

from collections.abc import Iterator, Sequence
import hashlib
import io
import os
from typing import NamedTuple

import numpy as np

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.data import bad_examples
from official_ext.data import json_records
from official_ext.data import numbered_records
from official_ext.data import record_files

IMAGE_ENDINGS = ('.bmp', '.gif', '.jpeg', '.jpg', '.png')  # The formats of tf.io.decode_image.


def is_image(name: str) -> bool:
  """Whether a file is an image, by its name."""
  return os.path.splitext(name)[1].lower() in IMAGE_ENDINGS


def image_classes(folder: str) -> list[str]:
  """The subfolders that hold an image, sorted; [] if this is not a folder of images."""
  found = []
  for name in paths.names(folder):
    path = os.path.join(folder, name)
    if not name.startswith('.') and os.path.isdir(path):
      with os.scandir(path) as entries:
        if any(is_image(entry.name) for entry in entries):
          found.append(name)
  return found


def image_files(folder: str, classes: Sequence[str]) -> list[tuple[str, int]]:
  """(path below the folder, size in bytes) of each image, sorted by class and name.

  Raises:
    UserError: one cannot be read.
  """
  found = []
  for name in classes:
    try:
      with os.scandir(os.path.join(folder, name)) as entries:
        found += sorted((f'{name}/{entry.name}', entry.stat().st_size) for entry in entries if is_image(entry.name))
    except OSError as error:
      raise errors.UserError(f'{error.filename or folder}: cannot be read: {error.strerror}') from error
  return found


class ImageRecords(numbered_records.Records):
  """Images as records: `image`, the bytes of the file, and `label`, the number of its class."""

  def __init__(self, folder: str, files: Sequence[str], labels: Sequence[str]):
    """Takes paths below a folder, each in the subfolder of its class."""
    self._folder = folder
    self._files = files
    self._labels = {name: number for number, name in enumerate(labels)}

  def __len__(self) -> int:
    return len(self._files)

  def read(self, index: int) -> numbered_records.Record:
    """Reads an image and its label. An image that cannot be decoded to its end is bad.

    Raises:
      BadExampleError: the image is bad.
    """
    from PIL import Image  # pylint: disable=g-import-not-at-top

    try:
      with open(self.place(index), 'rb') as f:
        content = f.read()
      with Image.open(io.BytesIO(content)) as image:
        image.load()
      with Image.open(io.BytesIO(content)) as image:
        image.verify()  # Checksums, and the data after the pixels.
    except Exception as error:  # Pillow's decoders raise nearly anything.
      reason = (error.strerror if isinstance(error, OSError) else '') or 'is not an image that can be decoded'
      raise bad_examples.BadExampleError(f'{self.place(index)}: {reason}') from error
    return {'image': content, 'label': self._labels[os.path.dirname(self._files[index])]}

  def place(self, index: int) -> str:
    return os.path.join(self._folder, self._files[index])

  @property
  def digest(self) -> str:
    return hashlib.sha256('\0'.join(self._files).encode()).hexdigest()[:32]


class Piece(NamedTuple):
  """A part of a file.

  Attributes:
    path: of the file; of images, their folder.
    how: 'bytes': the lines that begin in a range of bytes. 'rows': a range of rows. 'images': files of a folder.
      'annotated': images with annotations, which the plan holds.
    start: where it begins.
    end: where it ends.
    size: in bytes, about.
  """

  path: str
  how: str
  start: int
  end: int
  size: int


def pieces_of_file(path: str, size: int, shard_bytes: int) -> Iterator[Piece]:
  """The pieces of a file, none much larger than a shard where it can be cut.

  JSON lines are cut anywhere, Parquet at row groups, Arrow at record batches. JSON, and gzip, is not.

  Raises:
    UserError: the file is damaged.
  """
  kind = os.path.splitext(path)[1].lower()
  if kind in ('.parquet', '.arrow'):
    yield from _of_table(path, size, shard_bytes, kind)
  elif kind in ('.jsonl', '.ndjson') or kind == '.json' and not _is_list(path):
    for start in range(0, size, shard_bytes):
      end = min(start + shard_bytes, size)
      yield Piece(path, 'bytes', start, end, end - start)
  else:
    yield Piece(path, 'rows', 0, -1, size)


def _is_list(path: str) -> bool:
  with record_files.reading(path):
    return json_records.begins_with(path, b'[')


def _of_table(path, size, shard_bytes, kind):
  with record_files.reading(path):
    rows, sizes = _groups_of_parquet(path) if kind == '.parquet' else _groups_of_arrow(path)
  start = at = 0
  pending = 0
  for count, group_size in zip(rows, sizes):
    if pending and pending + group_size > shard_bytes:
      yield Piece(path, 'rows', start, at, pending)
      start, pending = at, 0
    at, pending = at + count, pending + group_size
  if at > start:
    yield Piece(path, 'rows', start, at, pending)


def _groups_of_parquet(path):
  from pyarrow import parquet  # pylint: disable=g-import-not-at-top

  with parquet.ParquetFile(path) as file:
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    return [group.num_rows for group in groups], [group.total_byte_size for group in groups]


def _groups_of_arrow(path):
  import pyarrow  # pylint: disable=g-import-not-at-top

  with pyarrow.memory_map(path) as mapped:
    try:
      batches = list(pyarrow.ipc.open_stream(mapped))
    except pyarrow.ArrowInvalid:
      mapped.seek(0)
      reader = pyarrow.ipc.open_file(mapped)
      batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    return [batch.num_rows for batch in batches], [batch.nbytes for batch in batches]


def open_piece(
  piece: Piece,
  files: Sequence[str] = (),
  labels: Sequence[str] = (),
  annotated: Sequence[numbered_records.Record] = (),
) -> numbered_records.Records:
  """The records of a piece.

  Args:
    piece: which.
    files: of images, the paths of the files in it, below its folder.
    labels: of images, the names of their classes.
    annotated: of annotated images, the records of the plan.

  Raises:
    UserError: the file is damaged, or has changed since the plan was made.
  """
  if piece.how == 'annotated':
    return numbered_records.ListRecords(annotated)
  if piece.how == 'images':
    return ImageRecords(piece.path, files, labels)
  if piece.how == 'bytes':
    with record_files.reading(piece.path):
      return json_records.JsonLinesPart(piece.path, piece.start, piece.end)
  records = record_files.read_file(piece.path)
  if piece.end < 0:
    return records
  if piece.end > len(records):
    raise errors.UserError(f'{piece.path}: has changed since the preparation began; prepare another folder')
  return numbered_records.SelectedRecords(records, np.arange(piece.start, piece.end))
