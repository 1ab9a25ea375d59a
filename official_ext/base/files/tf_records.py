"""Writes TFRecord files and tf.Examples, as Model Garden's input pipelines read them, without TensorFlow.

Sources: tensorflow/core/lib/io/record_writer.h (framing), tensorflow/core/lib/hash/crc32c.h (mask of the checksum),
RFC 3720, appendix B.4 (CRC32C), tensorflow/core/example/feature.proto.
"""

from collections.abc import Iterator, Mapping, Sequence
import functools
import struct
from typing import Any

import numpy as np

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_NUM_COLUMNS_BITS = 6  # Bytes of a row: 64.
_SHORT = 2048  # Bytes: from here on numpy is faster.


def masked_crc32c(data: bytes) -> bytes:
  """The masked CRC32C of data, as TFRecord files hold it: 4 bytes, little-endian."""
  crc = crc32c(data)
  return struct.pack('<I', (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
  """The CRC32C (Castagnoli) of data.

  Short data are read byte by byte. Others are rows of 64 bytes: numpy computes the remainders of all rows at once, byte
  by byte, and then joins them in pairs. The remainder of `a + b` is the remainder of `a`, shifted by the length of `b`,
  xor the remainder of `b`.
  """
  if len(data) < _SHORT:
    register, remainders_of = 0xFFFFFFFF, _short_table()
    for byte in data:
      register = remainders_of[(register ^ byte) & 0xFF] ^ (register >> 8)
    return register ^ 0xFFFFFFFF
  width = 1 << _NUM_COLUMNS_BITS
  padding = -len(data) % width  # Zeros in front leave a remainder of zero unchanged.
  padded = np.zeros(padding + len(data), np.uint8)
  padded[padding:] = np.frombuffer(data, np.uint8)
  padded[padding : padding + 4] ^= 0xFF  # The initial value of the register.
  table = _table()
  remainders = np.zeros(len(padded) // width, np.uint32)
  for column in np.ascontiguousarray(padded.reshape(-1, width).T):
    remainders = table[(remainders ^ column) & 0xFF] ^ (remainders >> 8)
  bits = _NUM_COLUMNS_BITS
  while len(remainders) > 1:
    if len(remainders) % 2:
      remainders = np.concatenate([np.zeros(1, np.uint32), remainders])
    remainders = _shifted(remainders[::2], bits) ^ remainders[1::2]
    bits += 1
  return int(remainders[0]) ^ 0xFFFFFFFF


@functools.cache
def _table() -> np.ndarray:
  """uint32 `[256]`: the remainder of each byte."""
  table = np.arange(256, dtype=np.uint32)
  for _ in range(8):
    table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
  return table


@functools.cache
def _short_table() -> list[int]:
  """The same as integers of Python, which a loop of Python reads faster."""
  return _table().tolist()


@functools.cache
def _shift_tables(bits: int) -> np.ndarray:
  """uint32 `[4, 256]`: by place and value of a byte of a remainder, its remainder `1 << bits` zero bytes later."""
  bytes_of = np.arange(256, dtype=np.uint32)
  values = np.stack([bytes_of << np.uint32(8 * place) for place in range(4)])
  if not bits:
    return _table()[values & 0xFF] ^ (values >> 8)
  return _shifted(_shifted(values, bits - 1), bits - 1)


def _shifted(remainders: np.ndarray, bits: int) -> np.ndarray:
  """Remainders `1 << bits` zero bytes later."""
  tables = _shift_tables(bits)
  found = tables[0][remainders & 0xFF]
  for place in range(1, 4):
    found = found ^ tables[place][(remainders >> np.uint32(8 * place)) & 0xFF]
  return found


ENDING = '.tfrecord'

Feature = bytes | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]


def framed(record: bytes) -> bytes:
  """A record as TFRecord files hold it: its length and data, each with its checksum."""
  length = struct.pack('<Q', len(record))
  return b''.join([length, masked_crc32c(length), record, masked_crc32c(record)])


def encode_example(features: Mapping[str, Feature]) -> bytes:
  """A serialized tf.Example; equal features have equal bytes.

  Args:
    features: by name, in any order. Bytes become a bytes feature, integers an int64 feature, floats a float feature.
      A sequence has values of one type; an empty one becomes a feature without values.
  """
  entries = b''.join(
    _field(1, _field(1, name.encode()) + _field(2, _feature(features[name]))) for name in sorted(features)
  )
  return _field(1, entries)


def _feature(value: Feature) -> bytes:
  values: list[Any] = [value] if isinstance(value, (bytes, int, float)) else list(value)
  if not values:
    return b''
  if isinstance(values[0], bytes):
    return _field(1, b''.join(_field(1, each) for each in values))
  if isinstance(values[0], float):
    return _field(2, _field(1, struct.pack(f'<{len(values)}f', *values)))
  return _field(3, _field(1, b''.join(_varint(each & 0xFFFFFFFFFFFFFFFF) for each in values)))


def _field(number: int, content: bytes) -> bytes:
  """A length-delimited field of a protocol buffer."""
  return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
  return bytes(_groups_of(value))


def _groups_of(value: int) -> Iterator[int]:
  """Groups of seven bits, the lowest first; all but the last are marked."""
  while value > 0x7F:
    yield value & 0x7F | 0x80
    value >>= 7
  yield value
