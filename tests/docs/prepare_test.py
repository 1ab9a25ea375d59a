"""docs/how_to/prepare.md: its commands and code run from top to bottom, and its tables are those of the command."""

import pathlib
import re
import shlex

import numpy as np
import pytest
import yaml

import official_ext as ext
from official_ext.cli import main as cli
from official_ext.language.text import python_topics
from official_ext.language.text import tokenizer_training
from tests import documents
from tests.data.prepare import prepared_inputs as inputs

PAGE = documents.read('docs/how_to/prepare.md')


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_commands_and_the_code_of_the_page_run(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  records = inputs.documents(40)
  inputs.write_lines(tmp_path / 'notes.jsonl', records)
  texts = [document['text'] for document in python_topics.documents('validation')]
  tokenizer = tokenizer_training.train(texts, 400)
  tokenizer.save('my_tokenizer')
  commands = [command for _, command in documents.steps(PAGE) if command.startswith('official-ext prepare notes')]
  for command in commands:
    assert cli.main([*shlex.split(command)[1:], '--workers=1']) == 0
  assert len(commands) == 2 and f'--config_file={tmp_path}/prepared_rows/train_data.yaml' in capsys.readouterr().out
  names = {'__name__': 'page'}
  for code in documents.code(PAGE):
    exec(compile(code, 'docs/how_to/prepare.md', 'exec'), names)  # pylint: disable=exec-used
  assert set(names['batch']['length'].numpy()) <= {len(record['text']) for record in records}
  there = {path.name for path in pathlib.Path('prepared_rows').iterdir()} - {'.prepare.lock'}
  listed = {name for row in documents.tables(PAGE)['file'] for name in re.findall(r'`([^`]+)`', row)}
  shards = {re.sub(r'\d{5}', 'N', name) for name in there}
  assert shards == {re.sub(r'\d{5}', 'N', name) for name in listed}
  train_data = yaml.safe_load(pathlib.Path('prepared_rows/train_data.yaml').read_text())['task']['train_data']
  source = ext.text_source(ext.TextDataConfig(is_training=True, global_batch_size=4, **train_data), tokenizer)
  (batch,) = ext.build_dataset(source, ext.TextDataConfig(is_training=True, global_batch_size=4, **train_data)).take(1)
  assert batch['input_ids'].shape == (4, 32) and np.all(batch['position_ids'] < 32)


def test_the_flags_of_the_page_are_those_of_the_help(capsys):
  assert cli.main(['prepare', '--help']) == 0
  listed = capsys.readouterr().out
  for flag in documents.tables(PAGE)['flag']:
    assert flag.strip('`') in listed
