"""Reads the files of Weights & Biases."""

import struct

_BLOCK = 32768  # The files are logs in LevelDB's format, of protocol buffers, behind 7 bytes with the version.


def records(path):
  """The records of a file, as protocol buffers."""
  from wandb.proto import wandb_internal_pb2

  data, position, parts = path.read_bytes(), 7, []
  while position + 7 <= len(data):
    if _BLOCK - position % _BLOCK < 7:  # No room for a header.
      position += _BLOCK - position % _BLOCK
      continue
    _, length, kind = struct.unpack('<IHB', data[position : position + 7])
    parts.append(data[position + 7 : position + 7 + length])
    position += 7 + length
    if kind in (1, 4):  # The whole, or its last part.
      record = wandb_internal_pb2.Record()
      record.ParseFromString(b''.join(parts))
      parts = []
      yield record
