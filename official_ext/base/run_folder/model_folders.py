"""The kind of a folder of a language model: Hugging Face's, or peft's with adapters over such a one. No TensorFlow.

A path that a folder of adapters names for its base may be relative to the current directory, or to that folder.
"""

import json
import os
from typing import NamedTuple

from official_ext.base import errors
from official_ext.base.files import paths

CONFIG_FILE = 'config.json'
ADAPTER_CONFIG_FILE = 'adapter_config.json'
TOKENIZER_FILE = 'tokenizer.json'
RUN_FILE = 'params.yaml'  # Of a run's folder.
RESULTS = ('adapter', 'model')  # Folders that a run of fine-tuning leaves.


class ModelFolders(NamedTuple):
  """The folders that make a model.

  Attributes:
    model: the Hugging Face folder with the weights.
    adapter: the peft folder with adapters for them; '' for none.
    tokenizer: the folder with the tokenizer: that of the adapters, if it has one.
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
    adapter: a folder with adapters for `folder`, in place of those that it may be.

  Raises:
    UserError: with the path: there is no such folder, it is of another kind, or the base of the adapters is missing.
  """
  folder = os.path.expanduser(folder)
  names = paths.names(folder)
  if not names:
    raise errors.UserError(f'{folder}: no such folder, or nothing in it (nothing is downloaded)')
  if adapter is None and ADAPTER_CONFIG_FILE in names:
    folder, adapter = _base_of(folder, base_model), folder
  elif base_model is not None:
    raise errors.UserError(f'--base_model: {folder} is not a folder with adapters (it has no {ADAPTER_CONFIG_FILE})')
  if CONFIG_FILE not in paths.names(folder):
    raise errors.UserError(f'{folder}: {what_it_is(folder)}')
  if adapter is None:
    return ModelFolders(folder, '', folder)
  adapter = os.path.expanduser(adapter)
  names = paths.names(adapter)
  if ADAPTER_CONFIG_FILE not in names:
    raise errors.UserError(f'{adapter}: holds no {ADAPTER_CONFIG_FILE}; a folder of peft has one')
  return ModelFolders(folder, adapter, adapter if TOKENIZER_FILE in names else folder)


def what_it_is(folder: str) -> str:
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
    if not paths.names(os.path.expanduser(base_model)):
      raise errors.UserError(f'--base_model={base_model}: no such folder')
    return os.path.expanduser(base_model)
  path = os.path.join(adapter, ADAPTER_CONFIG_FILE)
  try:
    fields = json.loads(paths.read(path))
  except (ValueError, OSError) as error:
    raise errors.UserError(f'{path}: cannot be read as JSON: {error}') from error
  named = fields.get('base_model_name_or_path') if isinstance(fields, dict) else None
  if not isinstance(named, str) or not named:
    raise errors.UserError(f'{path}: base_model_name_or_path: does not name the model that the adapters are for')
  for candidate in (os.path.expanduser(named), os.path.join(adapter, named)):
    if paths.names(candidate):
      return candidate
  raise errors.UserError(
    f'{path}: base_model_name_or_path: {named}: no such folder; write that of the model there (nothing is downloaded)'
  )
