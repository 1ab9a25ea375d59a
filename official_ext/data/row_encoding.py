"""Examples as records of ArrayRecord files: the output of `official-ext prepare`. No TensorFlow.

An example is a JSON object in UTF-8. Bytes in it are written as `{"\u0000": length}`; they follow the object and a zero
byte, in the order of their places. JSON itself has no zero byte.

A row of texts is four little-endian arrays, one after the other: the number of its parts, uint32; their lengths,
uint32; their tokens, int32; a bit for each token, 1 if it is learned. A row of an unpaired answer ends with its label,
a byte: 1 for a desirable one, 0 for another.
"""

from collections.abc import Mapping, Sequence
import json
from typing import Any

import numpy as np

_BYTES = '\0'


def encode_example(example: Mapping[str, object]) -> bytes:
  """An example as a record.

  Args:
    example: JSON values and bytes, possibly nested.

  Raises:
    ValueError: it holds something else.
  """
  buffers: list[bytes] = []
  head = json.dumps(_without_bytes(example, buffers, ''), ensure_ascii=False, separators=(',', ':')).encode()
  return b'\0'.join([head, b''.join(buffers)]) if buffers else head


def decode_example(record: bytes) -> dict[str, object]:
  """The example of a record.

  Raises:
    ValueError: it is invalid.
  """
  head, _, rest = record.partition(b'\0')
  example = json.loads(head)
  if rest or b'{"\\u0000":' in head:
    example, end = _with_bytes(example, rest, 0)
    if end != len(rest):
      raise ValueError(f'has {len(rest)} bytes behind its JSON, and {end} were expected')
  return example


def _without_bytes(value: object, buffers: list[bytes], path: str) -> object:
  if isinstance(value, Mapping):
    wrong = [name for name in value if not isinstance(name, str) or name == _BYTES]
    if wrong:
      raise ValueError(f'{path or "the record"} has the key {wrong[0]!r}; expected texts')
    return {name: _without_bytes(part, buffers, f'{path}.{name}' if path else name) for name, part in value.items()}
  if isinstance(value, (list, tuple)):
    return [_without_bytes(part, buffers, path) for part in value]
  if isinstance(value, (bytes, bytearray, memoryview)):
    buffers.append(bytes(value))
    return {_BYTES: len(buffers[-1])}
  if isinstance(value, str):
    try:
      value.encode()
    except UnicodeEncodeError as error:
      raise ValueError(f'column {path!r}: half of a surrogate pair at character {error.start}') from error
  elif value is not None and not isinstance(value, (bool, int, float)):
    raise ValueError(f'column {path!r} holds a {type(value).__name__}; expected a JSON value or bytes')
  return value


def _with_bytes(value: object, content: bytes, start: int) -> tuple[Any, int]:
  """(the value with its bytes, where the bytes of the next one begin)."""
  if isinstance(value, dict):
    if set(value) == {_BYTES}:
      end = start + value[_BYTES]
      return content[start:end], end
    parts: Any = {}
    for name, part in value.items():
      parts[name], start = _with_bytes(part, content, start)
    return parts, start
  if isinstance(value, list):
    parts = []
    for part in value:
      found, start = _with_bytes(part, content, start)
      parts.append(found)
    return parts, start
  return value, start


def encode_texts(tokens: np.ndarray, learned: np.ndarray, parts: Sequence[tuple[int, int]]) -> bytes:
  """A row of texts as a record.

  Args:
    tokens: int32 `[n]`, a stream.
    learned: uint8 `[n]`, 1 on tokens that are learned.
    parts: (start, end) in the stream of each part of the row.
  """
  lengths = np.array([end - start for start, end in parts], '<u4')
  ids = np.concatenate([tokens[start:end] for start, end in parts]).astype('<i4')
  marks = np.packbits(np.concatenate([learned[start:end] for start, end in parts]))
  return b''.join([np.array(len(parts), '<u4').tobytes(), lengths.tobytes(), ids.tobytes(), marks.tobytes()])


def decode_texts(record: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The parts of a row.

  Returns:
    (their lengths, int64 `[parts]`; their tokens, int32 `[n]`; uint8 `[n]`, 1 on learned tokens).

  Raises:
    ValueError: the record is invalid.
  """
  num_parts = int(np.frombuffer(record, '<u4', 1)[0])
  lengths = np.frombuffer(record, '<u4', num_parts, 4).astype(np.int64)
  start, count = 4 + 4 * num_parts, int(lengths.sum())
  if len(record) != start + 4 * count + -(-count // 8):
    raise ValueError(f'has {len(record)} bytes, and is not a row of {num_parts} texts with {count} tokens')
  tokens = np.frombuffer(record, '<i4', count, start)
  learned = np.unpackbits(np.frombuffer(record, np.uint8, offset=start + 4 * count), count=count)
  return lengths, tokens, learned
