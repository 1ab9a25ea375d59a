"""Which text a record makes, and which part is learned: marks of turns, templates that think, pairs of public sets."""

import json
import os

from absl import logging
import numpy as np
import pytest

from official_ext.base import errors
from official_ext.data import numbered_records
from official_ext.language.fine_tuning import fine_tuning_config
from official_ext.language.fine_tuning import task as task_lib
from official_ext.language.text import text_formats
from official_ext.language.text import text_sources
from official_ext.language.text import text_task
from official_ext.language.text import token_rows
from official_ext.language.text import tokenizer as tokenizer_lib
from tests.language.text import text_fixtures

cache, tokenizer = text_fixtures.cache, text_fixtures.tokenizer

# Its generation prompt is no beginning of an answer, and thoughts are taken away, as in DeepSeek-R1-Distill.
THINKING = (
  "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}{% else %}<|im_start|>bot:"
  "{{ m.content.split('</think>')[-1] }}<|im_end|>{% endif %}{% endfor %}"
  '{% if add_generation_prompt %}<|im_start|>bot:<think>\n{% endif %}'
)
# Earlier answers are written otherwise, as in Qwen3.
FORGETFUL = (
  '{% for m in messages %}<|im_start|>{{ m.role }}\n'
  "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
  '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'
)


def user(text):
  return {'role': 'user', 'content': text}


def says(text, **marks):
  return {'role': 'assistant', 'content': text, **marks}


def read(folder, tokenizer, record, **fields):
  """(text, learned text) of the first row of a record."""
  path = folder / 'records.jsonl'
  path.write_text(json.dumps(record) + '\n')
  fields = {'seq_length': 256, 'use_chat_template': True, 'is_training': True, **fields}
  source = text_sources.open_source(text_task.TextDataConfig(input_path=str(path), **fields), tokenizer)
  row = source.fetch([0])[0]
  prefix = 'chosen_' if 'chosen_labels' in row else ''
  ids, labels, segments = (row[f'{prefix}{name}'] for name in ('input_ids', 'labels', 'segment_ids'))
  return tokenizer.decode(ids[segments > 0]), tokenizer.decode([label for label in labels if label >= 0])


@pytest.mark.parametrize('mark', [{'weight': 0}, {'loss': False}, {'train': False}, {'masked': True}, {'weight': 0.0}])
@pytest.mark.parametrize('loss_on', ['completions', 'last_completion', 'all'])
def test_a_turn_that_is_marked_is_not_learned(tokenizer, tmp_path, mark, loss_on):
  messages = [user('Hi.'), says('Wrong.', **mark), user('Well?'), says('Right.', **dict.fromkeys(mark))]
  text, learned = read(tmp_path, tokenizer, {'messages': messages}, loss_on=loss_on)
  assert 'Wrong.' in text and 'Wrong.' not in learned and 'Right.<|im_end|>' in learned
  assert ('Well?' in learned) == (loss_on == 'all')
  prompt, answer = messages[:1], messages[1:]
  learned = read(tmp_path, tokenizer, {'prompt': prompt, 'completion': answer}, loss_on='completions')[1]
  assert 'Wrong.' not in learned and 'Right.' in learned
  names = {'user': 'human', 'assistant': 'gpt'}
  turns = [{'from': names[m.pop('role')], 'value': m.pop('content'), **m} for m in map(dict, messages)]
  learned = read(tmp_path, tokenizer, {'conversations': turns}, example_format='sharegpt')[1]
  assert 'Wrong.' not in learned and 'Right.' in learned


def test_other_marks_and_no_turn_to_learn_are_refused(tokenizer, tmp_path):
  with pytest.raises(errors.UserError, match='message 1: weight: 0.5: expected 1, or 0 for a turn to leave out'):
    read(tmp_path, tokenizer, {'messages': [user('Hi.'), says('Yes.', weight=0.5)]})
  with pytest.raises(
    errors.UserError, match='no turn of the assistant to learn from: weight, .* leave all of them out'
  ):
    read(tmp_path, tokenizer, {'messages': [user('Hi.'), says('Yes.', weight=0)]})


def test_a_marked_turn_of_the_user_is_refused(tokenizer, tmp_path):
  with pytest.raises(errors.UserError, match='message 0: train: True: only turns of the assistant are learned'):
    read(tmp_path, tokenizer, {'messages': [{**user('Hi.'), 'train': True}, says('Yes.', train=True)]})


def test_tokens_of_marked_turns_are_not_taken_from_an_older_cache(tokenizer):
  """Its key has the revision, which is 0 for all other records: their tokens stay in the cache."""
  data = text_task.TextDataConfig(seq_length=64, use_chat_template=True)
  for answer, revision in ((says('Yes.', weight=0), 1), (says('Yes.', weight=None), 0), (says('Yes.'), 0)):
    records = numbered_records.ListRecords([{'messages': [user('Hi.'), answer, user('And?'), says('No.')]}])
    assert text_formats.TextFormat(data, tokenizer, records, 'x').revision == revision


@pytest.mark.parametrize('loss_on', ['completions', 'last_completion', 'all'])
def test_an_answer_that_does_not_begin_with_the_generation_prompt_is_learned(tokenizer, tmp_path, loss_on):
  words = tokenizer.with_chat_template(THINKING)
  for answer in ('Yes.', '<p>Yes.', '<think>Hm.</think>Yes.'):
    shown = answer.split('</think>')[-1]
    text, learned = read(tmp_path, words, {'messages': [user('Hi.'), says(answer)]}, loss_on=loss_on)
    assert text == f'<|im_start|>Hi.<|im_start|>bot:{shown}<|im_end|>'
    assert learned == (text.removeprefix('<|im_start|>') if loss_on == 'all' else f'{shown}<|im_end|>')
    text, learned = read(tmp_path, words, {'prompt': 'Hi.', 'completion': answer}, loss_on='completions')
    assert learned == f'{shown}<|im_end|>'


def test_all_of_a_conversation_is_learned_wherever_its_answers_are(tokenizer, tmp_path):
  words = tokenizer.with_chat_template(FORGETFUL)
  record = {'messages': [user('Hi.'), says('One.'), user('And?'), says('Two.')]}
  text, learned = read(tmp_path, words, record, loss_on='all')
  assert text.count('<think>') == 1 and learned == text.removeprefix('<|im_start|>')
  assert read(tmp_path, words, record, loss_on='last_completion')[1] == '<think></think>Two.<|im_end|>\n'
  with pytest.raises(errors.UserError, match='or take loss_on=last_completion or loss_on=all'):
    read(tmp_path, words, record)


def test_a_prompt_that_both_answers_repeat_stands_there_once(tokenizer, tmp_path):
  pair = {'prompt': 'Which?', 'chosen': [user('Which?'), says('This.')], 'rejected': [user('Which?'), says('That.')]}
  expected = read(
    tmp_path, tokenizer, {name: pair[name] for name in ('chosen', 'rejected')}, example_format='preference'
  )
  assert read(tmp_path, tokenizer, pair, example_format='preference') == expected
  assert expected[0].count('Which?') == 1 and expected[1] == 'This.<|im_end|>\n'
  for record, message in (
    (
      {**pair, 'prompt': 'Other?'},
      "column 'prompt' is a text, and the answers begin with other turns; drop the column",
    ),
    ({**pair, 'prompt': [user('Which?')]}, "column 'chosen' begins with the prompt, which would be there twice"),
  ):
    with pytest.raises(errors.UserError, match=message):
      read(tmp_path, tokenizer, record, example_format='preference')
  with pytest.raises(errors.UserError, match="column 'completion' begins with the prompt"):
    read(tmp_path, tokenizer, {'prompt': 'Which?', 'completion': pair['chosen']})


def test_columns_that_other_trainers_read_are_reported(tokenizer, tmp_path, monkeypatch):
  said = []
  monkeypatch.setattr(logging, 'warning', lambda form, *values: said.append(form % values))
  record = {
    'messages': [user('Hi.'), says('Yes.')],
    'id': 3,
    'margin': 1.5,
    'images': [],
    'chat_template_kwargs': {'a': 1},
  }
  read(tmp_path, tokenizer, record)
  assert [line.split('the column ')[1] for line in said if 'the column' in line] == [
    "'margin' is read by other trainers, and not here; drop it",
    "'chat_template_kwargs' is read by other trainers, and not here; drop it",
  ]


@pytest.mark.parametrize('loss_on', ['completions', 'last_completion', 'all'])
def test_the_end_of_answers_is_the_token_that_closes_them(tokenizer, tmp_path, loss_on):
  path = tmp_path / 'x.jsonl'
  record = json.dumps({'messages': [user('Hi.'), says('One.'), user('And?'), says('Two <|im_start|> three.')]})
  path.write_text(f'{record}\n' * 3)
  ends, plain = tokenizer.token_id('<|im_end|>'), tokenizer.token_id('<|endoftext|>')
  for packing in ('none', 'best_fit'):
    data = text_task.TextDataConfig(
      input_path=str(path), seq_length=200, use_chat_template=True, loss_on=loss_on, packing=packing, is_training=True
    )
    source = text_sources.open_source(data, tokenizer)
    found = token_rows.learned_ends(source.fetch(range(len(source))), tokenizer)
    assert set(found) == {ends} and found[ends] == (6 if loss_on == 'completions' else 3)
  path.write_text('{"text": "One."}\n')
  for append_eos, expected in ((True, plain), (False, None)):
    data = text_task.TextDataConfig(input_path=str(path), seq_length=64, append_eos=append_eos)
    source = text_sources.open_source(data, tokenizer)
    assert set(token_rows.learned_ends(source.fetch([0]), tokenizer)) == {expected}


def fine_tuning(tokenizer, folder, path, **fields):
  """A task on a new decoder with a tokenizer of a folder."""
  tokenizer.save(str(folder / 'tokenizer'))
  decoder = dict(vocab_size=512, hidden_size=16, intermediate_size=16, num_hidden_layers=1, max_position_embeddings=128)
  data = {'input_path': str(path), 'seq_length': 64, 'global_batch_size': 2}
  config = {'model': decoder, 'tokenizer_path': str(folder / 'tokenizer'), 'train_data': data, **fields}
  return task_lib.FineTuningTask(fine_tuning_config.FineTuningConfig(config), logging_dir=str(folder / 'run'))


def test_the_result_stops_where_the_answers_end(tokenizer, tmp_path):
  (tmp_path / 'x.jsonl').write_text(json.dumps({'messages': [user('Hi.'), says('One.')]}) + '\n')
  task = fine_tuning(tokenizer, tmp_path, tmp_path / 'x.jsonl')
  ends, base = tokenizer.token_id('<|im_end|>'), tokenizer.eos_token_id
  assert task.tokenizer.stop_token_ids == (base,) and task.learned_ends == (ends,)
  assert task.end_note() == (
    f'warning: end: the answers to learn end with <|im_end|> ({ends}), and the base stops at <|endoftext|> ({base}) '
    'alone; the result stops at both, by its generation_config.json'
  )
  folder = task.save_result(task.build_model())['model']
  with open(os.path.join(folder, 'generation_config.json')) as f:
    assert json.load(f)['eos_token_id'] == [ends, base]
  assert set(tokenizer_lib.Tokenizer.load(folder).stop_token_ids) == {ends, base}
  (tmp_path / 'x.jsonl').write_text('{"text": "One."}\n')
  task = fine_tuning(tokenizer, tmp_path, tmp_path / 'x.jsonl', output_dir=str(tmp_path / 'other'))
  assert task.end_note() == '' and task.result_tokenizer.stop_token_ids == (base,)
  assert not os.path.exists(os.path.join(task.save_result(task.build_model())['model'], 'generation_config.json'))


def test_held_out_examples_that_training_has_too_are_counted(tokenizer, tmp_path, monkeypatch):
  said = []
  monkeypatch.setattr(logging, 'warning', lambda form, *values: said.append(form % values))
  for number, (texts, shared) in enumerate((([*'abcdefghij'], 0), ([*'abcdefghia'], 1), ([*'aaaaaaaaaa'], 2))):
    path = tmp_path / f'{number}.jsonl'
    path.write_text(''.join(json.dumps({'text': text, 'id': n}) + '\n' for n, text in enumerate(texts)))
    task = fine_tuning(tokenizer, tmp_path, path, validation_share=0.2)
    task.source(task.config.train_data)
    lines = [line for line in said if 'also in training' in line]
    assert [line[: line.index(' held-out')] for line in lines] == (
      [f'task.validation_share: {shared} of 2'] if shared else []
    )
    said.clear()


def test_digests_are_equal_for_equal_examples_alone(tokenizer, tmp_path):
  rng = np.random.default_rng(0)
  texts = [''.join(rng.choice(['a', 'b', ' '], rng.integers(1, 6))) + '.' for _ in range(300)]
  path = tmp_path / 'x.jsonl'
  path.write_text(''.join(json.dumps({'text': text}) + '\n' for text in texts))
  source = text_sources.open_source(text_task.TextDataConfig(input_path=str(path), seq_length=64), tokenizer)
  digests = text_sources.example_digests(source)
  assert len(set(zip(texts, digests.tolist()))) == len(set(texts)) == len(set(digests.tolist()))
