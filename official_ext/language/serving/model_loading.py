"""Loads the language model, the tokenizer and the generation settings of a folder.

The settings are the folder's, overridden by the given values. TensorFlow is imported when weights are loaded, so that
errors in flags are reported before.
"""

from collections.abc import Mapping
import dataclasses
import os
import sys
from typing import TYPE_CHECKING

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.run_folder import model_folders

if TYPE_CHECKING:
  from official_ext.language.modeling import adapter_sets
  from official_ext.language.modeling import decoder
  from official_ext.language.modeling import generation
  from official_ext.language.text import tokenizer as tokenizer_lib


SETTING_KINDS = {  # Of `GenerationConfig`'s fields, that have separate flags.
  'max_new_tokens': int,
  'temperature': float,
  'top_k': int,
  'top_p': float,
  'min_p': float,
  'repetition_penalty': float,
}
_FILTERS = ('top_k', 'top_p', 'min_p')  # Of sampling.


def check_settings(values: json_values.JsonMapping, seed: int) -> None:
  """Refuses values of `GenerationConfig`'s fields, and seeds, that mean nothing.

  Raises:
    UserError: a line for each mistake, which begins as a flag does.
  """
  from official_ext.language.modeling import generation  # pylint: disable=g-import-not-at-top  # TensorFlow.

  try:
    generation.check_config(generation.GenerationConfig(**values))
  except errors.UserError as error:
    raise errors.UserErrors([f'--{line}' for line in errors.lines_of(error)]) from error
  if not -(2**63) <= seed < 2**63:
    raise errors.UserError(f'--seed: {seed} has more than 64 bits')


def generation_config(
  model: 'decoder.LanguageModel',
  tokenizer: 'tokenizer_lib.Tokenizer',
  found: json_values.JsonMapping,
  defaults: json_values.JsonMapping | None = None,
) -> 'generation.GenerationConfig':
  """How the model continues texts: the settings of its folder, overridden by the flags.

  Args:
    model: a `LanguageModel`.
    tokenizer: its `Tokenizer`, whose stop tokens end a text as well.
    found: the fields of `GenerationConfig` that were given.
    defaults: fields for what neither they nor the folder set.

  Returns:
    A `GenerationConfig`.

  Raises:
    UserError: something was given that would change nothing; or see `generation.config_of`.
  """
  from official_ext.language.modeling import generation  # pylint: disable=g-import-not-at-top

  config = generation.config_of(model, defaults=defaults, **found)
  idle = [name for name in _FILTERS if name in found]
  if idle and not config.temperature:
    raise errors.UserError(f'--{idle[0]}: changes nothing at temperature 0, the likeliest token; add --temperature=1')
  stops = dict.fromkeys((*config.stop_token_ids, *tokenizer.stop_token_ids))
  return dataclasses.replace(config, stop_token_ids=tuple(stops))


def limited_to_context(
  model: 'decoder.LanguageModel', config: 'generation.GenerationConfig', length: int, is_given: bool
) -> 'generation.GenerationConfig':
  """The configuration, with no more new tokens than the model has positions for.

  Args:
    model: a `LanguageModel`.
    config: a `GenerationConfig`.
    length: of the prompt, in tokens.
    is_given: whether the user set `config.max_new_tokens`.

  Raises:
    UserError: there is no room for one, or for the requested number.
  """
  positions = model.config.max_position_embeddings
  room = positions - length
  if room < 1:
    raise errors.UserError(
      f'--prompt: {length} tokens leave no room for more: the model has {positions} positions (max_position_embeddings)'
    )
  if config.max_new_tokens <= room:
    return config
  if is_given:
    raise errors.UserError(
      f'--max_new_tokens: {config.max_new_tokens} behind a prompt of {length} tokens make '
      f'{length + config.max_new_tokens}, and the model has {positions} positions (max_position_embeddings); '
      f'{room} fit'
    )
  return dataclasses.replace(config, max_new_tokens=room)


def check_tokens(tokens: list[int], model: 'decoder.LanguageModel', folders: model_folders.ModelFolders) -> None:
  """Raises a UserError if one of the tokens is none of the model's."""
  wrong = [token for token in tokens if token >= model.config.vocab_size]
  if wrong:
    file = os.path.join(folders.tokenizer, model_folders.TOKENIZER_FILE)
    raise errors.UserError(
      f'{file}: makes token {wrong[0]} of the text, and the model has {model.config.vocab_size} (vocab_size): '
      "it is another model's"
    )


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
  from official_ext.language.modeling import lora  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import peft_folders  # pylint: disable=g-import-not-at-top  # TensorFlow.
  from official_ext.language.modeling import pretrained  # pylint: disable=g-import-not-at-top

  record = model_folders.read_base(folders.adapter) if folders.adapter else None
  how = peft_folders.base_options(record, load_in_4bit)
  vocab_size = peft_folders.vocab_size(folders.adapter) if folders.adapter else None
  model = pretrained.load(folders.model, dtype=dtype or 'float32', vocab_size=vocab_size, **how)
  if folders.adapter:
    peft_folders.load(model, folders.adapter, warn=lambda line: print(f'warning: {line}', file=sys.stderr))
  base = peft_folders.base_record_of(model, has_digest=False).describe()  # A merged model has no base.
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
    adapters: name -> folder; if empty, the model alone is loaded.
    dtype: see `load`.
    load_in_4bit: see `load`.

  Raises:
    UserError: see `adapter_sets.AdapterSet`; or `folders` has adapters by itself.
  """
  if not adapters:
    return load(folders, dtype, load_in_4bit), None
  if folders.adapter:
    raise errors.UserError(f'--adapter: {folders.adapter} holds adapters; name their base {folders.model} as FOLDER')
  from official_ext.language.modeling import adapter_sets  # pylint: disable=g-import-not-at-top
  from official_ext.language.modeling import peft_folders  # pylint: disable=g-import-not-at-top  # TensorFlow.
  from official_ext.language.modeling import pretrained  # pylint: disable=g-import-not-at-top

  how = peft_folders.base_options(model_folders.read_base(next(iter(adapters.values()))), load_in_4bit)
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
    UserError: the folder has no tokenizer, or there is no such file.
  """
  from official_ext.language.text import chat_templates  # pylint: disable=g-import-not-at-top
  from official_ext.language.text import tokenizer as tokenizer_lib  # pylint: disable=g-import-not-at-top

  tokenizer = tokenizer_lib.Tokenizer.load(folders.tokenizer)
  if chat_template_path is None:
    return tokenizer
  return tokenizer.with_chat_template(chat_templates.read(chat_template_path, '--chat_template_path'))
