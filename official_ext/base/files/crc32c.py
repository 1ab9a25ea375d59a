"""The checksum of records in TFRecord files.

Sources: RFC 3720, appendix B.4 (CRC32C); tensorflow/core/lib/hash/crc32c.h (its mask).
"""

import functools
import struct

import numpy as np

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_NUM_COLUMNS_BITS = 6  # Bytes of a row: 64.
_SHORT = 2048  # Bytes: from here on numpy is faster.


def masked(data: bytes) -> bytes:
  """The masked CRC32C of data, as TFRecord files hold it: 4 bytes, little-endian."""
  crc = crc32c(data)
  return struct.pack('<I', (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
  """The CRC32C (Castagnoli) of data.

  Short data are read byte by byte. Others are rows of 64 bytes: numpy computes the remainders of all rows at once, byte
  by byte, and then joins them in pairs. The remainder of `a + b` is that of `a`, shifted by the length of `b`, xor that
  of `b`.
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
