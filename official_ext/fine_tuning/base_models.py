"""The model that a run begins with, by what `model_path` names: a Hugging Face folder, or peft's with adapters."""

import os
from typing import NamedTuple

from official_ext import errors
from official_ext.files import paths
from official_ext.modeling import peft_folders
from official_ext.modeling import pretrained
from official_ext.modeling import tensor_files

_TOKENIZER = 'tokenizer.json'


class BaseModel(NamedTuple):
  """What a folder is made of.

  Attributes:
    folder: the Hugging Face folder with the model.
    adapter: the peft folder with adapters for it; '' for none.
    tokenizer: the folder with the tokenizer: that of the adapters, if it has one.
  """

  folder: str
  adapter: str
  tokenizer: str


def find(model_path: str, field: str = 'task.model_path') -> BaseModel:
  """Looks at a folder.

  Args:
    model_path: the folder.
    field: its dotted path, for messages.

  Raises:
    UserError: there is no such folder, or it is of another kind, or its base is not there.
  """
  folder = model_path if paths.is_remote(model_path) else os.path.abspath(os.path.expanduser(model_path))
  names = paths.names(folder)
  if not names:
    raise errors.UserError(f'{field}: {model_path}: no such folder, or nothing in it; nothing is downloaded')
  if peft_folders.CONFIG_FILE not in names:
    if pretrained.CONFIG_FILE not in names:
      of_run = [name for name in ('adapter', 'model') if name in names]  # As task.py names them.
      hint = f'; did you mean {os.path.join(model_path, of_run[0])}?' if of_run else ''
      raise errors.UserError(
        f'{field}: {model_path}: holds neither {pretrained.CONFIG_FILE}, as a folder of Hugging Face does, nor '
        f'{peft_folders.CONFIG_FILE}, as one of peft does{hint}'
      )
    return BaseModel(folder, '', folder)
  base = _base_of(folder, field)
  return BaseModel(base, folder, folder if _TOKENIZER in names else base)


def _base_of(adapter: str, field: str) -> str:
  """The folder that adapters stand on. A path may be relative to the current directory, or to theirs."""
  path = os.path.join(adapter, peft_folders.CONFIG_FILE)
  named = tensor_files.read_json(path).get('base_model_name_or_path')
  if not isinstance(named, str) or not named:
    raise errors.UserError(f'{field}: {path} does not name the model that the adapters are for')
  candidates = [os.path.expanduser(named), os.path.join(adapter, named)]
  for candidate in candidates:
    if pretrained.CONFIG_FILE in paths.names(candidate):
      return candidate if paths.is_remote(candidate) else os.path.abspath(candidate)
  raise errors.UserError(
    f'{field}: {path}: base_model_name_or_path: {named}: no such folder; write that of the model there (nothing is '
    'downloaded)'
  )
