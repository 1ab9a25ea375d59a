"""docs/how_to/language_models.md: its code and commands run from top to bottom; its tables are those of the library."""

import io
import shlex

import pytest
import tensorflow as tf
import tf_keras

import official_ext as ext
from official_ext.cli import main as cli
from official_ext.language.modeling import families
from tests import documents

PAGE = documents.read('docs/how_to/language_models.md')
TEMPLATE = '{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>'


@pytest.fixture
def place(tmp_path, monkeypatch):
  """The start of the page: a folder `Llama-3.2-1B`, which is smaller, and adapters for it."""
  monkeypatch.chdir(tmp_path)
  tf_keras.utils.set_random_seed(0)  # Of some weights the first token is one without a text.
  tokenizer = ext.train_tokenizer(
    ['hello there'], 270, ['<|user|>', '<|assistant|>', '<|system|>', '<|end|>'], TEMPLATE, folder=tmp_path
  )
  sizes = dict(vocab_size=15044, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
  config = ext.DecoderConfig(**sizes, num_key_value_heads=2, max_position_embeddings=64)
  model = ext.LanguageModel(config)
  kernel = model.lm_head.kernel
  kernel.assign(tf.where(tf.range(15044) < 262, 50 * kernel, 0))  # It writes the tokens that have a text.
  ext.pretrained.save(model, 'Llama-3.2-1B', tokenizer=tokenizer)
  model = ext.pretrained.load('Llama-3.2-1B')
  ext.lora.attach(model, ext.LoraConfig(r=2))
  ext.peft_folders.save(model, 'adapter')
  return tmp_path


@pytest.mark.slow
def test_the_code_and_the_commands_of_the_page_run(place, monkeypatch, capsys):
  names = {'__name__': 'page'}
  for code in documents.code(PAGE):
    exec(compile(code, 'docs/how_to/language_models.md', 'exec'), names)  # pylint: disable=exec-used
  assert (place / 'mine/tokenizer.json').exists()
  assert names['config'].stop_token_ids == () and names['logits'].shape == (1, 6, 512)
  assert names['first'].tokens and len(capsys.readouterr().out.split()) == 20

  lines = [line for _, line in documents.steps(PAGE) if line.startswith('official-ext ')]
  assert {line.split()[1] for line in lines} == {'generate', 'chat', 'convert'}
  for line in lines:
    monkeypatch.setattr('sys.stdin', io.StringIO('hello\n/exit\n'))
    status = cli.main(shlex.split(line)[1:])
    out, err = capsys.readouterr()
    assert status == 0, (line, err)
    assert out.strip('\n'), line
  assert (place / 'half/config.json').exists() and (place / 'merged/tokenizer.json').exists()


def test_the_tables_are_those_of_the_library(capsys):
  tables = documents.tables(PAGE)
  listed = [name.strip('`') for row in tables['model_type'] for name in row.split(', ')]
  assert sorted(listed) == sorted(families.FAMILIES)
  assert [row.strip('`') for row in tables['command']] == ['generate', 'chat', 'convert']
  for command, flags in {'generate': ('prompt', 'use_chat_template'), 'convert': ('adapter', 'which', 'ema')}.items():
    assert cli.main([command, '--help']) == 0
    listed = capsys.readouterr().out
    assert all(f'--{flag}=' in listed and f'`--{flag}' in PAGE for flag in flags)
  for row in tables['field']:
    for name in row.split(', '):
      assert hasattr(ext.DecoderConfig(), name.strip('`')), name
