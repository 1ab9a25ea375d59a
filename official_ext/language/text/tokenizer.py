"""Tokenizers in Hugging Face's files: text to numbers and back, as transformers does it, without transformers.

The library `tokenizers` needs only `tokenizer.json`; the other files list the special tokens and the layout of
messages. Files are read and written; nothing is looked for on the network. The tokens of a folder depend on the class
of transformers that reads it: see tokenizer_classes.py.
"""

from collections.abc import Mapping, Sequence
import functools
import hashlib
import json
import os
from typing import Any

from absl import logging
import numpy as np

from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.base.files import paths
from official_ext.language.text import chat_templates
from official_ext.language.text import tokenizer_classes

_JSON = 'tokenizer.json'
_CONFIG = 'tokenizer_config.json'
_ADDED = 'added_tokens.json'
_SPECIAL = 'special_tokens_map.json'
_TEMPLATE = 'chat_template.jinja'
_MORE_TEMPLATES = 'additional_chat_templates'
_OF_PROCESSOR = 'chat_template.json'
_GENERATION = 'generation_config.json'
_MODEL = 'config.json'
# The other files of a tokenizer, for readers of a saved folder.
_COPIED = (
  _ADDED,
  _OF_PROCESSOR,
  'merges.txt',
  'spiece.model',
  'tekken.json',
  'tokenizer.model',
  'vocab.json',
  'vocab.txt',
)
_FILES = (_JSON, _CONFIG, _SPECIAL, _TEMPLATE, *_COPIED)
_SLOW = ('tokenizer.model', 'spiece.model', 'sentencepiece.bpe.model', 'vocab.json', 'vocab.txt', 'tekken.json')
# The changes of texts that were joined from words, of transformers' clean_up_tokenization.
_CLEANED = (
  *((f' {mark}', mark) for mark in '.?!,'),
  (" ' ", "'"),
  *((f' {end}', end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)
_FLAGS = ('lstrip', 'normalized', 'rstrip', 'single_word')
_CLEANS, _CLEANS_BPE = (
  'clean_up_tokenization_spaces',
  'clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output',
)

CONFIG_FIELDS = file_fields.FileFields(
  _CONFIG,
  used=frozenset(
    """add_prefix_space added_tokens_decoder additional_special_tokens chat_template extra_special_tokens legacy
    model_specific_special_tokens split_special_tokens tokenizer_class""".split()
  )
  | {*tokenizer_classes.NAMED, _CLEANS, _CLEANS_BPE},
  harmless=file_fields.because(
    {
      'the post-processor of tokenizer.json adds them, in transformers too': 'add_bos_token add_eos_token',
      'rows are cut and filled by the data configuration': """max_len max_length model_max_length pad_to_multiple_of
        pad_token_type_id padding padding_side stride truncation truncation_side truncation_strategy""",
      'tokenizer.json has it': """do_lower_case do_lowercase_and_remove_accent errors from_slow keep_accents
        remove_space sp_model_kwargs spaces_between_special_tokens strip_accents tokenize_chinese_chars tokenizer_file
        tokenizer_type unk_id use_default_system_prompt vocab_file vocab_size merges_file""",
      'what a call returns': 'model_input_names return_token_type_ids response_schema response_template verbose',
      'of processors of images and sounds': 'feature_extractor_type image_processor_type processor_class',
      'a note': """_commit_hash backend files_loaded is_local local_files_only name_or_path special_tokens_map_file
        transformers_version unsloth_fixed unsloth_version use_fast""",
    }
  ),
  neutral={'auto_map': ({}, []), 'fast_tokenizer_files': ([],), 'fix_mistral_regex': (False,), 'init_inputs': ([],)},
  effect='may change tokens',
  remedy='; remove it, or save the tokenizer by transformers once',
)
SPECIAL_FIELDS = file_fields.FileFields(
  _SPECIAL, used=frozenset({*tokenizer_classes.NAMED, 'additional_special_tokens', 'extra_special_tokens'}), harmless={}
)
JSON_FIELDS = file_fields.FileFields(
  _JSON,
  used=frozenset('added_tokens decoder model normalizer post_processor pre_tokenizer'.split()),
  harmless=file_fields.because(
    {'a note': 'version', 'rows are cut and filled by the data configuration': 'padding truncation'}
  ),
)
TOKEN_FIELDS = file_fields.FileFields(
  'added_tokens_decoder',
  used=frozenset({'content', 'special', *_FLAGS}),
  harmless={},
  effect='may change tokens',
)


class Tokenizer:
  """Text to numbers of tokens, and back. Safe to use from several threads.

  Attributes:
    special_tokens: the named ones that there are: `{'bos_token': '<s>', ...}`.
    stop_token_ids: the numbers of the tokens that end a text: the end of a sequence, and tokens that the
      folder's generation_config.json adds, such as the end of a turn.
    declared_stops: the part of `stop_token_ids` that is in generation_config.json.

  Example:

    >>> tokenizer = ext.train_tokenizer(['one two', 'two three'] * 50, vocab_size=300)
    >>> tokenizer.decode(tokenizer.encode('two one'))
    'two one'
  """

  def __init__(self, files: Mapping[str, bytes], where: str, model_type: str = '', tokenizer_class: str = ''):
    """Makes a tokenizer of the files of a folder.

    Args:
      files: from the name to the content. tokenizer.json is needed.
      where: the folder, for messages.
      model_type: of the folder's model, which affects the class that transformers makes; '' for none.
      tokenizer_class: the one of the model's config.json, for files that name none.

    Raises:
      UserError: a file is damaged, `tokenizers` is not installed, or transformers makes other tokens of the files than
        can be made here.
    """
    library = package_imports.import_optional('tokenizers', where)
    self._files = dict(files)
    self._where = where
    self._model_type = model_type
    self._config = _read_json(files, _CONFIG, where)
    if tokenizer_class and not self._config.get('tokenizer_class'):
      self._set_config({'tokenizer_class': tokenizer_class})
    content = functools.cache(lambda: _read_json(files, _JSON, where))
    self._class = self._resolve(content)
    self._backend = self._make_backend(library, lambda: files[_JSON].decode())
    special_map, added = (_read_json(files, name, where) for name in (_SPECIAL, _ADDED))
    self._check_fields(special_map, added)
    of_json = {number: _fields(token) for number, token in self._backend.get_added_tokens_decoder().items()}
    declared = tokenizer_classes.declared_tokens(of_json, self._config, special_map, added)
    named = {**tokenizer_classes.FOLLOWED.get(self._class, {}), **declared.named}
    named = {
      name: named[name] for name in (*tokenizer_classes.NAMED, *named) if tokenizer_classes.text_of(named.get(name))
    }
    self.special_tokens = {name: tokenizer_classes.text_of(token) for name, token in named.items()}
    self._cleans_up = self._has_cleaning()
    is_rebuilt = bool(self._class) and self._rebuild(library, content())
    before = {} if is_rebuilt else {fields['content']: fields for fields in of_json.values()}
    tokens = self._add_tokens(library, declared.added, [*named.values(), *declared.extra], before)
    self._digested: list[str] = []
    if is_rebuilt:
      self._keep_rebuilt()
    else:
      recent = {*added, *_own_tokens(special_map).values(), *_own_tokens(self._config).values()} - before.keys()
      self._digested += [token['content'] for token in tokens if token['content'] in recent or _differs(token, before)]
      missing = {name: token for name, token in self.special_tokens.items() if name not in declared.named}
      if missing:  # The class has them: files without a model's name none.
        self._set_config(missing)
    self._backend.encode_special_tokens = bool(self._config.get('split_special_tokens'))
    more = _read_json(files, _GENERATION, where).get('eos_token_id')
    declared_stops = [stop for stop in (more if isinstance(more, list) else [more]) if stop is not None]
    wrong = [stop for stop in declared_stops if type(stop) is not int]
    if wrong:
      raise errors.UserError(
        f"{os.path.join(where, _GENERATION)}: eos_token_id: {wrong[0]!r}: expected a token's number, or a list of such"
      )
    self.declared_stops: tuple[int, ...] = tuple(dict.fromkeys(declared_stops))
    end = [] if self.eos_token_id is None else [self.eos_token_id]
    self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys((*end, *declared_stops)))

  def _resolve(self, content):
    """The class that transformers makes; '' if it takes tokenizer.json unchanged."""
    named = self._config.get('tokenizer_class')
    named = named if isinstance(named, str) else ''
    if not named and self._model_type not in tokenizer_classes.REGISTERED:
      return ''
    found = tokenizer_classes.resolve(self._model_type, named, content)
    if found in tokenizer_classes.REFUSED:
      raise errors.UserError(
        f'{os.path.join(self._where, _CONFIG)}: tokenizer_class: transformers makes {found} of this folder, which '
        f'splits texts in its own way; set tokenizer_class to {tokenizer_classes.UNCHANGED_CLASS} to use {_JSON} '
        'unchanged'
      )
    return found

  def _make_backend(self, library, text):
    try:
      backend = library.Tokenizer.from_str(text())
    except Exception as error:
      try:
        JSON_FIELDS.check(_read_json(self._files, _JSON, self._where), os.path.join(self._where, _JSON))
      except errors.UserErrors as unknown:  # The library names none of them.
        raise unknown from error
      except errors.UserError:
        pass
      raise errors.UserError(
        f'{os.path.join(self._where, _JSON)}: is damaged, or of a newer version of tokenizers: {_one_line(error)}'
      ) from error
    backend.no_truncation()
    backend.no_padding()
    return backend

  def _rebuild(self, library, content):
    """Makes the tokenizer of transformers' class, if tokenizer.json is another one. Returns whether it is."""
    try:
      made = tokenizer_classes.rebuilt(self._class, content, self._config, self.special_tokens)
    except ValueError as error:
      other = 'another model_type' if self._model_type in tokenizer_classes.FORCED else (
        f'tokenizer_class {tokenizer_classes.UNCHANGED_CLASS} in {_CONFIG}'
      )  # fmt: skip
      raise errors.UserError(
        f'{os.path.join(self._where, _JSON)}: transformers makes {self._class} of it, and cannot: {error}; use {other}'
      ) from error
    if made is None:
      return False
    self._backend = self._make_backend(library, lambda: json.dumps(made))
    return True

  def _keep_rebuilt(self):
    """Puts the rebuilt parts into the files, so that every program reads the same from them."""
    self._files[_JSON] = self._backend.to_str(pretty=True).encode()
    declared = {str(number): _fields(token) for number, token in self._backend.get_added_tokens_decoder().items()}
    unchanged = {'added_tokens_decoder': declared, 'tokenizer_class': tokenizer_classes.UNCHANGED_CLASS}
    self._set_config({**self.special_tokens, **unchanged})

  def _set_config(self, fields):
    """Sets fields of tokenizer_config.json."""
    self._config = {**self._config, **fields}
    self._files[_CONFIG] = _as_json(self._config)

  def beside(self, model_type: str) -> 'Tokenizer':
    """The tokenizer that transformers' AutoTokenizer makes of these files in the folder of a model.

    For a model of type qwen2 it always makes a Qwen2Tokenizer, with the vocabulary of the files.

    Args:
      model_type: of the model's config.json.

    Raises:
      UserError: transformers makes other tokens of the files than can be made here.
    """
    return self if model_type == self._model_type else Tokenizer(self._files, self._where, model_type)

  @classmethod
  def load(cls, folder: str) -> 'Tokenizer':
    """Reads a folder: tokenizer.json, and if they exist tokenizer_config.json, special_tokens_map.json,
    chat_template.jinja, additional_chat_templates and generation_config.json. config.json names the model.

    Raises:
      UserError: there is no such folder, or no tokenizer in it that can be read.
    """
    there = paths.names(folder)
    if not there and not os.path.isdir(folder):
      raise errors.UserError(f'{folder}: there is no such folder to read a tokenizer from')
    if _JSON not in there:
      raise _no_tokenizer(folder, there)
    files = {}
    for name in (*file_names(folder), _GENERATION):
      try:
        files[name] = paths.read(os.path.join(folder, name))
      except FileNotFoundError:
        pass
      except OSError as error:
        raise errors.UserError(
          f'{os.path.join(folder, name)}: cannot be read: {error.strerror or _one_line(error)}'
        ) from error
    return cls(files, folder, *_of_model(folder))

  @classmethod
  def from_backend(
    cls, backend: Any, special_tokens: Mapping[str, str], chat_template: str = '', model_max_length: int = 0
  ) -> 'Tokenizer':
    """A tokenizer around one of the library `tokenizers`.

    Args:
      backend: a `tokenizers.Tokenizer`.
      special_tokens: `{'bos_token': ..., 'eos_token': ..., 'pad_token': ...}`, as far as there are such.
      chat_template: in Jinja; '' for none.
      model_max_length: in tokens; 0 where it is not known.
    """
    config: json_values.JsonObject = {'tokenizer_class': 'PreTrainedTokenizerFast', **special_tokens}
    config['clean_up_tokenization_spaces'] = False
    if model_max_length:
      config['model_max_length'] = model_max_length
    files = {
      _JSON: backend.to_str(pretty=True).encode(),
      _CONFIG: _as_json(config),
      _SPECIAL: _as_json(dict(special_tokens)),
    }
    if chat_template:
      files[_TEMPLATE] = chat_template.encode()
    return cls(files, 'tokenizer')

  def save(self, folder: str) -> None:
    """Writes the files into a folder, from which this class and transformers' AutoTokenizer read the same tokenizer.

    generation_config.json is the model's, and left to it.

    Raises:
      StorageError: they cannot be written.
    """
    from official_ext.base.files import storage  # pylint: disable=g-import-not-at-top  # TensorFlow.

    for name, content in self.saved_files.items():
      path = os.path.join(folder, name)
      paths.make_folder(os.path.dirname(path))
      storage.write_bytes(path, content)

  def with_chat_template(self, source: str) -> 'Tokenizer':
    """The same tokenizer with another chat template in the place of all that it has."""
    files = {name: content for name, content in self._files.items() if not name.startswith(_MORE_TEMPLATES)}
    config = {name: value for name, value in self._config.items() if name != 'chat_template'}
    return Tokenizer({**files, _CONFIG: _as_json(config), _TEMPLATE: source.encode()}, self._where, self._model_type)

  def with_stops(self, token_ids: Sequence[int]) -> 'Tokenizer':
    """The same tokenizer, with further tokens that end a text: the ends that a model has learned."""
    if {*token_ids} <= {*self.stop_token_ids}:
      return self
    fields = _read_json(self._files, _GENERATION, self._where)
    stops = list(dict.fromkeys((*token_ids, *self.stop_token_ids)))
    files = {**self._files, _GENERATION: _as_json({**fields, 'eos_token_id': stops})}
    return Tokenizer(files, self._where, self._model_type)

  @property
  def files(self) -> dict[str, bytes]:
    """From the name of each file to its content, as they were read."""
    return {name: content for name, content in self._files.items() if name != _GENERATION}

  @property
  def saved_files(self) -> dict[str, bytes]:
    """The files of `save`: those of `files`, without chat templates that are not rendered."""
    files = self.files
    if any(name.endswith('.jinja') for name in files):
      files.pop(_OF_PROCESSOR, None)
      if 'chat_template' in self._config:
        files[_CONFIG] = _as_json({name: value for name, value in self._config.items() if name != 'chat_template'})
    return files

  def definition(self) -> json_values.JsonObject:
    """The content of a tokenizer.json with all added tokens, including other files'."""
    return json.loads(self._backend.to_str())

  # Tokens.

  def __len__(self) -> int:
    """One more than the largest number of a token: the minimal size of an embedding."""
    return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

  @property
  def digest(self) -> str:
    """A sum over all that makes numbers of texts and messages."""
    total = hashlib.sha256()
    for name in sorted(self._files):
      if name not in (_GENERATION, *_COPIED):
        total.update(f'{name} {len(self._files[name])} '.encode() + self._files[name])
    if self._digested:  # Of numbers that earlier versions did not make of the same files.
      total.update(repr(self._digested).encode())
    return total.hexdigest()[:16]

  @property
  def bos_token_id(self) -> int | None:
    """The number of the token that begins a sequence, if any."""
    return self._id_of('bos_token')

  @property
  def eos_token_id(self) -> int | None:
    """The number of the token that ends a sequence, if any."""
    return self._id_of('eos_token')

  @property
  def pad_token_id(self) -> int | None:
    """The number of the token that fills rows up, if any."""
    return self._id_of('pad_token')

  @property
  def fill_token_id(self) -> int:
    """The padding token: the one defined, else that which ends a sequence, else 0. No loss sees it."""
    return next((number for number in (self.pad_token_id, self.eos_token_id) if number is not None), 0)

  @property
  def special_token_ids(self) -> frozenset[int]:
    """The numbers of the special tokens, which `skip_special_tokens` of `decode` leaves out."""
    added = self._backend.get_added_tokens_decoder()
    return frozenset(number for number, token in added.items() if token.special)

  @property
  def added_token_ids(self) -> frozenset[int]:
    """The numbers of the tokens that are no parts of texts but added to them: all special ones, and others."""
    return frozenset(self._backend.get_added_tokens_decoder())

  def token_id(self, token: str) -> int | None:
    """The number of a token by its text, such as '<|endoftext|>'; None if there is no such token."""
    return self._backend.token_to_id(token)

  def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
    """The numbers of a text's tokens.

    Args:
      text: special tokens that are written in it count as such.
      add_special_tokens: whether to add the tokens at the beginning and end of each text. The text of a chat template
        has it already.
    """
    return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

  def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[np.ndarray]:
    """The numbers of each text's tokens. It uses all cores.

    Args:
      texts: see `encode`.
      add_special_tokens: see `encode`.

    Returns:
      int32 [n] for each text, not padded.
    """
    encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
    return [np.array(encoding.ids, np.int32) for encoding in encodings]

  def encode_batch_with_offsets(
    self, texts: Sequence[str], add_special_tokens: bool = True
  ) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each text its tokens, int32 `[n]`, and where they are in it: (start, end) in characters, int64 `[n, 2]`."""
    encodings = self._backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)
    return [
      (np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int64).reshape(-1, 2)) for encoding in encodings
    ]

  def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
    """The text of tokens.

    Args:
      token_ids: numbers, such as a row of an array.
      skip_special_tokens: whether special tokens leave no trace in the text.
    """
    text = self._backend.decode([int(number) for number in token_ids], skip_special_tokens=skip_special_tokens)
    if self._cleans_up:
      for before, after in _CLEANED:
        text = text.replace(before, after)
    return text

  # Messages.

  @property
  def has_chat_template(self) -> bool:
    """Whether messages can be turned into text."""
    return bool(self.templates)

  def chat_template(self, with_tools: bool = False) -> chat_templates.ChatTemplate:
    """The template for messages.

    Args:
      with_tools: whether there are tools, for which some models have a separate template.

    Raises:
      UserError: no template exists, or it is not valid Jinja.
    """
    name = 'tool_use' if with_tools and 'tool_use' in self.templates else 'default'
    if name not in self.templates:
      raise errors.UserError(
        f'{self._where}: has no chat template: add {_TEMPLATE} to the folder, or name a file by chat_template_path'
      )
    return chat_templates.ChatTemplate(self.templates[name], self._where)

  def apply_chat_template(
    self,
    messages: Sequence[chat_templates.Message],
    add_generation_prompt: bool = False,
    tools: Sequence[json_values.JsonMapping] | None = None,
    **variables: object,
  ) -> str:
    """The text of a conversation: see `chat_templates.ChatTemplate.render`. To be encoded without special tokens.

    Raises:
      UserError: there is no template, or it refuses the messages.
    """
    template = self.chat_template(tools is not None)
    return template.render(messages, add_generation_prompt, tools, **{**self.special_tokens, **variables})

  @functools.cached_property
  def templates(self) -> dict[str, str]:
    """Name -> chat template in Jinja: 'default', and others such as 'tool_use'."""
    found = self._config.get('chat_template')
    templates = {part['name']: part['template'] for part in found} if isinstance(found, list) else {}
    templates.update(found if isinstance(found, dict) else {})
    if isinstance(found, str):
      templates['default'] = found
    files = {name: content for name, content in self._files.items() if name.endswith('.jinja')}
    if files:  # They win over the configuration's.
      templates = {
        'default' if name == _TEMPLATE else os.path.basename(name).removesuffix('.jinja'): content.decode()
        for name, content in files.items()
      }
    return templates

  def _id_of(self, name: str) -> int | None:
    return self._backend.token_to_id(self.special_tokens[name]) if name in self.special_tokens else None

  def _check_fields(self, special_map, added):
    """Refuses fields of the files that change tokens and are not implemented; reports those that are not known."""
    path = lambda name: os.path.join(self._where, name)
    auto_map = self._config.get('auto_map')
    is_code = isinstance(auto_map, list) or 'AutoTokenizer' in (auto_map or {})
    ignored = {*_own_tokens(self._config), *([] if is_code else ['auto_map'])}
    CONFIG_FIELDS.check(self._config, path(_CONFIG), ignored, _report)
    SPECIAL_FIELDS.check(special_map, path(_SPECIAL), _own_tokens(special_map), _report)
    for number, token in (self._config.get('added_tokens_decoder') or {}).items():
      TOKEN_FIELDS.check(token, f'{path(_CONFIG)}: added_tokens_decoder.{number}')
    for text, number in added.items():
      if not json_values.is_int(number):
        raise errors.UserError(f"{path(_ADDED)}: {text!r}: {number!r}: expected a token's number")

  def _has_cleaning(self):
    """Whether transformers takes blanks in front of punctuation away: for BPE by a field of a long name alone."""
    is_bpe = type(self._backend.model).__name__ == 'BPE'
    return bool(self._config.get(_CLEANS)) and (not is_bpe or bool(self._config.get(_CLEANS_BPE)))

  def _add_tokens(self, library, added, special, before):
    """Adds the tokens that the backend lacks, under the next numbers, and sets the flags of all, as transformers does.

    Args:
      library: the module `tokenizers`.
      added: number -> fields of an added token.
      special: the named special tokens, then others: texts, or dictionaries of fields.
      before: text -> fields of the added tokens that the backend has.

    Returns:
      The fields of each token.
    """
    named = set(self.special_tokens.values())
    tokens = [
      {**fields, 'special': bool(fields.get('special')) or fields['content'] in named}
      for _, fields in sorted(added.items())
    ]
    known = {'', *before, *(token['content'] for token in tokens)}
    for token in special:
      text = tokenizer_classes.text_of(token)
      if text not in known:
        known.add(text)
        flags = {name: token[name] for name in _FLAGS if name in token} if isinstance(token, dict) else {}
        tokens.append({'normalized': False, **flags, 'content': text, 'special': True})
    self._backend.add_tokens([library.AddedToken(**token) for token in tokens])
    return tokens


def _own_tokens(fields: Mapping[str, object]) -> dict[str, str]:
  """The special tokens that a model alone has, by their names, such as image_token."""
  return {
    name: value
    for name, value in fields.items()
    if isinstance(value, str) and name.endswith('_token') and name not in tokenizer_classes.NAMED
  }


def _differs(token: Mapping[str, object], before: Mapping[str, Mapping[str, object]]) -> bool:
  """Whether a token has other flags, which decide where texts are split, than the one of its text in `before`."""
  other = before.get(str(token['content']), token)
  return any(bool(token.get(name)) != bool(other.get(name)) for name in _FLAGS)


@functools.lru_cache(maxsize=256)
def _report(line: str) -> None:
  """Reports a field once: a tokenizer is made several times of the same files."""
  logging.warning('%s', line)


def file_names(folder: str) -> list[str]:
  """The files of a tokenizer that there may be in a folder, and further chat templates that there are."""
  more = paths.names(os.path.join(folder, _MORE_TEMPLATES))
  return [*_FILES, *(os.path.join(_MORE_TEMPLATES, name) for name in more if name.endswith('.jinja'))]


def _fields(token: object) -> dict[str, Any]:
  """An added token as tokenizer_config.json has it."""
  return {
    name: getattr(token, name) for name in ('content', 'lstrip', 'normalized', 'rstrip', 'single_word', 'special')
  }


def _of_model(folder: str) -> tuple[str, str]:
  """(model_type, tokenizer_class) of config.json; '' for each that is missing, also if the file is invalid."""
  found = json_values.read_file(os.path.join(folder, _MODEL)) or {}
  values = [found.get(name) for name in ('model_type', 'tokenizer_class')]
  model_type, tokenizer_class = (value if isinstance(value, str) else '' for value in values)
  return model_type, tokenizer_class


def _read_json(files: Mapping[str, bytes], name: str, where: str) -> json_values.JsonObject:
  return json_values.parse_required_object(files.get(name, b'{}'), os.path.join(where, name))


def _as_json(value: object) -> bytes:
  return (json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + '\n').encode()


def _no_tokenizer(folder: str, there: Sequence[str]) -> errors.UserError:
  slow = [name for name in _SLOW if name in there]
  if slow:
    return errors.UserError(
      f'{folder}: holds {slow[0]} and no {_JSON}; write that once: python -c "import transformers; '
      f'transformers.AutoTokenizer.from_pretrained({folder!r}).save_pretrained({folder!r})" (pip install transformers '
      'sentencepiece)'
    )
  return errors.UserError(f'{folder}: holds no {_JSON}; a folder of a Hugging Face model or tokenizer has one')


def _one_line(error: BaseException) -> str:
  return ' '.join(str(error).split())[:200]
