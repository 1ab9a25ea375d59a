"""Loads the language model and the tokenizer of a folder. TensorFlow is imported when weights are loaded."""

from collections.abc import Mapping
import sys
from typing import TYPE_CHECKING

from official_ext.base import errors
from official_ext.base.run_folder import base_records
from official_ext.base.run_folder import model_folders

if TYPE_CHECKING:
  from official_ext.language.modeling import adapter_sets
  from official_ext.language.modeling import decoder
  from official_ext.language.text import tokenizer as tokenizer_lib


def load(
  folders: model_folders.ModelFolders, dtype: str | None = None, load_in_4bit: bool | None = None
) -> 'decoder.LanguageModel':
  """The model of a folder, or of adapters and their base, which is kept as it was when the adapters were trained.

  The base of adapters is printed to stderr, and each difference from the base that they were trained on.

  Args:
    folders: of the model.
    dtype: in which weights are kept that are not packed, and computed with; None for float32.
    load_in_4bit: whether kernels are kept in 4 bits; None: if the adapters were trained so.

  Returns:
    A `LanguageModel`. Adapters are merged into it, unless its kernels are packed.

  Raises:
    UserError: see `pretrained.load` and `peft_folders.load`.
  """
  return load_with_base(folders, dtype, load_in_4bit)[0]


def load_with_base(
  folders: model_folders.ModelFolders, dtype: str | None = None, load_in_4bit: bool | None = None
) -> tuple['decoder.LanguageModel', str]:
  """(model, base): the model of `load`, and a line that describes how its base is kept and in which folder it is."""
  from official_ext.language.modeling import adapter_bases  # pylint: disable=g-import-not-at-top  # TensorFlow.
  from official_ext.language.modeling import lora  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import peft_folders  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import pretrained  # pylint: disable=g-import-not-at-top

  record = base_records.read(folders.adapter) if folders.adapter else None
  how = adapter_bases.options(record, load_in_4bit)
  model = pretrained.load(folders.model, dtype=dtype or 'float32', **how)
  if folders.adapter:
    peft_folders.load(model, folders.adapter, warn=lambda line: print(f'warning: {line}', file=sys.stderr))
  base = adapter_bases.record_of(model, has_digest=False).describe()  # A merged model has no base.
  if record is not None:
    print(f'base: {base}', file=sys.stderr)
  if folders.adapter and how['quantization'].method == 'none':
    lora.merge(model)
  return model, base


def load_with_adapters(
  folders: model_folders.ModelFolders,
  adapters: Mapping[str, str],
  dtype: str | None = None,
  load_in_4bit: bool | None = None,
) -> tuple['decoder.LanguageModel', 'adapter_sets.AdapterSet | None']:
  """(the model of a folder, adapters on it to switch between): the base is kept as below the first of them.

  Args:
    folders: of the base.
    adapters: name -> folder; if there are none, the model alone is loaded.
    dtype: see `load`.
    load_in_4bit: see `load`.

  Raises:
    UserError: see `adapter_sets.AdapterSet`; or `folders` has adapters by itself.
  """
  if not adapters:
    return load(folders, dtype, load_in_4bit), None
  if folders.adapter:
    raise errors.UserError(f'--adapter: {folders.adapter} holds adapters; name their base {folders.model} as FOLDER')
  from official_ext.language.modeling import adapter_bases  # pylint: disable=g-import-not-at-top  # TensorFlow.
  from official_ext.language.modeling import adapter_sets  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import pretrained  # pylint: disable=g-import-not-at-top

  how = adapter_bases.options(base_records.read(next(iter(adapters.values()))), load_in_4bit)
  model = pretrained.load(folders.model, dtype=dtype or 'float32', **how)
  warn = lambda line: print(f'warning: {line}', file=sys.stderr)
  return model, adapter_sets.AdapterSet(model, adapters, warn)


def check_unicode(text: str, name: str) -> None:
  """Refuses input from a terminal or a pipe that is not UTF-8: Python keeps such a byte as half of a surrogate pair.

  Raises:
    UserError: with the name of the text.
  """
  from official_ext.language.text import text_formats  # pylint: disable=g-import-not-at-top

  try:
    text_formats.check_unicode(text)
  except ValueError as error:
    raise errors.UserError(f'{name}: is not valid UTF-8: {error}') from error


def load_tokenizer(
  folders: model_folders.ModelFolders, chat_template_path: str | None = None
) -> 'tokenizer_lib.Tokenizer':
  """The tokenizer, with another chat template if one is named.

  Returns:
    A `Tokenizer`.

  Raises:
    UserError: there is none, or no such file.
  """
  from official_ext.language.text import chat_templates  # pylint: disable=g-import-not-at-top
  from official_ext.language.text import tokenizer as tokenizer_lib  # pylint: disable=g-import-not-at-top

  tokenizer = tokenizer_lib.Tokenizer.load(folders.tokenizer)
  if chat_template_path is None:
    return tokenizer
  return tokenizer.with_chat_template(chat_templates.read(chat_template_path, '--chat_template_path'))
