"""The chat template of a written folder or file is the one that was rendered, wherever a reader looks."""

import json
import os

import pytest

from official_ext.base import errors
from official_ext.base.run_folder import model_folders
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import gguf_files
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.language.text import tokenizer_training

OTHER, RENDERED, TOOLS = (f'{{{{ "{name}" }}}}{{{{ messages[0].content }}}}' for name in ('other', 'rendered', 'tools'))


@pytest.fixture
def folder(tmp_path):
  """One whose files disagree: transformers and this library read chat_template.jinja."""
  tokenizer_training.train(['a text of words, and more of them'] * 5, 270, ['<|im_end|>']).save(str(tmp_path / 'base'))
  path = tmp_path / 'base' / 'tokenizer_config.json'
  path.write_text(json.dumps({**json.loads(path.read_text()), 'chat_template': OTHER}))
  (tmp_path / 'base' / 'chat_template.json').write_text(json.dumps({'chat_template': OTHER}))
  (tmp_path / 'base' / 'chat_template.jinja').write_text(RENDERED)
  return str(tmp_path / 'base')


def test_a_saved_folder_has_one_template(folder, tmp_path):
  found = tokenizer_lib.Tokenizer.load(folder)
  assert found.apply_chat_template([{'content': '!'}]) == 'rendered!'
  found.save(str(tmp_path / 'saved'))
  assert (tmp_path / 'saved' / 'chat_template.jinja').read_text() == RENDERED
  assert 'chat_template' not in json.loads((tmp_path / 'saved' / 'tokenizer_config.json').read_text())
  assert not (tmp_path / 'saved' / 'chat_template.json').exists()


@pytest.mark.parametrize('has_tools', [False, True])
def test_a_gguf_file_has_the_template_that_is_rendered(folder, tmp_path, has_tools):
  gguf = pytest.importorskip('gguf', reason="needs the test extra: pip install 'official-ext[test]'")
  if has_tools:
    os.makedirs(os.path.join(folder, 'additional_chat_templates'))
    with open(os.path.join(folder, 'additional_chat_templates', 'tool_use.jinja'), 'w') as file:
      file.write(TOOLS)
  tokenizer = tokenizer_lib.Tokenizer.load(folder)
  config = decoder_config.DecoderConfig(
    vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1, model_type='llama'
  )
  path = str(tmp_path / 'model.gguf')
  gguf_files.write(decoder.LanguageModel(config), path, tokenizer.beside('llama'))
  fields = gguf.GGUFReader(path).fields
  assert fields['tokenizer.chat_template'].contents() == RENDERED
  assert ('tokenizer.chat_template.tool_use' in fields) == has_tools


def test_a_template_beside_adapters_without_a_tokenizer_is_refused(folder, tmp_path):
  for path, name in ((folder, 'config.json'), (tmp_path, 'adapter_config.json'), (tmp_path, 'chat_template.jinja')):
    with open(os.path.join(path, name), 'w') as file:
      file.write('{}')
  with pytest.raises(
    errors.UserError, match='chat_template.jinja: is the chat template of the adapters, and requires token'
  ):
    model_folders.find(folder, adapter=str(tmp_path))
