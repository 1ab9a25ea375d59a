"""Text as rows of tokens: which tokens, which of them are learned, cuts and their reports, how rows are filled."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.data import numbered_records
from official_ext.data import pipelines
from official_ext.data import step_indexed
from official_ext.language.text import python_topics
from official_ext.language.text import text_sources
from official_ext.language.text import text_task
from official_ext.language.text import token_store
from official_ext.language.text import tokenizer as tokenizer_lib
from tests import tiers
from tests.language.text import hugging_face_folders as folders
from tests.language.text import text_fixtures

MARKED = folders.CHATML.replace("+ message.content + '<|im_end|>\n' }}", '}}').replace(
  '{% endfor %}',
  "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
  "{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}",
)
TURNS = [
  {'role': 'user', 'content': 'Hi'},
  {'role': 'assistant', 'content': 'Hello ü'},
  {'role': 'user', 'content': 'Bye'},
  {'role': 'assistant', 'content': 'Ciao'},
]


cache, tokenizer = text_fixtures.cache, text_fixtures.tokenizer


@pytest.fixture(scope='module')
def with_bos(tmp_path_factory):
  """A tokenizer that puts a token in front of each text."""
  return tokenizer_lib.Tokenizer.load(str(folders.llama3(tmp_path_factory.mktemp('llama3'))))


def config(**fields):
  fields = {'is_training': True, 'global_batch_size': 2, 'seq_length': 64, **fields}
  found = text_task.TextDataConfig(**fields)
  found.check_values('task.train_data')
  return found


def open_list(records, tokenizer, **fields):
  return text_sources.open_source(config(**fields), tokenizer, numbered_records.ListRecords(records))


def learned(row, tokenizer, prefix=''):
  """The text that a loss is on."""
  return tokenizer.decode(row[f'{prefix}labels'][row[f'{prefix}labels'] != -100])


def seen(row, tokenizer, prefix=''):
  return tokenizer.decode(row[f'{prefix}input_ids'][row[f'{prefix}segment_ids'] > 0])


# One text in a row.


def test_a_text_is_learned_but_for_its_first_token_and_ends_with_the_token_for_it(tokenizer):
  (row,) = open_list([{'text': 'A naïve text.'}], tokenizer).fetch([0])
  ids = tokenizer.encode('A naïve text.') + [tokenizer.eos_token_id]
  n = len(ids)
  assert row['input_ids'].tolist() == ids + [tokenizer.pad_token_id] * (64 - n)
  assert row['labels'].tolist() == [-100, *ids[1:]] + [-100] * (64 - n)
  assert row['segment_ids'].tolist() == [1] * n + [0] * (64 - n)
  assert row['position_ids'].tolist() == [*range(n)] + [0] * (64 - n)
  assert {array.dtype for array in row.values()} == {np.dtype(np.int32)}


def test_only_the_completion_is_learned(tokenizer, with_bos):
  record = {'prompt': 'Say ü: ', 'completion': 'ü it is'}
  for model in (tokenizer, with_bos):
    (row,) = open_list([record], model).fetch([0])
    start = [] if model is tokenizer else [model.bos_token_id]
    assert learned(row, model) == 'ü it is' + model.special_tokens['eos_token']
    assert row['input_ids'][: row['segment_ids'].sum()].tolist() == [
      *start,
      *model.encode('Say ü: ü it is', False),
      model.eos_token_id,
    ]
    (row,) = open_list([record], model, append_eos=False).fetch([0])
    assert learned(row, model) == 'ü it is'
    (row,) = open_list([record], model, loss_on='all', append_eos=False).fetch([0])
    assert learned(row, model).endswith('ay ü: ü it is')


def test_a_token_that_reaches_from_the_prompt_into_the_completion_is_learned_and_reported(tokenizer, caplog):
  """The tokens are those of the whole text: `the` is one, wherever the prompt ends in it."""
  assert len(tokenizer.encode(' the')) == 1
  (row,) = open_list([{'prompt': 'a t', 'completion': 'he b'}], tokenizer, append_eos=False).fetch([0])
  assert learned(row, tokenizer) == ' the b'
  assert 'task.train_data: in 1 texts a token begins in the prompt and ends in the output' in caplog.text
  assert open_list([{'prompt': 'a', 'completion': ' the b'}], tokenizer).report.joined_ends == 0


@pytest.mark.parametrize('template', ['plain', 'marked'])
@pytest.mark.parametrize(
  'loss_on, expected',
  [
    ('completions', 'Hello ü<|im_end|>\nCiao<|im_end|>\n'),
    ('last_completion', 'Ciao<|im_end|>\n'),
    ('all', None),
  ],
)
def test_turns_of_the_assistant_are_learned(tokenizer, template, loss_on, expected):
  model = tokenizer.with_chat_template(MARKED) if template == 'marked' else tokenizer
  (row,) = open_list([{'messages': TURNS}], model, loss_on=loss_on).fetch([0])
  text = tokenizer.apply_chat_template(TURNS)
  assert seen(row, model) == text
  if expected is None:
    assert learned(row, model) == text.removeprefix('<|im_start|>')
  else:  # The tag leaves the line's end out.
    assert learned(row, model) == (expected.replace('\n', '') if template == 'marked' else expected)


def test_marks_are_the_assistant_masks_of_transformers(tokenizer, tmp_path, monkeypatch):
  monkeypatch.setenv('HF_HUB_OFFLINE', '1')
  import transformers  # pylint: disable=g-import-not-at-top

  model = tokenizer.with_chat_template(MARKED)
  model.save(str(tmp_path))
  theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
  expected = theirs.apply_chat_template(TURNS, return_assistant_tokens_mask=True, return_dict=True)
  (row,) = open_list([{'messages': TURNS}], model).fetch([0])
  n = len(expected['input_ids'])
  assert row['input_ids'][:n].tolist() == expected['input_ids'] and not row['segment_ids'][n:].any()
  assert (row['labels'][:n] != -100).astype(int).tolist() == expected['assistant_masks']


def test_a_template_that_rewrites_earlier_turns_is_refused(tokenizer):
  content = "{{ m.content if loop.last or m.role == 'user' else m.content[:2] }}"  # As Qwen3 drops old thoughts.
  template = '{% for m in messages %}{{ m.role }}:' + content + '|{% endfor %}'
  model = tokenizer.with_chat_template(template)
  with pytest.raises(errors.UserError, match=r'^task.train_data: record 0: the chat template writes the turns before'):
    open_list([{'messages': TURNS}], model)
  (row,) = open_list([{'messages': TURNS}], model, loss_on='last_completion').fetch([0])
  assert seen(row, model) == 'user:Hi|assistant:He|user:Bye|assistant:Ciao|'
  assert learned(row, model) == 'assistant:Ciao|'


def test_texts_become_turns_where_that_is_asked_for(tokenizer):
  record = {'q': 'Hi', 'a': 'Hello'}
  names = {'prompt_column': 'q', 'output_column': 'a', 'example_format': 'prompt_output'}
  (row,) = open_list([record], tokenizer, use_chat_template=True, system_prompt='Be nice.', **names).fetch([0])
  turns = [
    {'role': 'system', 'content': 'Be nice.'},
    {'role': 'user', 'content': 'Hi'},
    {'role': 'assistant', 'content': 'Hello'},
  ]
  assert seen(row, tokenizer) == tokenizer.apply_chat_template(turns)
  assert learned(row, tokenizer) == 'Hello<|im_end|>\n'
  lists = {'q': turns[:2], 'a': turns[2:]}
  (again,) = open_list([lists], tokenizer, **names).fetch([0])
  np.testing.assert_array_equal(again['input_ids'], row['input_ids'])


def test_tools_reach_the_template(tokenizer):
  model = tokenizer.with_chat_template('{% if tools %}{{ tools[0].name }}:{% endif %}' + folders.CHATML)
  for tools in ([{'name': 'f'}], '[{"name": "f"}]'):
    (row,) = open_list([{'messages': TURNS, 'tools': tools}], model).fetch([0])
    assert seen(row, model).startswith('f:<|im_start|>')
  (row,) = open_list([{'messages': TURNS, 'tools': None}], model).fetch([0])
  assert seen(row, model).startswith('<|im_start|>')


def test_a_template_from_a_file(tokenizer, tmp_path):
  file = tmp_path / 'a [template].jinja'
  file.write_text('{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}')
  (row,) = open_list([{'messages': TURNS[:2]}], tokenizer, chat_template_path=str(file)).fetch([0])
  assert seen(row, tokenizer) == '[user]Hi[assistant]Hello ü'
  with pytest.raises(errors.UserError, match=r'task.train_data.chat_template_path: .*/none: cannot be read: No such'):
    open_list([{'messages': TURNS}], tokenizer, chat_template_path=str(tmp_path / 'none'))


def test_preferences_have_a_chosen_and_a_rejected_answer(tokenizer):
  texts = {'prompt': 'Q:\n', 'chosen': 'good', 'rejected': 'bad one'}
  turns = {'chosen': TURNS[:2], 'rejected': [TURNS[0], {'role': 'assistant', 'content': 'No'}]}
  end = '<|endoftext|>'
  for record, chosen, rejected in (
    (texts, 'good' + end, 'bad one' + end),
    (turns, 'Hello ü<|im_end|>\n', 'No<|im_end|>\n'),
  ):
    (row,) = open_list([record], tokenizer, example_format='preference').fetch([0])
    assert learned(row, tokenizer, 'chosen_') == chosen
    assert learned(row, tokenizer, 'rejected_') == rejected
    same = seen(row, tokenizer, 'chosen_').removesuffix(chosen)
    assert same and same == seen(row, tokenizer, 'rejected_').removesuffix(rejected)
  with pytest.raises(errors.UserError, match="record 0: there is no 'prompt', and the answers do not begin with"):
    open_list([{'chosen': TURNS, 'rejected': TURNS[1:]}], tokenizer, example_format='preference')


def test_unpaired_answers_have_a_label(tokenizer):
  records = [
    {'prompt': 'Q:\n', 'completion': 'good', 'label': True},
    {'prompt': TURNS[:1], 'completion': [{'role': 'assistant', 'content': 'No'}], 'label': 0},
  ]
  source = open_list(records, tokenizer, example_format='unpaired')
  rows = source.fetch([0, 1])
  assert [learned(row, tokenizer) for row in rows] == ['good<|endoftext|>', 'No<|im_end|>\n']
  assert [row['is_desirable'].tolist() for row in rows] == [1, 0]
  assert source.summary().endswith('; 1 of 2 answers are desirable')
  renamed = [{'prompt': 'Q', 'completion': 'A', 'good': False}]
  assert (
    open_list(renamed, tokenizer, example_format='unpaired', label_column='good').fetch([0])[0]['is_desirable'] == 0
  )
  pair = [{'prompt': 'Q:\n', 'chosen': 'good', 'rejected': 'bad'}]
  rows = open_list(pair, tokenizer, example_format='unpaired').fetch([0, 1])
  assert [(learned(row, tokenizer), int(row['is_desirable'])) for row in rows] == [
    ('good<|endoftext|>', 1),
    ('bad<|endoftext|>', 0),
  ]
  for label in ('true', None, 0.5):
    with pytest.raises(errors.UserError, match=f"record 0: column 'label' holds '{label}'; expected true or false"):
      open_list([{'prompt': 'Q', 'completion': 'A', 'label': label}], tokenizer, example_format='unpaired')


def test_answers_with_labels_are_not_learned_unasked(tokenizer):
  answer = {'prompt': 'Q:\n', 'completion': 'bad'}
  for label in (False, True, 0):
    with pytest.raises(errors.UserError, match='^.*example_format: record 0 has the columns prompt, completion, label'):
      open_list([{**answer, 'label': label}], tokenizer)
  with pytest.raises(
    errors.UserError, match="drop 'good' or the undesirable records, or set example_format=prompt_out"
  ):
    open_list([{**answer, 'good': False}], tokenizer, label_column='good')
  for record in ({**answer, 'label': 'positive'}, {**answer, 'good': False}):  # Another label, and another column.
    assert learned(open_list([record], tokenizer).fetch([0])[0], tokenizer) == 'bad<|endoftext|>'
  asked = open_list([{**answer, 'label': False}], tokenizer, example_format='prompt_output')
  assert learned(asked.fetch([0])[0], tokenizer) == 'bad<|endoftext|>'


def test_prompts_stand_at_the_right_end_and_know_their_record(with_bos):
  records = [{'prompt': '', 'answer': '0'}, {'prompt': '1 + 1 =', 'answer': '2'}]
  source = open_list(records, with_bos, example_format='prompt', seq_length=16)
  assert len(source) == source.report.without_loss == 1
  row = source.fetch([0])[0]
  ids = with_bos.encode('1 + 1 =')
  n = len(ids)
  assert row['input_ids'].tolist() == [with_bos.fill_token_id] * (16 - n) + ids
  assert row['segment_ids'].tolist() == [0] * (16 - n) + [1] * n
  assert row['position_ids'].tolist() == [0] * (16 - n) + [*range(n)]
  assert 'labels' not in row and source.record(row['record'])['answer'] == '2'
  source = open_list([{'prompt': TURNS[:1]}], with_bos, example_format='prompt')
  assert seen(source.fetch([0])[0], with_bos) == with_bos.apply_chat_template(TURNS[:1], True)


# Records that are cut, left out and reported.


def test_cuts_are_counted_and_reported(with_bos, caplog):
  """Five prompts of 1 + p tokens and answers of a + 1 (the end): `x` and digits are tokens of a byte each."""
  sizes = [(2, 2), (9, 2), (2, 9), (9, 9), (5, 4)]
  records = [{'prompt': '\x00' * p, 'completion': '\x01' * a} for p, a in sizes]
  one = len(with_bos.encode('\x00', False)) == len(with_bos.encode('\x01', False)) == 1
  assert one and len(with_bos.encode('\x00' * 9, False)) == 9
  limits = {'max_input_length': 6, 'max_content_length': 5, 'seq_length': 10}
  source = open_list(records, with_bos, **limits)
  report = source.report
  # Prompts of 10 tokens keep 6; answers of 10 keep 5; 6 + 5 of the fourth and of the last are one too many.
  assert (report.cut_prompts, report.cut_prompt_tokens) == (2, 2 * 4)
  assert (report.cut_contents, report.cut_content_tokens) == (2, 2 * 5)
  assert (report.cut_texts, report.cut_text_tokens) == (2, 2 * 1)
  total = sum(p + a + 2 for p, a in sizes)
  assert report.tokens == total - report.lost_tokens == sum(row['segment_ids'].sum() for row in source.fetch(range(5)))
  row = source.fetch([1])[0]
  zero = with_bos.encode('\x00', False)[0]
  assert row['input_ids'][:6].tolist() == [with_bos.bos_token_id] + [zero] * 5  # The beginning stays.
  assert learned(source.fetch([2])[0], with_bos) == '\x01' * 5
  logged = [record.getMessage() for record in caplog.records]
  assert logged == [
    f'task.train_data.max_input_length: 2 prompts were cut, and 8 of {total} tokens lost',
    f'task.train_data.max_content_length: 2 outputs were cut, and 10 of {total} tokens lost',
    f'task.train_data.seq_length: 2 texts were cut, and 2 of {total} tokens lost',
  ]
  assert source.identity()['num_tokens_cut'] == 20


def test_the_end_of_a_prompt_is_kept(tokenizer):
  source = open_list([{'prompt': 'abcdef', 'completion': 'x'}], tokenizer, max_input_length=2)
  kept = tokenizer.decode(tokenizer.encode('abcdefx')[-3:])
  assert seen(source.fetch([0])[0], tokenizer) == kept + '<|endoftext|>'


def test_records_with_nothing_to_learn_are_left_out_and_reported(tokenizer, caplog):
  records = [{'text': ''}, {'text': 'ab c'}, {'text': ''}]
  source = open_list(records, tokenizer, append_eos=False)
  assert (len(source), source.report.without_loss) == (1, 2) and 'record 1' in source.describe(0)
  assert 'task.train_data: 2 of 3 records have nothing to learn, and are left out' in caplog.text
  long = [{'prompt': 'a ' * 50, 'completion': 'b'}, {'prompt': 'a', 'completion': 'b'}]
  source = open_list(long, tokenizer, seq_length=8)
  assert (len(source), source.report.without_loss, source.report.cut_texts) == (1, 1, 1)
  with pytest.raises(errors.UserError, match='^task.train_data: none of the 1 records can be used$'):
    open_list(long[:1], tokenizer, seq_length=8)


CHAT = {'prompt': [{'role': 'user', 'content': 'a'}], 'completion': [{'role': 'assistant', 'content': 'b'}]}
BAD = [
  ('{"prompt": "a"}', "column 'completion' is missing"),
  ('{"prompt": "a", "completion": null}', "column 'completion' is null"),
  ('{"prompt": "a", "completion": ""}', "column 'completion' is empty"),
  ('{"prompt": "a", "completion": " \\n"}', "column 'completion' is empty"),
  ('{"prompt": "a", "completion": 3}', "column 'completion' holds 3; expected a text or a list of messages"),
  ('{"prompt": "a", "completion": "\\ud83d"}', 'half of a surrogate pair at character 1'),
  ('{"prompt": [{"content": "a"}], "completion": "b"}', "column 'prompt' holds no list of messages"),
  ('{"prompt": "a", ', 'is invalid JSON: '),
  (json.dumps({**CHAT, 'tools': '[' * 100_000}), 'RecursionError: '),
  (
    json.dumps({**CHAT, 'completion': '[' * 100_000}).replace('"[', '[').replace('["', '[' + ']' * 99_999),
    'is invalid JSON',
  ),
]


@pytest.mark.parametrize('line, message', BAD)
def test_a_bad_record_is_named_with_its_line(tokenizer, tmp_path, line, message):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"prompt": "good", "completion": "one"}\n\n' + line + '\n')
  with pytest.raises(bad_examples.BadExampleError) as error:
    text_sources.open_source(config(input_path=str(path)), tokenizer)
  assert str(error.value).startswith(f'task.train_data: {path}, line 3: {message}')
  assert str(error.value).endswith('; repair or replace it, or set task.train_data.on_bad_example=skip')
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('text', ['3', '1.5', 'true', 'null', '"a"', '{"role": "user"}', '[3]'])
def test_a_text_that_is_json_and_no_list_of_messages_is_a_bad_record(tokenizer, text):
  good = json.dumps([{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b'}])
  records = [{'messages': good}, {'messages': text}]
  with pytest.raises(bad_examples.BadExampleError, match="record 1: column 'messages' holds no list of messages"):
    open_list(records, tokenizer)
  assert open_list(records, tokenizer, on_bad_example='skip').report.bad_records == 1


USER, CALL = {'role': 'user', 'content': 'Hi'}, {'type': 'function', 'function': {'name': 'f', 'arguments': {}}}
EMPTY_TURNS = [
  {'content': ''},
  {'content': ' \n\t '},
  {'content': None},
  {},
  {'content': [{'type': 'text', 'text': ' '}]},
  {'content': '', 'tool_calls': []},
  {'content': ' ', 'reasoning_content': ' '},
]
FILLED_TURNS = [
  {'content': ' x'},
  {'content': '', 'tool_calls': [CALL]},
  {'content': '', 'reasoning_content': 'It is so.'},
  {'content': '', 'thinking': 'It is so.'},
]
# A template that takes everything, so that nothing but the rule refuses.
TOLERANT = '{% for m in messages %}{{ m.role }}:{{ m.content or "" }}{{ m.reasoning_content }}|{% endfor %}'


@pytest.mark.parametrize('marks', [False, True])
@pytest.mark.parametrize('kind', ['messages', 'last', 'completion', 'chosen', 'rejected'])
def test_a_turn_of_the_assistant_that_is_empty_is_refused_as_an_empty_completion_is(tokenizer, kind, marks):
  template = TOLERANT.replace('{{ m.content', '{% generation %}{{ m.content').replace('|', '|{% endgeneration %}')
  model = tokenizer.with_chat_template(template if marks else TOLERANT)
  good = [{'role': 'assistant', 'content': 'Yes.'}]

  def open_turn(turn):
    turn = {'role': 'assistant', **turn}
    fields = {'example_format': 'preference'} if kind in ('chosen', 'rejected') else {}
    if kind == 'messages':
      record = {'messages': [USER, turn, USER, *good]}
    elif kind == 'last':
      fields = {'loss_on': 'last_completion'}
      record = {'messages': [USER, *good, USER, turn]}
    elif kind == 'completion':
      record = {'prompt': [USER], 'completion': [*good, USER, turn]}
    else:
      record = {'prompt': [USER], 'chosen': good, 'rejected': [*good, USER, *good], kind: [turn]}
    return open_list([record], model, **fields)

  for turn in EMPTY_TURNS:
    with pytest.raises(bad_examples.BadExampleError, match="^task.train_data: record 0: column '[a-z]+'.* is empty; "):
      open_turn(turn)
  for turn in FILLED_TURNS:
    assert len(open_turn(turn)) == 1


@pytest.mark.parametrize('use_chat_template', [False, True])
@pytest.mark.parametrize('column', ['completion', 'chosen', 'rejected'])
def test_an_answer_of_blanks_is_refused_as_an_empty_one_is(tokenizer, column, use_chat_template):
  fields = {'use_chat_template': use_chat_template, 'example_format': 'prompt_output'}
  if column != 'completion':
    fields['example_format'] = 'preference'
  for answer in ('', ' \n'):
    record = {'prompt': 'a', 'completion': 'b', 'chosen': 'c', 'rejected': 'd', column: answer}
    with pytest.raises(bad_examples.BadExampleError, match=f"record 0: column '{column}' is empty; repair"):
      open_list([record], tokenizer, **fields)
    source = open_list([record, {**record, column: 'x'}], tokenizer, **fields, on_bad_example='skip')
    assert (len(source), source.report.bad_records) == (1, 1)


def test_an_empty_turn_that_is_not_learned_may_stay(tokenizer):
  empty, good = {'role': 'assistant', 'content': ''}, {'role': 'assistant', 'content': 'Yes.'}
  model = tokenizer.with_chat_template(TOLERANT)
  assert len(open_list([{'messages': [USER, empty, USER, good]}], model, loss_on='last_completion')) == 1
  assert len(open_list([{'prompt': [USER, empty, USER], 'completion': [good]}], model)) == 1
  prompts = open_list([{'prompt': [USER, empty, USER]}], model, example_format='prompt', packing='none')
  assert len(prompts) == 1


def test_bad_records_are_left_out_where_that_is_asked_for(tokenizer, tmp_path, caplog):
  path = tmp_path / 'a.jsonl'
  good = '{"prompt": "good", "completion": "one"}'
  path.write_text('\n'.join([good, *(line for line, _ in BAD), good]))
  source = text_sources.open_source(config(input_path=str(path), on_bad_example='skip'), tokenizer)
  assert (len(source), source.report.bad_records) == (2, len(BAD))
  assert source.describe(1) == f'row 1 ({path}, line {len(BAD) + 2})'
  assert (
    f'task.train_data: {len(BAD)} of {len(BAD) + 2} records are bad, and are left out: {path}, line 2: column'
    in caplog.text
  )


@pytest.mark.parametrize(
  'record, fields, message',
  [
    ({'x': 'a'}, {'example_format': 'text'}, "train_data.text_column: record 0 has no column 'text'; there are x"),
    ({'text': 'a'}, {'text_column': 'tex', 'example_format': 'text'}, "has no column 'tex'; did you mean text"),
    (
      {'a': 'a'},
      {},
      'example_format: record 0 has the columns a; expected messages, or prompt and completion, or text',
    ),
    (
      {'prompt': 'a'},
      {'example_format': 'prompt', 'packing': 'none', 'use_chat_template': True},
      'has no chat template',
    ),
  ],
)
def test_columns_and_templates_that_are_missing_are_named(tmp_path, record, fields, message):
  bare = tokenizer_lib.Tokenizer.load(str(folders.write(tmp_path, folders.byte_level(), {})))
  with pytest.raises(errors.UserError) as error:
    open_list([record], bare, **fields)
  assert message in str(error.value)


def test_values_that_make_no_sense_are_refused():
  for fields, message in (
    ({'max_samples': 0}, 'data.max_samples: expected -1 for all, or at least 1, got 0'),
    ({'packing': 'wrapped', 'example_format': 'prompt'}, 'data.packing: wrapped: rows of data.example_format=prompt'),
  ):
    with pytest.raises(errors.UserError) as error:
      text_task.TextDataConfig(**fields).check_values('data')
    assert str(error.value).startswith(message)


def test_max_samples_takes_the_first_records(tokenizer, tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text(''.join(json.dumps({'text': f'number {n}'}) + '\n' for n in range(20)))
  source = text_sources.open_source(config(input_path=str(path), max_samples=3), tokenizer)
  texts = [seen(row, tokenizer) for row in source.fetch(range(len(source)))]
  assert texts == [f'number {n}<|endoftext|>' for n in range(3)]
  num_tokens = sum(len(tokenizer.encode(text)) for text in texts)
  full = round(100 * num_tokens / (3 * source.fetch([0])[0]['labels'].size))
  assert source.summary() == (
    '3 of 3 records in 3 rows; dropped: none; at most 3 are read: max_samples; '
    f'{num_tokens} tokens, {num_tokens} of them to learn, in rows that are {full} % full'
  )
  assert len(open_list([{'text': 'a b'}] * 9, tokenizer, max_samples=4)) == 4


# Several texts in a row.


def documents(count=60, seed=0):
  rng = np.random.default_rng(seed)
  text = python_topics.records('train').read(0)['text']
  starts, lengths = rng.integers(0, 2000, count), rng.integers(1, 120, count)
  return [{'text': text[start : start + length] + '.'} for start, length in zip(starts, lengths)]


def parts_of(row):
  """(ids, labels, positions) of each text of a row."""
  for number in range(1, row['segment_ids'].max() + 1):
    here = row['segment_ids'] == number
    yield row['input_ids'][here], row['labels'][here], row['position_ids'][here]


def test_whole_texts_share_rows_as_if_each_were_alone(tokenizer):
  records = documents()
  alone = open_list(records, tokenizer)
  packed = open_list(records, tokenizer, packing='best_fit')
  assert len(packed) < 0.8 * len(alone)
  expected = sorted(tuple(map(tuple, part)) for row in alone.fetch(range(len(alone))) for part in parts_of(row))
  rows = packed.fetch(range(len(packed)))
  assert sorted(tuple(map(tuple, part)) for row in rows for part in parts_of(row)) == expected
  for row in rows:
    n = (row['segment_ids'] > 0).sum()
    assert (row['segment_ids'][:n] > 0).all() and (row['labels'][n:] == -100).all()
  full = next(index for index, row in enumerate(rows) if row['segment_ids'].max() > 4)
  members = packed.examples_of(full)
  named = '; '.join(f'record {member}' for member in members[:3])
  assert packed.describe(full) == f'row {full} ({named} and {len(members) - 3} more)'


@pytest.mark.parametrize('seq_length', [2, 7, 64, 5000])
def test_wrapped_texts_are_all_there_and_each_token_is_learned_once(tokenizer, seq_length):
  records = documents(20)
  source = open_list(records, tokenizer, packing='wrapped', seq_length=seq_length)
  stream, firsts = [], 0
  for record in records:
    firsts += 1
    stream += [*tokenizer.encode(record['text']), tokenizer.eos_token_id]
  rows = source.fetch(range(len(source)))
  joined = [rows[0]['input_ids'][0]]
  for row in rows:
    n = (row['segment_ids'] > 0).sum()
    assert row['input_ids'][0] == joined[-1]
    joined += row['input_ids'][1:n].tolist()
    for ids, labels, positions in parts_of(row):
      assert labels[0] == -100 and labels[1:].tolist() == ids[1:].tolist()
      assert positions.tolist() == [*range(len(ids))]
  assert joined == stream
  assert sum((row['labels'] != -100).sum() for row in rows) == len(stream) - firsts
  assert source.report.lost_tokens == 0
  assert source.report.text_bytes == sum(len(record['text'].encode()) for record in records)


@tiers.parametrize('packing', text_sources.PACKINGS, fast=1)
def test_the_batch_at_a_step_is_the_same_whether_it_is_reached_or_jumped_to(tokenizer, packing, monkeypatch):
  source = open_list(documents(), tokenizer, packing=packing)
  params = config(global_batch_size=4, packing=packing, seed=7)
  straight = list(step_indexed.build_dataset(source, params).take(40).as_numpy_iterator())
  monkeypatch.setattr(text_sources, '_open', {})  # As in another process, which reads the cache.
  again = open_list(documents(), tokenizer, packing=packing)
  assert again is not source and again.identity() == source.identity()
  with pipelines.starting_at(33) as at:
    jumped = list(step_indexed.build_dataset(again, params).take(7).as_numpy_iterator())
  assert at.honoured and len({batch['input_ids'].tobytes() for batch in straight}) > 10
  for expected, found in zip(straight[33:], jumped, strict=True):
    tf.nest.map_structure(np.testing.assert_array_equal, expected, found)


def test_replicas_share_the_batches_of_one(tokenizer):
  source = open_list(documents(), tokenizer, packing='best_fit')
  params = config(global_batch_size=4, packing='best_fit')
  (whole,) = step_indexed.build_dataset(source, params).take(1).as_numpy_iterator()
  halves = []
  for number in range(2):
    context = tf.distribute.InputContext(2, number, 2)
    halves += step_indexed.build_dataset(source, params, context).take(1).as_numpy_iterator()
  joined = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *halves)
  tf.nest.map_structure(np.testing.assert_array_equal, joined, whole)


# The cache.


def count_writes(monkeypatch):
  writes, write = [], token_store._Writer.write
  monkeypatch.setattr(token_store._Writer, 'write', lambda self, place: writes.append(place) or write(self, place))
  return writes


def test_tokens_are_made_once_and_anew_where_anything_has_changed(tokenizer, tmp_path, monkeypatch):
  path = tmp_path / 'a.jsonl'
  path.write_text('{"text": "one two three"}\n{"text": "four"}\n')
  writes = count_writes(monkeypatch)

  def opened(model=tokenizer, **fields):
    monkeypatch.setattr(text_sources, '_open', {})
    fields = {'input_path': str(path), 'cache_dir': str(tmp_path / 'cache'), **fields}
    return text_sources.open_source(config(**fields), model)

  first = opened()
  assert opened().identity() == first.identity() and len(writes) == 1
  assert isinstance(first.store.tokens, np.memmap)
  opened(packing='best_fit')  # Other rows, the same tokens.
  assert len(writes) == 1
  for number, change in enumerate(
    [{'append_eos': False}, {'max_content_length': 2}, {'seq_length': 3}, {'model': tokenizer.with_chat_template('')}],
    2,
  ):
    opened(**change)
    assert len(writes) == number, change
  path.write_text('{"text": "one two thrEE"}\n{"text": "four"}\n')
  changed = opened()
  assert len(writes) == 6 and changed.identity()['content'] != first.identity()['content']
  np.testing.assert_array_equal(first.store.tokens[:2], tokenizer.encode('one two three')[:2])


def test_an_open_source_is_the_same_one_in_this_process(tokenizer):
  assert open_list(documents(), tokenizer) is open_list(documents(), tokenizer)
  assert open_list(documents(), tokenizer) is not open_list(documents(), tokenizer, packing='wrapped')
