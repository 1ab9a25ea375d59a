"""Logs of records: TFRecord files, as TensorBoard's writers write them, and LevelDB's, as W&B does. No TensorFlow.

A log that ends within a record was cut short by a dying process, and has only the records before it.

Sources: tensorflow/core/lib/io/record_reader.h (length, masked CRC32C, data, masked CRC32C);
https://github.com/google/leveldb/blob/main/doc/log_format.md, and wandb's core/internal/transactionlog: its header of 7
bytes, and checksums of the plain CRC32.
"""

from collections.abc import Iterator
import struct
import zlib

from official_ext.base.files import crc32c
from official_ext.base.files import regular_files

_MAX_CHECKED = 1 << 16  # Bytes. The checksum of a longer record, which is an image or the like, takes too long.
_MAX_RECORD = 1 << 20  # A longer one is not of scalars, and left out.
_BLOCK, _HEADER = 1 << 15, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_WANDB_HEADER = b':W&B\xe1\xbe\x00'  # The last byte is the version.


class DamagedError(Exception):
  """The rest of a log cannot be read; the message says where that begins."""


def tf_records(path: str) -> Iterator[bytes]:
  """The records of a TFRecord file, but long ones.

  Raises:
    DamagedError: a record is damaged.
    OSError: the file cannot be read.
  """
  place = 0
  with regular_files.open_to_read(path) as file:
    while len(head := file.read(12)) == 12:
      (length,) = struct.unpack_from('<Q', head)
      if head[8:] != crc32c.masked(head[:8]):
        raise DamagedError(f'damaged at byte {place}')
      if length > _MAX_RECORD:
        file.seek(length + 4, 1)
      else:
        data = file.read(length)
        end = file.read(4)
        if len(end) < 4:
          return
        if length <= _MAX_CHECKED and end != crc32c.masked(data):
          raise DamagedError(f'damaged at byte {place}')
        yield data
      place += 16 + length


def leveldb_records(path: str) -> Iterator[bytes]:
  """The records of a .wandb file.

  Raises:
    DamagedError: it is none, or a record is damaged.
    OSError: the file cannot be read.
  """
  with regular_files.open_to_read(path) as file:
    if file.read(len(_WANDB_HEADER)) != _WANDB_HEADER:
      raise DamagedError('not a file of W&B, or one of an unknown version')
    place, parts = len(_WANDB_HEADER), bytearray()
    while True:
      room = _BLOCK - place % _BLOCK
      if room < _HEADER:
        file.seek(room, 1)
        place += room
      head = file.read(_HEADER)
      if len(head) < _HEADER:
        return
      check, length, kind = struct.unpack('<IHB', head)
      data = file.read(length)
      if len(data) < length:
        return
      if not _FULL <= kind <= _LAST or check != zlib.crc32(data, zlib.crc32(head[6:])):
        raise DamagedError(f'damaged at byte {place}')
      place += _HEADER + length
      if kind in (_FULL, _FIRST):
        parts.clear()
      parts += data
      if kind in (_FULL, _LAST):
        yield bytes(parts)
