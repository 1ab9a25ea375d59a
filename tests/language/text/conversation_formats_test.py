"""Records of ShareGPT, Alpaca, CSV and documents: the same rows as from messages, prompts and texts."""

import csv
import json

import pytest

from official_ext.base import errors
from official_ext.language.text import text_formats
from official_ext.language.text import text_sources
from official_ext.language.text import text_task
from tests.language.text import text_fixtures

cache, tokenizer = text_fixtures.cache, text_fixtures.tokenizer
QUESTIONS = [('What is 1 plus 2?', 'It is 3.'), ('And 2 plus 2?', 'That is 4.')]
MESSAGES = [
  {'role': 'system', 'content': 'Be brief.'},
  *(
    message
    for question, answer in QUESTIONS
    for message in ({'role': 'user', 'content': question}, {'role': 'assistant', 'content': answer})
  ),
]
NAMES = {'system': 'system', 'user': 'human', 'assistant': 'gpt'}
SHAREGPT = [{'from': NAMES[message['role']], 'value': message['content']} for message in MESSAGES]


def rows(path, tokenizer, **fields):
  fields = {'seq_length': 128, 'use_chat_template': True, **fields}
  source = text_sources.open_source(text_task.TextDataConfig(input_path=str(path), **fields), tokenizer)
  return [{name: values.tolist() for name, values in row.items()} for row in source.fetch(range(len(source)))]


def write(path, *records):
  path.write_text(''.join(json.dumps(record) + '\n' for record in records))
  return path


def test_sharegpt_is_read_as_messages(tokenizer, tmp_path):
  expected = rows(write(tmp_path / 'a.jsonl', {'messages': MESSAGES}), tokenizer)
  for number, record in enumerate(
    (
      {'conversations': SHAREGPT},
      {'conversations': SHAREGPT[1:], 'system': 'Be brief.'},
      {'conversations': json.dumps(SHAREGPT)},
    )
  ):
    assert rows(write(tmp_path / f'{number}.jsonl', record), tokenizer) == expected


def test_calls_of_functions_are_tool_calls():
  call = {'name': 'add', 'arguments': {'a': 1, 'b': 2}}
  turns = [('human', '1 + 2?'), ('function_call', json.dumps(call)), ('observation', '3'), ('gpt', 'It is 3.')]
  found = text_formats.messages_of_sharegpt({'conversations': [{'from': a, 'value': b} for a, b in turns]})
  assert [message['role'] for message in found] == ['user', 'assistant', 'tool', 'assistant']
  assert found[1]['tool_calls'] == [{'type': 'function', 'function': call}]


def test_alpaca_is_a_prompt_and_an_answer(tokenizer, tmp_path):
  record = {'instruction': 'Add the numbers.', 'input': '1 and 2', 'output': 'It is 3.', 'system': '', 'history': []}
  plain = {'prompt': 'Add the numbers.\n1 and 2', 'completion': 'It is 3.'}
  expected = rows(write(tmp_path / 'a.jsonl', plain), tokenizer)
  assert rows(write(tmp_path / 'b.jsonl', record), tokenizer) == expected
  # Earlier turns and the system come first, and the last answer alone is learned.
  (question, answer), (last, output) = QUESTIONS
  record = {'instruction': last, 'output': output, 'system': 'Be brief.', 'history': [[question, answer]]}
  expected = rows(write(tmp_path / 'c.jsonl', {'messages': MESSAGES}), tokenizer, loss_on='last_completion')
  assert rows(write(tmp_path / 'd.jsonl', record), tokenizer) == expected


@pytest.mark.parametrize('given', ['', '1 and 2'])
def test_alpaca_without_a_template_has_the_prompt_of_stanford(tokenizer, tmp_path, given):
  record = {'instruction': 'Add.', 'input': given, 'output': 'It is 3.'}
  (row,) = rows(write(tmp_path / 'a.jsonl', record), tokenizer, use_chat_template=False, seq_length=512)
  text = tokenizer.decode([token for token, segment in zip(row['input_ids'], row['segment_ids']) if segment])
  middle = f'### Instruction:\nAdd.\n\n### Input:\n{given}\n\n' if given else '### Instruction:\nAdd.\n\n'
  assert text.startswith('Below is an instruction that describes a task') and ('further context' in text) == bool(given)
  assert f'{middle}### Response:\nIt is 3.' in text
  assert tokenizer.decode([label for label in row['labels'] if label >= 0]).startswith('It is 3.')


@pytest.mark.parametrize(
  'record, message',
  [
    ({'conversations': []}, "column 'conversations' is empty"),
    ({'conversations': [{'from': 'bard', 'value': 'Hi'}]}, "turn 0: unknown role 'bard'; known are human, user, gpt"),
    ({'conversations': [{'from': 'human'}]}, 'turn 0: expected a dictionary with the texts from and value'),
    ({'conversations': [{'from': 'function_call', 'value': '{'}]}, 'turn 0: is invalid JSON'),
    ({'instruction': 'a', 'output': 3}, "column 'output' holds 3; expected a text"),
    ({'instruction': 'a', 'output': ' '}, "column 'output' is empty"),
    ({'instruction': 'a', 'output': 'b', 'history': ['c']}, "column 'history' holds something else than pairs"),
  ],
)
def test_other_contents_are_refused_by_name(tokenizer, tmp_path, record, message):
  path = write(tmp_path / 'a.jsonl', record)
  with pytest.raises(errors.UserError) as error:
    rows(path, tokenizer)
  assert f'{path}, line 1: ' in str(error.value) and message in str(error.value)


@pytest.mark.parametrize('ending, delimiter', [('csv', ','), ('tsv', '\t')])
def test_rows_of_a_table_are_records(tokenizer, tmp_path, ending, delimiter):
  records = [{'prompt': f'{question}\t"now",\nplease', 'completion': f' {answer}'} for question, answer in QUESTIONS]
  with open(tmp_path / f'a.{ending}', 'w', encoding='utf-8-sig', newline='') as f:
    writer = csv.DictWriter(f, ['prompt', 'completion'], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(records)
  expected = rows(write(tmp_path / 'a.jsonl', *records), tokenizer, use_chat_template=False)
  assert rows(tmp_path / f'a.{ending}', tokenizer, use_chat_template=False) == expected


def test_the_documents_of_a_folder_are_texts(tokenizer, tmp_path):
  folder = tmp_path / 'docs'
  (folder / 'deep').mkdir(parents=True)
  texts = {'testing.md': '# One\n\ntext \u2028 here', 'deep/b.txt': 'second', 'a.TXT': 'third'}
  for name, text in texts.items():
    (folder / name).write_text(text)
  (folder / 'picture.png').write_bytes(b'\x89PNG')
  in_order = [{'text': texts[name]} for name in ('a.TXT', 'deep/b.txt', 'testing.md')]
  expected = rows(write(tmp_path / 'a.jsonl', *in_order), tokenizer)
  assert rows(folder, tokenizer) == expected
  # Beside other data they are no data.
  write(folder / 'data.jsonl', {'text': 'the only one'})
  assert rows(folder, tokenizer) == rows(write(tmp_path / 'b.jsonl', {'text': 'the only one'}), tokenizer)


@pytest.mark.parametrize(
  'name, content, message',
  [
    ('a.csv', b'text\n\xff\n', 'is not UTF-8 at byte 5'),
    ('b.csv', b'', 'line 1: has no header'),
    ('c.csv', b'a,a\n1,2\n', "line 1: has the column 'a' more than once"),
    ('d.csv', b'text\n"a\nb"\nc,d\n', 'line 4: has more cells than the header; quote commas in texts'),
    ('e.md', b'ab\xff', 'is not UTF-8 at byte 2'),
  ],
)
def test_a_damaged_table_or_document_is_named(tokenizer, tmp_path, name, content, message):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(errors.UserError) as error:
    rows(tmp_path / name, tokenizer)
  assert f'{tmp_path / name}' in str(error.value) and message in str(error.value)
