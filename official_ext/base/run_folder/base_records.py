"""The record of the base that adapters were trained on: base_model.json beside them. No TensorFlow.

peft knows the base by its path alone, and by no sign how its weights were kept: an adapter that was trained over 4 bits
has other logits over the weights that those were packed from.
"""

from collections.abc import Callable, Mapping
import dataclasses
import json
import os
from typing import Any

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths

FILE = 'base_model.json'
_MAX_BYTES = 2**20
_DIGITS = 12  # Of a digest, in a line.
_METHODS = ('none', 'nf4', 'int8')
_DTYPES = ('float32', 'bfloat16', 'float16')
_IS_VALID_FIELD: Mapping[str, Callable[[Any], bool]] = {  # Of `QuantizationConfig`.
  'method': lambda value: value in _METHODS,
  'block_size': lambda value: type(value) is int and value >= 2,
  'double_quantization': lambda value: isinstance(value, bool),
  'skip_modules': lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
}


@dataclasses.dataclass(frozen=True)
class BaseRecord:
  """A base, and how it was kept while adapters on it were trained and evaluated.

  Attributes:
    folder: of the base; None if its weights are in no folder.
    weights_sha256: the digest of the weights in it: see adapter_bases.py. None if they are in no folder, or the folder
      has changed since.
    quantization: the fields of `QuantizationConfig` by which the kernels were packed; {'method': 'none'} if not.
    frozen_dtype: in which weights were kept that were not packed.
    compute_dtype: in which products were computed.
    config: the fields that define the decoder's function: see `families.family.comparable`.
  """

  folder: str | None
  weights_sha256: str | None
  quantization: json_types.JsonMapping
  frozen_dtype: str
  compute_dtype: str
  config: json_types.JsonMapping

  @property
  def method(self) -> str:
    """The method by which kernels were packed: none, nf4 or int8."""
    return self.quantization['method']

  @property
  def kept(self) -> str:
    """How the weights were kept, in a few words."""
    if self.method == 'none':
      return f'{self.frozen_dtype} weights'
    others = [f'other weights {self.frozen_dtype}']
    if self.method == 'nf4':
      others.insert(0, f'blocks of {self.quantization.get("block_size")}')
    return f'{self.method} weights ({", ".join(others)})'

  def describe(self) -> str:
    """The base in one line: `nf4 weights (blocks of 64, other weights float32) of FOLDER, SHA-256 0123456789ab`."""
    digest = f', SHA-256 {short(self.weights_sha256)}' if self.weights_sha256 else ''
    return f'{self.kept} of {self.folder or "no folder"}{digest}'

  def is_kept_as(self, other: 'BaseRecord') -> bool:
    """Whether the same weights would be kept with the same values."""
    return self.quantization == other.quantization and self.frozen_dtype == other.frozen_dtype


def short(digest: str | None) -> str:
  """The first digits of a digest."""
  return (digest or 'unknown')[:_DIGITS]


def write(record: BaseRecord, folder: str) -> None:
  """Writes the record of a folder's adapters, whole or not at all.

  Raises:
    OSError: it cannot be written.
  """
  content = json.dumps(dataclasses.asdict(record), indent=2, sort_keys=True) + '\n'
  paths.write_atomically(os.path.join(folder, FILE), content.encode())


def read(folder: str) -> BaseRecord | None:
  """The record of a folder's adapters; None if there is none, as peft writes none.

  Raises:
    UserError: it cannot be read, or is not one.
  """
  path = os.path.join(folder, FILE)
  if not paths.exists(path):
    return None
  try:
    found = json.loads(paths.read(path, _MAX_BYTES))
    record = BaseRecord(**{field.name: found[field.name] for field in dataclasses.fields(BaseRecord)})
    is_valid = _is_valid(record)
  except (ValueError, OSError, KeyError, TypeError) as error:
    raise errors.UserError(f'{path}: not a record of a base: {" ".join(str(error).split())}; {_HINT}') from error
  if not is_valid:
    raise errors.UserError(f'{path}: not a record of a base; {_HINT}')
  return record


_HINT = 'save the adapters again, or remove this file: they are then loaded without comparing their base'


def _is_valid(record):
  is_text = all(value is None or isinstance(value, str) for value in (record.folder, record.weights_sha256))
  are_mappings = all(isinstance(value, Mapping) for value in (record.quantization, record.config))
  if not is_text or not are_mappings or 'method' not in record.quantization:
    return False
  if not all(name in _IS_VALID_FIELD and _IS_VALID_FIELD[name](value) for name, value in record.quantization.items()):
    return False
  return record.frozen_dtype in _DTYPES and isinstance(record.compute_dtype, str)
