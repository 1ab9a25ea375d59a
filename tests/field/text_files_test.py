"""Text files that others wrote: a byte order mark is no part of a text, and lines end at line feeds alone."""

import codecs
import types

import pytest

from official_ext.base.files import paths
from official_ext.data import input_files
from official_ext.language.text import bert_targets
from official_ext.language.text import chat_templates
from tests.language.text import annotated

ODD = 'a\u2028b\u2029c\x85d\x0be\x0cf\x1cg'


def write(path, text):
  path.write_bytes(codecs.BOM_UTF8 + text.encode())
  return str(path)


@pytest.mark.parametrize('text', [f'{ODD}\nlast\n', f'{ODD}\r\nlast'])
def test_lines_of_a_file(tmp_path, text):
  assert paths.lines(write(tmp_path / 'a.txt', text)) == [ODD, 'last']
  with pytest.raises(UnicodeDecodeError):
    paths.split_lines(b'\xff')


def test_names_of_classes(tmp_path):
  write(tmp_path / 'labels.txt', f'{ODD}\ncat\n')
  path = write(tmp_path / 'map.csv', f'0,background\n1,{ODD}\n')
  names = input_files.class_names_in(str(tmp_path))
  assert [names.of(number) for number in range(3)] == [ODD, 'cat', '2']
  decoder = types.SimpleNamespace(
    type='label_map_decoder', label_map_decoder=types.SimpleNamespace(label_map=str(path))
  )
  names = input_files.find_class_names(types.SimpleNamespace(decoder=decoder, input_path=''))
  assert [names.of(number) for number in range(2)] == ['background', ODD]


def test_words_and_their_vocabulary(tmp_path):
  words = [f'{ODD}{number}' for number in range(40)]
  path = write(tmp_path / 'a.conll', ''.join(f'{word}  NNP B-PER\nis O\n\n' for word in words))
  vocabulary = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', 'a\x85', 'a\u2028', 'is']
  vocab_file = write(tmp_path / 'vocab.txt', '\n'.join(vocabulary) + '\n')
  done, made = annotated.convert(path, tmp_path / 'out', bert_targets.TAGGING, vocab_file)
  assert sorted(text.values['words'][0] for text in made._texts.texts) == sorted(words)
  assert f'vocab_size: {len(vocabulary)}\n' in (tmp_path / 'out' / 'experiment.yaml').read_text()
  assert paths.read(str(tmp_path / 'out' / bert_targets.VOCABULARY)).startswith(b'[PAD]') and done.rows


def test_a_chat_template(tmp_path):
  path = write(tmp_path / 'a.jinja', '{{ messages[0].content }}')
  template = chat_templates.ChatTemplate(chat_templates.read(path, '--flag'), path)
  assert template.render([{'role': 'user', 'content': 'one'}]) == 'one'
