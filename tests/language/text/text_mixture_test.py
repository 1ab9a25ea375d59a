"""Mixtures of texts: shares, epochs, and the same batch at a step however it is reached."""

import collections
import json

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import numbered_records
from official_ext.data import pipelines
from official_ext.data import record_files
from official_ext.data import step_indexed
from official_ext.language.text import text_sources
from official_ext.language.text import text_task
from tests.language.text import text_fixtures

cache, tokenizer = text_fixtures.cache, text_fixtures.tokenizer


def config(**fields):
  found = text_task.TextDataConfig(**{'is_training': True, 'global_batch_size': 2, 'seq_length': 64, **fields})
  found.check_values('task.train_data')
  return found


def written(folder, name, count, words):
  path = folder / f'{name}.jsonl'
  path.write_text(''.join(json.dumps({'text': f'{name} {number} {"word " * words}'}) + '\n' for number in range(count)))
  return str(path)


def texts_of(batches, tokenizer):
  return [
    tokenizer.decode(row, skip_special_tokens=True).split()[:2] for batch in batches for row in batch['input_ids']
  ]


def test_a_mixture_has_the_shares_of_its_weights_and_every_row_in_an_epoch(tokenizer, tmp_path):
  paths = [written(tmp_path, 'big', 30, 3), written(tmp_path, 'small', 4, 5), written(tmp_path, 'mid', 11, 1)]
  params = config(input_path=paths, weights=(2, 1, 1), global_batch_size=5)
  source = text_sources.open_source(params, tokenizer)
  assert source.counts == [30, 15, 15] and len(source) == 60  # 30 rows are half; the others are repeated.
  found = texts_of(step_indexed.build_dataset(source, params).take(12).as_numpy_iterator(), tokenizer)
  counts = collections.Counter(map(tuple, found))
  assert {name: sum(n for (of, _), n in counts.items() if of == name) for name in ('big', 'small', 'mid')} == {
    'big': 30,
    'small': 15,
    'mid': 15,
  }
  assert [{n for (of, _), n in counts.items() if of == name} for name in ('big', 'small', 'mid')] == [
    {1}, {3, 4}, {1, 2}
  ]  # fmt: skip
  assert len({tuple(name for name, _ in found[start : start + 15]) for start in range(0, 60, 15)}) == 4
  assert 'row 3 ' in source.describe(33) and 'small' in source.describe(33)
  assert source.report.records == 45 and '15 rows of 4 (25.0 %)' in source.summary()


def test_a_step_of_a_mixture_is_the_same_whether_it_is_reached_or_jumped_to(tokenizer, tmp_path, monkeypatch):
  paths = [written(tmp_path, 'big', 30, 30), written(tmp_path, 'small', 4, 50)]
  params = config(input_path=paths, weights=(0.7, 0.3), global_batch_size=4, packing='best_fit', seed=7)
  source = text_sources.open_source(params, tokenizer)
  straight = list(step_indexed.build_dataset(source, params).take(40).as_numpy_iterator())
  monkeypatch.setattr(text_sources, '_open', {})
  again = text_sources.open_source(params, tokenizer)
  assert again is not source and again.identity() == source.identity()
  assert again.identity() != text_sources.open_source(config(input_path=paths, weights=(1, 1)), tokenizer).identity()
  json.dumps(again.identity())
  with pipelines.starting_at(33) as at:
    jumped = list(step_indexed.build_dataset(again, params).take(7).as_numpy_iterator())
  assert at.honoured
  for expected, found in zip(straight[33:], jumped, strict=True):
    tf.nest.map_structure(np.testing.assert_array_equal, expected, found)


def test_records_that_are_held_out_are_in_no_row_of_a_mixture(tokenizer, tmp_path):
  paths = [written(tmp_path, 'first', 8, 1), written(tmp_path, 'second', 5, 1)]
  records = record_files.open_records(paths)
  is_held_out = np.zeros(13, bool)
  is_held_out[[2, 9]] = True
  kept = numbered_records.DividedRecords(records, is_held_out, takes_held_out=False)
  source = text_sources.open_source(config(input_path=paths, weights=(1, 1)), tokenizer, kept)
  assert kept.division.items() <= source.identity().items()  # By which a resume and an evaluation are checked.
  assert [len(part) for part in source.parts] == [7, 4] and source.counts == [7, 7]
  rows = texts_of([{'input_ids': [source[number]['input_ids'] for number in range(len(source))]}], tokenizer)
  assert {tuple(row) for row in rows} == {
    *(('first', str(number)) for number in range(8) if number != 2),
    *(('second', str(number)) for number in range(5) if number != 1),
  }


def test_prompts_of_a_mixture_name_their_records(tokenizer, tmp_path):
  paths = []
  for name in ('a', 'b'):
    paths.append(str(tmp_path / f'{name}.jsonl'))
    lines = [json.dumps({'prompt': f'{name}{number}', 'answer': f'{name}-{number}'}) for number in range(3)]
    (tmp_path / f'{name}.jsonl').write_text('\n'.join(lines))
  source = text_sources.open_source(
    config(input_path=paths, weights=(3, 1), example_format='prompt', use_chat_template=False), tokenizer
  )
  assert source.counts == [9, 3]
  for number in range(len(source)):
    row = source[number]
    text = tokenizer.decode(row['input_ids'], skip_special_tokens=True)
    assert source.record(int(row['record'])) == {'prompt': text, 'answer': f'{text[0]}-{text[1]}'}


@pytest.mark.parametrize(
  'lengths, weights, counts',
  [
    ((10, 10), (1, 1), [10, 10]),
    ((1, 1, 1), (0.1, 0.2, 0.7), [1, 2, 7]),
    ((7, 3), (1, 2), [7, 14]),
    ((5, 1000), (0.5, 0.5), [1000, 1000]),
    ((3, 5, 2), (1.5, 1, 1), [8, 5, 5]),
    ((5, 1), (1, 4e-7), [2_500_000, 1]),
    ((3, 3), (1e-13, 1e-13), [3, 3]),
  ],
)
def test_an_epoch_is_as_short_as_the_shares_allow(lengths, weights, counts):
  found = text_sources.num_rows_of(lengths, weights)
  assert found == counts and all(count >= length for count, length in zip(found, lengths))


def test_the_rest_of_an_epoch_is_spread_over_the_file(tokenizer, tmp_path):
  paths = [written(tmp_path, 'big', 14, 1), written(tmp_path, 'small', 10, 1)]
  source = text_sources.open_source(config(input_path=paths, weights=(1, 1)), tokenizer)
  assert source.counts == [14, 14]
  assert [source.place(number) for number in range(14)] == [(0, row) for row in range(14)]
  assert [source.place(number) for number in range(14, 28)] == [(1, row) for row in (*range(10), 0, 2, 5, 7)]


def test_a_source_is_repeated_at_most_1000_times(tokenizer, tmp_path):
  paths = [written(tmp_path, 'big', 10, 1), written(tmp_path, 'small', 10, 1)]
  source = text_sources.open_source(config(input_path=paths, weights=(1000, 1)), tokenizer)
  assert source.counts == [10_000, 10]
  message = f'task.train_data.weights: {paths[0]} would be repeated 1,001 times in an epoch, at most 1,000'
  with pytest.raises(errors.UserError, match=message):
    text_sources.open_source(config(input_path=paths, weights=(1001, 1)), tokenizer)


def test_a_path_whose_records_are_all_held_out_is_named(tokenizer, tmp_path):
  paths = [written(tmp_path, 'first', 8, 1), written(tmp_path, 'second', 2, 1)]
  is_held_out = np.arange(10) >= 8
  kept = numbered_records.DividedRecords(record_files.open_records(paths), is_held_out, takes_held_out=False)
  message = f'task.train_data.weights: all records of {paths[1]} are held out for validation; set task.validation_data'
  with pytest.raises(errors.UserError, match=message):
    text_sources.open_source(config(input_path=paths, weights=(1, 1)), tokenizer, kept)


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(weights=(1,)), 'task.train_data.weights: 1 weights for 2 paths'),
    (dict(weights=(1, 1), max_samples=3), 'task.train_data.max_samples: weights are for training on all records'),
    (dict(weights=(1, 1), is_training=False), 'weights: weights are for training on all records'),
  ],
)
def test_a_mixture_that_cannot_be_is_refused(tokenizer, tmp_path, fields, message):
  paths = [written(tmp_path, 'first', 3, 1), written(tmp_path, 'second', 3, 1)]
  with pytest.raises(errors.UserError, match=message):
    text_sources.open_source(config(input_path=paths, **fields), tokenizer)


def test_rows_of_different_kinds_are_not_mixed(tokenizer, tmp_path):
  other = tmp_path / 'pairs.jsonl'
  other.write_text(json.dumps({'prompt': 'a', 'chosen': 'b', 'rejected': 'c'}))
  paths = [written(tmp_path, 'first', 3, 1), str(other)]
  formats = [dict(example_format='text'), dict(example_format='preference', use_chat_template=False)]
  parts = [
    text_sources.open_source(config(input_path=path, **fields), tokenizer) for path, fields in zip(paths, formats)
  ]
  with pytest.raises(errors.UserError, match='task.train_data.weights: the sources have rows of different kinds'):
    text_sources.TextMixture(parts, (1, 1), 'task.train_data', paths)
