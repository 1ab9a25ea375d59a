"""TFRecord files and tf.Examples, as Model Garden's input pipelines read them, written without TensorFlow.

Sources: tensorflow/core/lib/io/record_writer.h (framing), tensorflow/core/example/feature.proto.
"""

from collections.abc import Iterator, Mapping, Sequence
import struct
from typing import Any

from official_ext.base.files import crc32c

ENDING = '.tfrecord'

Feature = bytes | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]


def framed(record: bytes) -> bytes:
  """A record as TFRecord files hold it: its length and data, each with its checksum."""
  length = struct.pack('<Q', len(record))
  return b''.join([length, crc32c.masked(length), record, crc32c.masked(record)])


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
