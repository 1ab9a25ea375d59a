"""The weights of a folder: one safetensors file, or shards with an index. Pickle files are never opened."""

import collections
from collections.abc import Callable, Iterator, Mapping
import contextlib
import os
import re
import stat

import ml_dtypes
import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.base.files import paths

WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
_OS_ERROR = re.compile(r'\(os error (\d+)\)')  # In the text of the library's own exception, which is not an OSError.
# The bytes read of a file before it is opened again: it counts as this process's memory until the file is closed.
_MAPPED_BYTES = 2**24
# The bits of a number's exponent, which are all set in NaN and infinity alone.
_EXPONENTS = {
  'bfloat16': np.uint16(0x7F80),
  'float16': np.uint16(0x7C00),
  'float32': np.uint32(0x7F800000),
  'float64': np.uint64(0x7FF0000000000000),
}
_PART = 2**20
_PARTIAL = '.shard-{}.safetensors.partial'
_PICKLES = ('.bin', '.pt', '.pth', '.ckpt', '.pkl')


class TensorFiles:
  """The tensors of a folder.

  Attributes:
    folder: its path.
    names: of all tensors, in the order of the files.
  """

  def __init__(self, folder: str):
    """Lists the tensors.

    Raises:
      errors.UserError: if there are no weights, or none in safetensors files.
    """
    self.folder = folder
    self._open = package_imports.import_optional('safetensors', folder).safe_open
    self._files: dict[str, list[str]] = {}
    self._local: dict[str, str] = {}  # The library opens local files alone.
    for file, own in self._find().items():
      with self._opened(file) as opened:
        self._files[file] = [name for name in opened.keys() if own is None or name in own]
    self.names = [name for names in self._files.values() for name in names]

  def _find(self):
    """File -> the names of the tensors that the index has in it; None for all of the file."""
    index = os.path.join(self.folder, INDEX)
    if paths.exists(index):
      shards: dict[str, set[str]] = {}
      for name, shard in json_values.read_required_file(index).get('weight_map', {}).items():
        shards.setdefault(shard, set()).add(name)
      for shard in shards:
        if os.path.basename(shard) != shard or not shard.endswith('.safetensors'):
          raise errors.UserError(f'{index}: weight_map: {shard!r} is not a safetensors file of this folder')
        if not paths.exists(os.path.join(self.folder, shard)):
          raise errors.UserError(f'{os.path.join(self.folder, shard)}: no such file, and {INDEX} names it')
      return dict(sorted(shards.items()))
    if paths.exists(os.path.join(self.folder, WEIGHTS)):
      return {WEIGHTS: None}
    pickles = sorted(name for name in paths.names(self.folder) if name.endswith(_PICKLES))
    if pickles:
      raise errors.UserError(
        f'{os.path.join(self.folder, pickles[0])}: a pickle file runs any code that is in it, and is not opened; if '
        'you trust it, save it as safetensors: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)'
      )
    raise errors.UserError(f'{os.path.join(self.folder, WEIGHTS)}: no such file, and no {INDEX}')

  def _opened(self, file):
    path = os.path.join(self.folder, file)
    try:
      if file not in self._local:
        self._local[file] = paths.local_copy(path)
      return self._open(self._local[file], framework='np')
    except Exception as error:  # Its own exception has no name in numpy's half of the library.
      raise errors.UserError(f'{path}: cannot be read as safetensors: {error}') from error

  def stamp(self) -> tuple[tuple[str, int, int], ...]:
    """(name, size in bytes, time of change in nanoseconds) of each file: other ones hold other weights, as a rule."""
    found = [(file, tf.io.gfile.stat(os.path.join(self.folder, file))) for file in self._files]
    return tuple((file, stat.length, stat.mtime_nsec) for file, stat in found)

  def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of each tensor, from the files' headers."""
    for file, names in self._files.items():
      with self._opened(file) as opened:
        for name in names:
          yield name, tuple(opened.get_slice(name).get_shape())

  def tensors(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, np.ndarray]]:
    """(name, value) of each tensor requested, one tensor at a time, as long as the caller keeps none."""
    for file, names in self._files.items():
      left = collections.deque(filter(wanted, names))
      while left:
        num_bytes = 0
        with self._opened(file) as opened:
          while left and num_bytes < _MAPPED_BYTES:
            name = left.popleft()
            value = opened.get_tensor(name)
            num_bytes += value.nbytes
            yield name, value
            del value


def check_finite(value: np.ndarray, what: str, kept: np.ndarray | None = None) -> None:
  """Refuses NaN and infinity.

  Args:
    value: of any floating-point type, ml_dtypes' included; others are always finite.
    what: its name, for the message.
    kept: the same, cast to the type that it is kept in.

  Raises:
    errors.UserError: a value is not finite, or beyond the range of the type that it is kept in.
  """
  if not _is_finite(value):
    raise errors.UserError(f'{what} has values that are not finite (NaN or infinity); use an undamaged copy')
  if kept is not None and not _is_finite(kept):
    raise errors.UserError(f'{what} has values that are beyond {kept.dtype.name}; keep it in bfloat16 or float32')


def _is_finite(value: np.ndarray) -> bool:
  exponents = _EXPONENTS.get(value.dtype.name)
  if exponents is None:
    return True
  bits = np.ascontiguousarray(value).reshape(-1).view(f'u{value.itemsize}')
  parts = (bits[start : start + _PART] for start in range(0, bits.size, _PART))  # Bounds the memory that this takes.
  return not any(((part & exponents) == exponents).any() for part in parts)


def write_file(path: str, tensors: Mapping[str, np.ndarray]) -> None:
  """Writes one safetensors file, with the permissions of any other new file.

  Args:
    path: local. An existing file is replaced.
    tensors: by name.

  Raises:
    OSError: it cannot be written; nothing is left of it.
  """
  with open(path, 'wb') as f:
    mode = stat.S_IMODE(os.fstat(f.fileno()).st_mode)
  try:
    package_imports.import_optional('safetensors.numpy', path).save_file(dict(tensors), path, metadata={'format': 'pt'})
    os.chmod(path, mode)  # The library puts a private temporary file in its place.
    paths.sync_to_disk(path)
  except BaseException as error:
    with contextlib.suppress(OSError):
      os.remove(path)
    number = _OS_ERROR.search(str(error))
    if isinstance(error, package_imports.import_optional('safetensors', path).SafetensorError) and number is not None:
      raise OSError(int(number[1]), os.strerror(int(number[1])), path) from error
    raise


def write(folder: str, tensors: Mapping[str, Callable[[], np.ndarray]], dtype: str, max_shard_bytes: int) -> None:
  """Writes tensors as one file or as shards with an index, and removes the weights that the folder had.

  Args:
    folder: an existing one.
    tensors: name -> a function that returns the value: one shard is in memory at a time.
    dtype: float32, bfloat16 or float16.
    max_shard_bytes: of a file, unless a single tensor is larger.

  Raises:
    errors.UserError: a tensor has values that are not finite, or are not in `dtype`. Existing weights stay.
    OSError, tf.errors.OpError: a file cannot be written. If shards of the same names are being replaced, the folder may
      then hold no index, and is refused by `TensorFiles`.
  """
  before = [name for name in paths.names(folder) if name == INDEX or name.endswith('.safetensors')]
  shards: list[list[str]] = []  # The names of the tensors of each.
  try:
    num_bytes = _write_shards(folder, tensors, dtype, max_shard_bytes, shards)
  except BaseException:
    for number in range(len(shards)):
      with contextlib.suppress(OSError):
        os.remove(os.path.join(folder, _PARTIAL.format(number)))
    raise
  count = len(shards)
  finals = [f'model-{number:05d}-of-{count:05d}.safetensors' for number in range(1, count + 1)]
  finals = [WEIGHTS] if count == 1 else finals
  replaced = {*before} & {*finals} - {WEIGHTS}
  if INDEX in before and replaced:  # With its index, a mixture of old and new shards would be read as a model.
    for name in (WEIGHTS, INDEX):  # In this order: without an index, `WEIGHTS` would be read.
      paths.remove(os.path.join(folder, name))
  for number, final in enumerate(finals):
    partial = os.path.join(folder, _PARTIAL.format(number))
    paths.move(partial, os.path.join(folder, final))
  if len(shards) > 1:
    weight_map = {name: final for names, final in zip(shards, finals) for name in names}
    write_json(os.path.join(folder, INDEX), {'metadata': {'total_size': num_bytes}, 'weight_map': weight_map})
    finals.append(INDEX)
  paths.sync_to_disk(folder)
  for name in sorted({*before} - {*finals}, key=lambda name: name != INDEX):  # The index of other files comes first.
    paths.remove(os.path.join(folder, name))


def _write_shards(folder, tensors, dtype, max_shard_bytes, shards):
  """Writes tensors into partial files, and notes in `shards` which are in each; returns the number of all bytes."""
  numpy_dtype = {'bfloat16': ml_dtypes.bfloat16}.get(dtype, dtype)
  sizes: dict[str, int] = {}
  pending: dict[str, np.ndarray] = {}

  def flush():
    shards.append(list(pending))
    write_file(os.path.join(folder, _PARTIAL.format(len(shards) - 1)), pending)
    pending.clear()

  for name, value_of in tensors.items():
    found = value_of()
    with np.errstate(over='ignore'):  # It is refused below.
      value = found.astype(numpy_dtype)
    check_finite(found, f'{folder}: the tensor {name}', value)
    del found
    if pending and sum(sizes[other] for other in pending) + value.nbytes > max_shard_bytes:
      flush()
    pending[name], sizes[name] = value, value.nbytes
  flush()
  return sum(sizes.values())


def write_json(path: str, value: Mapping[str, object]) -> None:
  """Writes a JSON object, whole or not at all."""
  paths.write_atomically(path, json_values.encode(value, sort_keys=True))
