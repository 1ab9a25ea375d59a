"""The tokens of each class that transformers makes of a folder, on random text; a saved folder is the same for all."""

import inspect
import json
import os
import random

import pytest
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers

from official_ext.base import errors
from official_ext.language.modeling import families
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.language.text import tokenizer_classes
from official_ext.language.text import tokenizer_training
from tests import tiers
from tests.language.text import hugging_face_folders as folders

CLASSES = (
  *('', 'PreTrainedTokenizerFast', 'Qwen2Tokenizer', 'GPT2TokenizerFast', 'LlamaTokenizerFast', 'GemmaTokenizer'),
  *('CohereTokenizerFast', 'CodeGenTokenizer'),
)
PIECES = [
  *'abcXYZ0189 \n\t.,!?\'"_-/(){}<>|',
  *('  ', '   ', '\r\n', '\n\n', "don't", "I'LL", '1234', '3.14', ' the', 'The', 'def f(x):\n  return x ** 2\n'),
  *('é', 'e\u0301', 'a\u0308\u0304', 'ü', '你好', '한', 'ا', 'ไ', 'İ', 'ß', 'ﬁ', 'Ω', 'Å', '\u212b', 'ᾳ'),
  *('🎉', '👩‍👩‍👧', '🇩🇪', '👍🏽', '\u200b', '\u200d', '\xa0', '\u2028', '\ufeff', '\u0000', '\x7f', '▁', '̈'),
  *('<|endoftext|>', '<s>', '</s>', '<|im_end|>', '<|im_start|>', '<unk>', '<pad>', '<bos>', '<|tool|>', '<tool_call>'),
]


def texts(seed, count=30):
  rng = random.Random(seed)
  return [''.join(rng.choices(PIECES, k=rng.randint(0, 40))) for _ in range(count)]


@pytest.fixture(scope='module')
def auto():
  """transformers' AutoTokenizer, kept from the network."""
  os.environ['HF_HUB_OFFLINE'] = '1'
  import transformers  # pylint: disable=g-import-not-at-top

  transformers.logging.set_verbosity_error()
  return lambda folder: transformers.AutoTokenizer.from_pretrained(str(folder))


def trained(folder):
  tokenizer_training.train(folders._texts(), 400, ['<|im_start|>', '<|im_end|>']).save(str(folder))


KINDS = {'trained': trained, 'byte_level': folders.declared, 'metaspace': folders.older}


def make(folder, kind, model_type='', tokenizer_class='', config=(), model=()):
  """A folder of a kind, beside a model, with another class and further fields of tokenizer_config.json."""
  KINDS[kind](folder)
  path = folder / 'tokenizer_config.json'
  fields = {**json.loads(path.read_text()), 'tokenizer_class': tokenizer_class, **dict(config)}
  path.write_text(json.dumps({name: value for name, value in fields.items() if value != ''}))
  if model_type:
    (folder / 'config.json').write_text(json.dumps({'model_type': model_type, **dict(model)}))
  return folder


def assert_same(ours, theirs, seed=0):
  for text in texts(seed):
    for adds in (True, False):
      ids = theirs.encode(text, add_special_tokens=adds)
      assert ours.encode(text, adds) == ids, text
      assert ours.decode(ids) == theirs.decode(ids), text
  for name in ('bos', 'eos', 'pad'):
    assert getattr(ours, f'{name}_token_id') == getattr(theirs, f'{name}_token_id'), name


def check(folder, auto, seed=0):
  """Compares a folder, and its saved copy, alone and beside its model, with AutoTokenizer; False if refused."""
  try:
    ours = tokenizer_lib.Tokenizer.load(str(folder))
  except errors.UserError as error:
    assert 'transformers makes GemmaTokenizer of it, and cannot: the vocabulary lacks the unknown token' in str(error)
    with pytest.raises(Exception, match='Unk token `<unk>` not found in the vocabulary'):
      for text in texts(seed):
        auto(folder).encode(text)
    return False
  assert_same(ours, auto(folder), seed)
  for name in ('saved', 'saved_beside'):
    saved = folder.parent / f'{folder.name}_{name}'
    ours.save(str(saved))
    if name == 'saved_beside' and (folder / 'config.json').exists():
      (saved / 'config.json').write_bytes((folder / 'config.json').read_bytes())
    elif ours.files['tokenizer.json'] == (folder / 'tokenizer.json').read_bytes():
      continue  # The files are those that were read: their meaning may depend on the model.
    assert_same(ours, auto(saved), seed)
    again = tokenizer_lib.Tokenizer.load(str(saved))
    assert_same(again, auto(saved), seed)
    assert again.digest == ours.digest
  return True


@tiers.parametrize('kind', KINDS, fast=1)
@tiers.parametrize('model_type', ['', *families.FAMILIES], fast=['llama'])
def test_each_class_beside_each_family_has_transformers_tokens(model_type, kind, auto, tmp_path):
  checked = [check(make(tmp_path / (name or 'none'), kind, model_type, name), auto, seed=len(name)) for name in CLASSES]
  assert sum(checked) >= (1 if kind != 'metaspace' else len(CLASSES))


@pytest.mark.parametrize(
  'kind, tokenizer_class, config',
  [
    ('metaspace', 'LlamaTokenizer', {'legacy': True}),
    ('metaspace', 'LlamaTokenizer', {'legacy': None}),
    ('metaspace', 'LlamaTokenizer', {'add_prefix_space': False}),
    ('metaspace', 'LlamaTokenizer', {'add_prefix_space': True, 'add_bos_token': False, 'add_eos_token': True}),
    ('metaspace', 'PreTrainedTokenizerFast', {'add_bos_token': False, 'legacy': False}),
    ('byte_level', 'GPT2Tokenizer', {'add_prefix_space': True}),
    ('byte_level', 'GPT2Tokenizer', {'bos_token': '<|new|>', 'pad_token': '<|pad|>'}),
    ('byte_level', 'Qwen2Tokenizer', {'add_prefix_space': True, 'eos_token': None}),
    ('byte_level', 'Qwen2Tokenizer', {'extra_special_tokens': ['<|tool|>']}),
    ('trained', 'PreTrainedTokenizerFast', {'split_special_tokens': True}),
    ('trained', 'Qwen2Tokenizer', {'split_special_tokens': True}),
    ('trained', 'NoSuchTokenizer', {}),
  ],
)
def test_fields_of_the_configuration_count_as_they_do_there(kind, tokenizer_class, config, auto, tmp_path):
  assert check(make(tmp_path / 'a', kind, '', tokenizer_class, config), auto)


def test_a_class_that_the_model_names_counts(auto, tmp_path):
  for name in ('GPT2Tokenizer', 'Qwen2TokenizerFast'):
    folder = make(tmp_path / name, 'trained', 'llama', model={'tokenizer_class': name})
    assert check(folder, auto)
    assert tokenizer_lib.Tokenizer.load(str(folder)).special_tokens['unk_token'] == '<|endoftext|>'


def test_files_that_a_class_has_written_stay_unchanged(auto, tmp_path):
  for model_type, kind in (('qwen2', 'trained'), ('gpt2', 'trained'), ('gemma2', 'metaspace')):
    folder, written = make(tmp_path / model_type, kind, model_type), tmp_path / f'{model_type}_written'
    auto(folder).save_pretrained(written)
    (written / 'config.json').write_bytes((folder / 'config.json').read_bytes())
    ours = tokenizer_lib.Tokenizer.load(str(written))
    assert_same(ours, auto(folder))
    for name in ('tokenizer.json', 'tokenizer_config.json'):
      assert ours.files[name] == (written / name).read_bytes(), (model_type, name)


def test_a_tokenizer_is_made_as_it_will_be_read_beside_a_model(auto, tmp_path):
  ours = tokenizer_training.train(folders._texts(), 400)
  assert ours.beside('llama').digest == ours.beside('').digest == ours.digest
  beside = ours.beside('qwen2')
  assert beside.digest != ours.digest and beside.beside('qwen2') is beside
  assert any(ours.encode(text) != beside.encode(text) for text in texts(3))
  folder = tmp_path / 'model'
  beside.with_chat_template('{{ messages }}').save(str(folder))
  for model_type in families.FAMILIES:
    (folder / 'config.json').write_text(json.dumps({'model_type': model_type}))
    assert_same(beside, auto(folder))


# Refusals.


def test_a_class_that_is_not_followed_is_refused_by_name(tmp_path):
  folder = make(tmp_path / 'a', 'metaspace', 'llama', 'CodeLlamaTokenizerFast')
  with pytest.raises(errors.UserError) as error:
    tokenizer_lib.Tokenizer.load(str(folder))
  assert str(error.value) == (
    f'{folder}/tokenizer_config.json: tokenizer_class: transformers makes CodeLlamaTokenizer of this folder, which '
    'splits texts in its own way; set tokenizer_class to PreTrainedTokenizerFast to use tokenizer.json unchanged'
  )
  make(folder, 'metaspace', 'llama', 'PreTrainedTokenizerFast')
  tokenizer_lib.Tokenizer.load(str(folder))


@pytest.mark.parametrize('model_type, hint', [('qwen2', 'another model_type'), ('', 'tokenizer_class PreTrainedTok')])
def test_a_model_that_a_class_cannot_have_is_refused_by_name(model_type, hint, tmp_path):
  backend = tokenizers.Tokenizer(models.WordLevel({'<unk>': 0, 'a': 1}, unk_token='<unk>'))
  backend.pre_tokenizer = pre_tokenizers.Whitespace()
  folder = folders.write(tmp_path / 'a', backend, {'tokenizer_class': 'Qwen2Tokenizer'})
  if model_type:
    (folder / 'config.json').write_text(json.dumps({'model_type': model_type}))
  message = f'{folder}/tokenizer.json: transformers makes Qwen2Tokenizer of it, and cannot: the model is WordLevel, '
  with pytest.raises(errors.UserError) as error:
    tokenizer_lib.Tokenizer.load(str(folder))
  assert str(error.value).startswith(message) and hint in str(error.value)


# The claims about transformers.


def test_what_is_stated_of_transformers_is_what_it_has():
  os.environ['HF_HUB_OFFLINE'] = '1'
  from transformers import tokenization_utils_tokenizers as backends  # pylint: disable=g-import-not-at-top
  from transformers.models.auto import tokenization_auto as auto  # pylint: disable=g-import-not-at-top

  names = auto.TOKENIZER_MAPPING_NAMES
  for family in families.FAMILIES:
    found, stated = (names.get(family) or '').removesuffix('Fast'), tokenizer_classes.REGISTERED.get(family, '')
    if stated == 'MistralCommonBackend' and found == 'TokenizersBackend':  # Without mistral-common.
      continue
    assert stated == found, family
  incorrect = auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS & families.FAMILIES.keys()
  assert incorrect == set(tokenizer_classes.FORCED)
  own = set()
  for name in {name.removesuffix('Fast') for name in names.values() if name} | {
    'CodeLlamaTokenizer',
    'CodeGenTokenizer',
  }:
    made = auto.tokenizer_class_from_name(name)
    is_backend = made is not None and issubclass(made, backends.TokenizersBackend)
    if is_backend and ('__init__' not in vars(made) or made is backends.TokenizersBackend) or name.endswith('Backend'):
      continue
    own.add(name)
  assert own == tokenizer_classes.REFUSED | tokenizer_classes.FOLLOWED.keys()
  for name, defaults in tokenizer_classes.FOLLOWED.items():
    parameters = inspect.signature(auto.tokenizer_class_from_name(name).__init__).parameters
    stated = {key: value.default for key, value in parameters.items() if key.endswith('_token') and value.default}
    assert defaults == stated, name


def gpt2(folder, model, config=()):
  """The files of openai-community/gpt2: no tokenizer_class, no special tokens."""
  backend = tokenizers.Tokenizer(models.BPE())
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = decoders.ByteLevel()
  folders._trained(backend, ['<|endoftext|>'], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
  return folders.write(folder, backend, {'model_max_length': 1024, **dict(config)}, [('config.json', model)])


def test_a_saved_tokenizer_keeps_the_special_tokens_of_its_class(auto, tmp_path):
  ours = tokenizer_lib.Tokenizer.load(str(gpt2(tmp_path / 'gpt2', {'model_type': 'gpt2'})))
  assert_same(ours, auto(tmp_path / 'gpt2'))
  assert ours.special_tokens == dict.fromkeys(('bos_token', 'eos_token', 'unk_token'), '<|endoftext|>')
  ours.save(str(tmp_path / 'saved'))
  again = tokenizer_lib.Tokenizer.load(str(tmp_path / 'saved'))
  assert again.special_tokens == ours.special_tokens and again.eos_token_id == ours.eos_token_id is not None
  assert again.digest == ours.digest
  bare = tokenizer_lib.Tokenizer.load(str(gpt2(tmp_path / 'bare', {'model_type': 'llama'})))
  assert bare.special_tokens == {} and bare.digest != ours.digest


def test_the_class_of_config_json_stays_when_the_chat_template_changes(tmp_path):
  """Without it a GemmaTokenizer would be made beside a model of type gemma2."""
  model = {'model_type': 'gemma2', 'tokenizer_class': 'PreTrainedTokenizerFast'}
  ours = tokenizer_lib.Tokenizer.load(str(gpt2(tmp_path / 'gemma2', model)))
  other = ours.with_chat_template('{{ messages }}')
  ours.save(str(tmp_path / 'saved'))
  (tmp_path / 'saved/config.json').write_text(json.dumps({'model_type': 'gemma2'}))
  for found in (other, tokenizer_lib.Tokenizer.load(str(tmp_path / 'saved'))):
    assert found.special_tokens == ours.special_tokens and len(found) == len(ours)
    for text in texts(3):
      assert found.encode(text) == ours.encode(text)
