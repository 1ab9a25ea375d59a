"""Hugging Face's tokenizers: the same numbers and texts as transformers has, both ways; mistakes are one line."""

import json
import os
import shutil

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.base import package_imports
from official_ext.language.text import tokenizer as tokenizer_lib
from tests.language.text import hugging_face_folders as folders

TEXTS = [
  'The quick brown fox.',
  '',
  ' two  spaces\n\n\tand a tab ',
  'naïve Grüße, 你好, 🎉👩‍👩‍👧, \u0000 and \u2028',
  'a<|im_end|> b <|begin_of_text|><s></s> <pad><|tool|><|mask|> x <tool_call> y',
]
MESSAGES = [
  {'role': 'system', 'content': 'Be <|im_end|> brief.'},
  {'role': 'user', 'content': 'Grüße 🎉?'},
  {'role': 'assistant', 'content': 'Hi.'},
]
TOOLS = [{'type': 'function', 'function': {'name': 'f', 'description': 'a < b & "c" ü'}}]


@pytest.fixture(scope='module')
def auto():
  """transformers' AutoTokenizer, kept from the network."""
  os.environ['HF_HUB_OFFLINE'] = '1'
  import transformers  # pylint: disable=g-import-not-at-top

  return transformers.AutoTokenizer.from_pretrained


@pytest.fixture(scope='module', params=folders.ALL)
def folder(request, tmp_path_factory):
  return str(folders.ALL[request.param](tmp_path_factory.mktemp('tokenizers') / request.param))


def assert_same(ours, theirs):
  for text in TEXTS:
    for adds in (True, False):
      ids = theirs.encode(text, add_special_tokens=adds)
      assert ours.encode(text, adds) == ids
      for skips in (True, False):
        assert ours.decode(ids, skips) == theirs.decode(ids, skip_special_tokens=skips)
  for name in ('bos', 'eos', 'pad'):
    assert getattr(ours, f'{name}_token_id') == getattr(theirs, f'{name}_token_id'), name
  assert len(ours) == max(theirs.get_vocab().values()) + 1
  for adds in (True, False):
    for tools in (None, TOOLS):
      rendered = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=adds, tools=tools)
      assert ours.apply_chat_template(MESSAGES, adds, tools) == rendered
      ids = theirs.apply_chat_template(MESSAGES, add_generation_prompt=adds, tools=tools, return_dict=False)
      assert ours.encode(rendered, add_special_tokens=False) == ids


def test_numbers_and_texts_are_those_of_transformers(folder, auto):
  assert_same(tokenizer_lib.Tokenizer.load(folder), auto(folder))


@pytest.mark.tensorflow
def test_what_is_saved_is_the_same_tokenizer_to_transformers_and_to_us(folder, auto, tmp_path):
  ours = tokenizer_lib.Tokenizer.load(folder)
  ours.save(str(tmp_path / 'a [new] folder'))
  assert_same(ours, auto(str(tmp_path / 'a [new] folder')))
  again = tokenizer_lib.Tokenizer.load(str(tmp_path / 'a [new] folder'))
  assert again.digest == ours.digest
  assert_same(again, auto(folder))


def test_what_transformers_saves_is_the_same_tokenizer_to_us(folder, auto, tmp_path):
  theirs = auto(folder)
  theirs.save_pretrained(tmp_path)
  assert_same(tokenizer_lib.Tokenizer.load(str(tmp_path)), theirs)


@pytest.mark.tensorflow
def test_another_chat_template_takes_the_place_of_all(folder, auto, tmp_path):
  ours = tokenizer_lib.Tokenizer.load(folder).with_chat_template('{{ bos_token }}[{{ messages[-1].content }}]')
  ours.save(str(tmp_path))
  assert auto(str(tmp_path)).apply_chat_template(MESSAGES, tokenize=False, tools=TOOLS).endswith('[Hi.]')
  assert_same(ours, auto(str(tmp_path)))
  assert ours.digest != tokenizer_lib.Tokenizer.load(folder).digest


def test_batches_are_texts_one_by_one(folder):
  ours = tokenizer_lib.Tokenizer.load(folder)
  for adds in (True, False):
    one_by_one = [ours.encode(text, adds) for text in TEXTS]
    assert [ids.tolist() for ids in ours.encode_batch(TEXTS, adds)] == one_by_one
    found = ours.encode_batch_with_offsets(TEXTS, adds)
    assert [ids.tolist() for ids, _ in found] == one_by_one
    assert all(len(offsets) == len(ids) and offsets.dtype == np.int64 for ids, offsets in found)


def test_truncation_and_padding_in_the_file_are_not_applied(tmp_path):
  backend = folders.byte_level()
  backend.enable_truncation(4)
  backend.enable_padding(length=32)
  ours = tokenizer_lib.Tokenizer.load(str(folders.write(tmp_path, backend, {})))
  assert len(ours.encode('one two three four five six seven')) > 7
  assert len(ours.encode('one')) < 7


def test_stop_tokens_are_those_of_the_tokenizer_and_of_the_generation_config(tmp_path):
  ours = tokenizer_lib.Tokenizer.load(str(folders.llama3(tmp_path / 'a')))
  assert ours.stop_token_ids == (1, 2)  # <|end_of_text|> once, and <|eot_id|>.
  none = tokenizer_lib.Tokenizer.load(str(folders.write(tmp_path / 'b', folders.byte_level(), {})))
  assert (none.stop_token_ids, none.eos_token_id, none.fill_token_id) == ((), None, 0)


def test_no_network_is_asked_for(tmp_path, start_script):
  folder = folders.llama3(tmp_path)
  code = """
import socket, sys
def refuse(*arguments, **options):
  raise AssertionError('the network is asked')
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from official_ext.language.text import tokenizer
t = tokenizer.Tokenizer.load(sys.argv[1])
t.apply_chat_template([{'role': 'user', 'content': 'hi'}])
assert not [name for name in sys.modules if name.startswith(('huggingface_hub', 'transformers'))]
print(t.encode('hi')[0])
"""
  done = start_script(code, [str(folder)]).finish()
  assert (done.returncode, done.stdout) == (0, '0\n'), done.stderr


@pytest.mark.parametrize(
  'name, content, message',
  [
    ('tokenizer.json', b'{"version": ', 'tokenizer.json: is damaged, or of a newer version of tokenizers: '),
    ('tokenizer_config.json', b'{"bos_token": ', 'tokenizer_config.json: is invalid JSON: '),
    ('tokenizer_config.json', b'[]', 'tokenizer_config.json: expected an object, found list'),
    ('generation_config.json', b'{', 'generation_config.json: is invalid JSON: '),
  ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, message):
  folder = folders.llama3(tmp_path)
  (folder / name).write_bytes(content)
  with pytest.raises(errors.UserError) as error:
    tokenizer_lib.Tokenizer.load(str(folder))
  assert str(error.value).startswith(f'{folder}/{message}') and '\n' not in str(error.value)


def test_a_folder_without_a_tokenizer_names_the_remedy(tmp_path):
  with pytest.raises(errors.UserError, match=r'/none: there is no such folder to read a tokenizer from$'):
    tokenizer_lib.Tokenizer.load(str(tmp_path / 'none'))
  with pytest.raises(errors.UserError, match=r': holds no tokenizer.json; a folder of a Hugging Face model'):
    tokenizer_lib.Tokenizer.load(str(tmp_path))
  (tmp_path / 'tokenizer.model').write_bytes(b'sentencepiece')
  with pytest.raises(errors.UserError, match=r'holds tokenizer.model and no tokenizer.json; write that once: .*Auto'):
    tokenizer_lib.Tokenizer.load(str(tmp_path))


def test_a_missing_chat_template_names_the_remedy(tmp_path):
  ours = tokenizer_lib.Tokenizer.load(str(folders.write(tmp_path, folders.byte_level(), {})))
  assert not ours.has_chat_template
  with pytest.raises(errors.UserError, match=r'has no chat template: add chat_template.jinja to the folder'):
    ours.apply_chat_template(MESSAGES)


def test_a_missing_package_names_its_extra(monkeypatch, tmp_path):
  folder = folders.llama3(tmp_path)
  monkeypatch.setitem(__import__('sys').modules, 'tokenizers', None)
  with pytest.raises(errors.UserError) as error:
    tokenizer_lib.Tokenizer.load(str(folder))
  assert str(error.value) == f"{folder}: needs the package tokenizers: pip install 'official-ext[language_models]'"
  with pytest.raises(errors.UserError, match="the package nothing_of_the_kind: pip install 'official-ext.x.'"):
    package_imports.import_optional('nothing_of_the_kind.inside', 'a test', 'x')


@pytest.mark.tensorflow
def test_a_save_replaces_what_was_there(tmp_path):
  folder = folders.llama3(tmp_path / 'a')
  ours = tokenizer_lib.Tokenizer.load(str(folder))
  ours.with_chat_template('{{ messages }}').save(str(folder))
  assert json.loads((folder / 'tokenizer_config.json').read_text()).get('chat_template') is None
  assert (folder / 'chat_template.jinja').read_text() == '{{ messages }}'
  assert json.loads((folder / 'generation_config.json').read_text()) == {'eos_token_id': [1, 2]}  # The model's.
  shutil.rmtree(folder)
  ours.save(str(folder))
  assert not (folder / 'generation_config.json').exists()
