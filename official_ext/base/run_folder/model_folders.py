"""The folders of a language model: their kind, the notes of an export, and the record of the base of adapters.

A folder is Hugging Face's, or peft's with adapters over such a one. The path by which adapters name their base may be
relative to the current directory or to their folder. export.json has the notes of an export.

base_model.json, in a folder of adapters, records the base that they were trained on. peft knows the base by its path
alone, and does not record how its weights were kept: an adapter trained over 4-bit weights has other logits over the
weights that they were packed from.
"""

from collections.abc import Callable, Mapping
import dataclasses
import os
from typing import Any, NamedTuple

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths

EXPORT_FILE = 'export.json'


def read_export(folder: str) -> json_values.JsonObject:
  """The notes in the folder of an export; {} without notes."""
  return json_values.read_file(os.path.join(folder, EXPORT_FILE)) or {}


BASE_FILE = 'base_model.json'
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
    weights_sha256: the digest of the weights in it: see peft_folders.py. None if they are in no folder, or the folder
      has changed since.
    quantization: the fields of `QuantizationConfig` by which the kernels were packed; {'method': 'none'} if not.
    frozen_dtype: in which weights were kept that were not packed.
    compute_dtype: in which products were computed.
    config: the fields that define the decoder's function: see `families.family.comparable`.
  """

  folder: str | None
  weights_sha256: str | None
  quantization: json_values.JsonMapping
  frozen_dtype: str
  compute_dtype: str
  config: json_values.JsonMapping

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
    digest = f', SHA-256 {short_digest(self.weights_sha256)}' if self.weights_sha256 else ''
    return f'{self.kept} of {self.folder or "no folder"}{digest}'

  def is_kept_as(self, other: 'BaseRecord') -> bool:
    """Whether the same weights would be kept with the same values."""
    return self.quantization == other.quantization and self.frozen_dtype == other.frozen_dtype


def short_digest(digest: str | None) -> str:
  """The first digits of a digest."""
  return (digest or 'unknown')[:_DIGITS]


def write_base(record: BaseRecord, folder: str) -> None:
  """Writes the record of a folder's adapters, whole or not at all.

  Raises:
    OSError: it cannot be written.
  """
  paths.write_atomically(
    os.path.join(folder, BASE_FILE), json_values.encode(dataclasses.asdict(record), sort_keys=True)
  )


def read_base(folder: str) -> BaseRecord | None:
  """The record of a folder's adapters; None without one: peft writes none.

  Raises:
    UserError: it cannot be read, or is not one.
  """
  path = os.path.join(folder, BASE_FILE)
  if not paths.exists(path):
    return None
  try:
    found = json_values.load_file(path)
    record = BaseRecord(**{field.name: found[field.name] for field in dataclasses.fields(BaseRecord)})
    is_valid = _is_valid_base(record)
  except (ValueError, OSError, KeyError, TypeError) as error:
    raise errors.UserError(f'{path}: not a record of a base: {" ".join(str(error).split())}; {_HINT}') from error
  if not is_valid:
    raise errors.UserError(f'{path}: not a record of a base; {_HINT}')
  return record


_HINT = 'save the adapters again, or remove this file: they are then loaded without comparing their base'


def _is_valid_base(record):
  is_text = all(value is None or isinstance(value, str) for value in (record.folder, record.weights_sha256))
  are_mappings = all(isinstance(value, Mapping) for value in (record.quantization, record.config))
  if not is_text or not are_mappings or 'method' not in record.quantization:
    return False
  if not all(name in _IS_VALID_FIELD and _IS_VALID_FIELD[name](value) for name, value in record.quantization.items()):
    return False
  return record.frozen_dtype in _DTYPES and isinstance(record.compute_dtype, str)


CONFIG_FILE = 'config.json'
ADAPTER_CONFIG_FILE = 'adapter_config.json'
TOKENIZER_FILE = 'tokenizer.json'
TEMPLATE_FILE = 'chat_template.jinja'
RUN_FILE = 'params.yaml'  # Of a run's folder.
RESULTS = ('adapter', 'model')  # Folders that a run of fine-tuning leaves.


class ModelFolders(NamedTuple):
  """The folders that make a model.

  Attributes:
    model: the Hugging Face folder with the weights.
    adapter: the peft folder with adapters for them; '' for none.
    tokenizer: the folder with the tokenizer: the adapters' folder, if it has one.
  """

  model: str
  adapter: str
  tokenizer: str

  def absolute(self) -> 'ModelFolders':
    """Independent of the current directory."""
    return ModelFolders(*(path if paths.is_remote(path) or not path else os.path.abspath(path) for path in self))


def find(folder: str, base_model: str | None = None, adapter: str | None = None) -> ModelFolders:
  """Looks at a folder. One with adapters is one of adapters, as in transformers, even with other files.

  Args:
    folder: its path.
    base_model: the base of adapters; None for the one that they name.
    adapter: a folder with adapters for `folder`, in place of adapters in `folder` itself.

  Raises:
    UserError: with the path: there is no such folder, it is of another kind, or the base of the adapters is missing.
  """
  folder = paths.expanded(folder)
  names = paths.names(folder)
  if not names:
    raise errors.UserError(f'{folder}: no such folder, or nothing in it (nothing is downloaded)')
  if adapter is None and ADAPTER_CONFIG_FILE in names:
    folder, adapter = _base_of(folder, base_model), folder
  elif base_model is not None:
    raise errors.UserError(f'--base_model: {folder} is not a folder with adapters (it has no {ADAPTER_CONFIG_FILE})')
  if CONFIG_FILE not in paths.names(folder):
    raise errors.UserError(f'{folder}: {kind_of(folder)}')
  if adapter is None:
    return ModelFolders(folder, '', folder)
  adapter = paths.expanded(adapter)
  names = paths.names(adapter)
  if ADAPTER_CONFIG_FILE not in names:
    raise errors.UserError(f'{adapter}: holds no {ADAPTER_CONFIG_FILE}; a folder of peft has one')
  if TEMPLATE_FILE in names and TOKENIZER_FILE not in names:
    raise errors.UserError(
      f'{os.path.join(adapter, TEMPLATE_FILE)}: is the chat template of the adapters, and requires '
      f"{TOKENIZER_FILE} in the same folder; copy the tokenizer's files of {folder} there"
    )
  return ModelFolders(folder, adapter, adapter if TOKENIZER_FILE in names else folder)


def kind_of(folder: str) -> str:
  """The kind of a folder without a whole model, and the fix."""
  names = paths.names(folder)
  if ADAPTER_CONFIG_FILE in names:
    return f'holds adapters, not a whole model: merge it first: official-ext convert {folder} TARGET'
  if RUN_FILE not in names:
    return (
      f'holds no {CONFIG_FILE}, as a folder of Hugging Face does, and no {ADAPTER_CONFIG_FILE}, as one of peft does'
    )
  results = [os.path.join(folder, name) for name in RESULTS if name in names]
  if results:
    return f'is the folder of a run; its result is {" or ".join(results)}'
  return f'is the folder of a run; make one of Hugging Face of it: official-ext convert {folder} TARGET'


def _base_of(adapter: str, base_model: str | None) -> str:
  """The folder of the adapters' base."""
  if base_model is not None:
    if not paths.names(paths.expanded(base_model)):
      raise errors.UserError(f'--base_model={base_model}: no such folder')
    return paths.expanded(base_model)
  path = os.path.join(adapter, ADAPTER_CONFIG_FILE)
  named = json_values.read_required_file(path).get('base_model_name_or_path')
  if not isinstance(named, str) or not named:
    raise errors.UserError(f'{path}: base_model_name_or_path: does not name the model that the adapters are for')
  for candidate in (paths.expanded(named), paths.joined(adapter, named)):
    if paths.names(candidate):
      return candidate
  raise errors.UserError(
    f'{path}: base_model_name_or_path: {named}: no such folder; write that of the model there (nothing is downloaded)'
  )
