"""The folder of a language model that a command names: Hugging Face's, or peft's with adapters over such a one.

What only looks at files needs no TensorFlow; it is imported when weights are loaded.
"""

import json
import os
from typing import Any, NamedTuple

from official_ext import errors
from official_ext.cli import arguments as arguments_lib

_CONFIG, _ADAPTER_CONFIG, _TOKENIZER, _RUN = 'config.json', 'adapter_config.json', 'tokenizer.json', 'params.yaml'
DTYPES = ('float32', 'bfloat16', 'float16')


class Folders(NamedTuple):
  """What a folder is made of.

  Attributes:
    model: the Hugging Face folder with the model.
    adapter: the peft folder with adapters for it; None for none.
    tokenizer: the folder with the tokenizer: that of the adapters, if it has one.
  """

  model: str
  adapter: str | None
  tokenizer: str


def add_model_arguments(parser: arguments_lib.Parser) -> None:
  """Adds FOLDER, and how it is loaded."""
  parser.add_argument('folder', metavar='FOLDER')
  parser.add_argument('--base_model')
  parser.add_argument('--dtype', choices=DTYPES[:2], default='float32')


def find(folder: str, base_model: str | None = None, adapter: str | None = None) -> Folders:
  """Looks at a folder.

  Args:
    folder: of Hugging Face, or of peft.
    base_model: the folder that adapters stand on; None for what their adapter_config.json says.
    adapter: a folder with adapters for `folder`, in place of those that it may be.

  Raises:
    UserError: there is no such folder, or it is of another kind.
  """
  folder = os.path.expanduser(folder)
  if not os.path.isdir(folder):
    raise errors.UserError(f'{folder}: no such folder')
  if adapter is None and _has(folder, _ADAPTER_CONFIG) and not _has(folder, _CONFIG):
    folder, adapter = _base_of(folder, base_model), folder
  elif base_model is not None:
    raise errors.UserError(f'--base_model: {folder} is no folder with adapters (it has no {_ADAPTER_CONFIG})')
  if not _has(folder, _CONFIG):
    if _has(folder, _RUN):
      raise errors.UserError(
        f'{folder}: is the folder of a run; make one of Hugging Face of it: official-ext convert {folder} TARGET'
      )
    raise errors.UserError(f'{folder}: holds no {_CONFIG}; a folder of a Hugging Face model has one')
  adapter = os.path.expanduser(adapter) if adapter else None
  if adapter is not None and not _has(adapter, _ADAPTER_CONFIG):
    raise errors.UserError(f'{adapter}: holds no {_ADAPTER_CONFIG}; a folder of peft has one')
  with_tokenizer = adapter if adapter is not None and _has(adapter, _TOKENIZER) else folder
  return Folders(folder, adapter, with_tokenizer)


def _has(folder, name):
  return os.path.isfile(os.path.join(folder, name))


def _base_of(adapter: str, base_model: str | None) -> str:
  """The folder that adapters stand on. A path may be relative to the current directory, or to theirs."""
  path = os.path.join(adapter, _ADAPTER_CONFIG)
  if base_model is not None:
    if not os.path.isdir(os.path.expanduser(base_model)):
      raise errors.UserError(f'--base_model={base_model}: no such folder')
    return os.path.expanduser(base_model)
  try:
    with open(path, encoding='utf-8') as f:
      fields = json.load(f)
  except (ValueError, OSError) as error:
    raise errors.UserError(f'{path}: cannot be read as JSON: {error}') from error
  named = fields.get('base_model_name_or_path') if isinstance(fields, dict) else None
  if not isinstance(named, str) or not named:
    raise errors.UserError(f'{path}: does not name the model that the adapters are for; name it: --base_model=FOLDER')
  for candidate in (os.path.expanduser(named), os.path.join(adapter, named)):
    if os.path.isdir(candidate):
      return candidate
  raise errors.UserError(
    f'{path}: base_model_name_or_path: {named}: no such folder; name it: --base_model=FOLDER (nothing is downloaded)'
  )


def load(folders: Folders, dtype: str | None = None) -> Any:
  """The model, with adapters merged into it.

  Args:
    folders: see `find`.
    dtype: in which weights are kept, and computed with; None for float32.

  Returns:
    A `LanguageModel`.

  Raises:
    UserError: see `pretrained.load` and `peft_folders.load`.
  """
  from official_ext.modeling import lora  # pylint: disable=g-import-not-at-top  # TensorFlow, as the others.
  from official_ext.modeling import peft_folders  # pylint: disable=g-import-not-at-top
  from official_ext.modeling import pretrained  # pylint: disable=g-import-not-at-top

  model = pretrained.load(folders.model, dtype=dtype or 'float32')
  if folders.adapter is not None:
    peft_folders.load(model, folders.adapter)
    lora.merge(model)
  return model


def load_tokenizer(folders: Folders, chat_template_path: str | None = None) -> Any:
  """The tokenizer, with another chat template if one is named.

  Returns:
    A `Tokenizer`.

  Raises:
    UserError: there is none, or no such file.
  """
  from official_ext.data import tokenizer as tokenizer_lib  # pylint: disable=g-import-not-at-top

  tokenizer = tokenizer_lib.Tokenizer.load(folders.tokenizer)
  if chat_template_path is None:
    return tokenizer
  try:
    with open(os.path.expanduser(chat_template_path), encoding='utf-8') as f:
      return tokenizer.with_chat_template(f.read())
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(f'--chat_template_path={chat_template_path}: cannot be read: {error}') from error
