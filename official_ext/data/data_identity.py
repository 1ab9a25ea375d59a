"""Identities distinguish data sets at almost no cost: by counts, names and sizes, and a few rows.

An identity is a flat dictionary of JSON values. Its cost grows with the number of files, not of examples. It misses
other content of the same size in a file of the same name, and changes in rows of arrays that it does not read.
"""

from collections.abc import Mapping, Sequence
from concurrent import futures
import hashlib
import os

import numpy as np
from official.modeling.hyperparams import base_config
import tensorflow as tf

from official_ext.base import json_values
from official_ext.data import config_fields
from official_ext.data import input_faults

Identity = json_values.JsonObject
NUM_ROWS = 16
_NUM_THREADS = 16
_ORDER = 'order_of_files'
_FILES = 'names_and_sizes_of_files'


def of_files(files: Sequence[str]) -> Identity:
  """The identity of a list of files.

  Returns:
    num_files, num_empty_files, num_bytes, and the checksums names_and_sizes_of_files and order_of_files; {} for no
    files. Folders do not count: data that was moved is the same. Sizes that cannot be read are omitted.
  """
  if not files:
    return {}
  with futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
    sizes = list(pool.map(_size, files))
  parts = [f'{os.path.basename(file)} {size}' for file, size in zip(files, sizes)]
  return {
    'num_files': len(files),
    'num_empty_files': sum(size == 0 for size in sizes),
    'num_bytes': sum(size or 0 for size in sizes),
    _FILES: digest(sorted(parts)),
    _ORDER: digest(parts),
  }


def of_config(data: base_config.Config) -> Identity:
  """The identity of the files or the TFDS data set that a Model Garden data configuration names; {} if neither."""
  identity = of_files(input_faults.input_files(data))
  fields = config_fields.of_data(data)
  if fields.input_path or not fields.tfds_name:
    return identity
  try:
    import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

    info = tfds.builder(data.tfds_name, data_dir=data.tfds_data_dir or None).info
    found = {'tfds': info.full_name, 'num_examples': info.splits[data.tfds_split].num_examples}
  except Exception:  # pylint: disable=broad-except  # The pipeline itself reports the error.
    found = {'tfds': data.tfds_name}
  return {**found, 'split': data.tfds_split, **identity}


def of_arrays(arrays: object) -> Identity:
  """The identity of a structure of arrays: shapes, dtypes, and a checksum of 16 evenly spaced rows.

  Args:
    arrays: NumPy arrays with the same leading dimension.
  """
  flat = tf.nest.flatten(arrays)
  length = len(flat[0])
  rows = sorted({index * (length - 1) // (NUM_ROWS - 1) for index in range(NUM_ROWS)}) if length else []
  return {
    'shapes_and_dtypes': [f'{list(array.shape[1:])} {array.dtype}' for array in flat],
    f'content_of_{NUM_ROWS}_rows': digest([_bytes(array[row]) for row in rows for array in flat]),
  }


def differences(path: str, before: Sequence[Mapping[str, object]], now: Sequence[Mapping[str, object]]) -> list[str]:
  """A line for each difference between the identities of an input's sources, in the entries that both have.

  Args:
    path: the dotted path of the data configuration.
    before: the identities that were noted.
    now: the present ones.
  """
  if len(before) != len(now):
    return [f'{path}: {len(before)} sources -> {len(now)}']
  lines = []
  for number, (old, new) in enumerate(zip(before, now)):
    place = path if len(now) == 1 else f'{path}[{number}]'
    if not set(old) & set(new):
      lines.append(f'{place}: {", ".join(old)} -> {", ".join(new)}')
    names = [name for name in old if name in new and old[name] != new[name]]
    if _FILES in names and _ORDER in names:
      names.remove(_ORDER)
    lines += [f'{place}: {name}: {old[name]} -> {new[name]}' for name in names]
  return lines


def digest(parts: Sequence[str | bytes]) -> str:
  """A short checksum of strings or bytes."""
  total = hashlib.sha256()
  for part in parts:
    total.update(part if isinstance(part, bytes) else part.encode())
    total.update(b'\0')
  return total.hexdigest()[:12]


def _bytes(row: np.ndarray) -> bytes:
  row = np.asarray(row)
  return repr(row.tolist()).encode() if row.dtype.kind == 'O' else row.tobytes()


def _size(file: str) -> int | None:
  try:
    stat = tf.io.gfile.stat(file)
  except (tf.errors.OpError, OSError):
    return None
  return None if stat.is_directory else stat.length
