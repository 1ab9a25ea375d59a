"""Examples that cannot be read or batched: named, or skipped so that the batch stays a function of its step."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.data import batch_reader
from official_ext.data import collators
from official_ext.data import keyed_random
from official_ext.data import pipelines
from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.config import definitions
from tests import tiers

NUM_EXAMPLES, BATCH_SIZE = 20, 6
UNREADABLE, ODD_SHAPE, ODD_TYPE = 4, 5, 11
BAD = (UNREADABLE, ODD_SHAPE, ODD_TYPE)


class FlawedSource(sources.Source):
  """Twenty examples; those in `bad` cannot be read, or have another shape or type."""

  def __init__(self, bad=BAD, num_examples=NUM_EXAMPLES):
    self.bad = bad
    self.num_examples = num_examples

  def __len__(self):
    return self.num_examples

  def fetch(self, indices):
    return [self.example(index) for index in indices]

  def example(self, index):
    kind = index if index in self.bad else None
    if kind is not None and kind not in (ODD_SHAPE, ODD_TYPE):
      raise OSError(f'sector {index} is gone')
    pair = np.full(3 if kind == ODD_SHAPE else 2, index, np.float64 if kind == ODD_TYPE else np.float32)
    return {'index': np.int64(index), 'nested': {'pair': pair}, 'name': f'n{index}'}

  def describe(self, index):
    return f'card {index}'


def config(is_training=True, on_bad_example='skip', **fields):
  return definitions.DataConfig(
    global_batch_size=BATCH_SIZE, is_training=is_training, on_bad_example=on_bad_example, **fields
  )


def indices_at(positions, is_training=True):
  positions = tf.constant(positions, tf.int64)
  if is_training:
    return keyed_random.shuffled_indices(positions, NUM_EXAMPLES, 0).numpy().tolist()
  return positions.numpy().tolist()


def expected(index):
  """The next example that is good."""
  while index in BAD:
    index = (index + 1) % NUM_EXAMPLES
  return index


def batches(dataset, count):
  return [element['index'].numpy().tolist() for element in dataset.take(count)]


@tiers.parametrize(
  'start, num_replicas',
  [(0, 2), (5, 1), (5, 3), *(pytest.param(*case, marks=pytest.mark.soak) for case in ((0, 1), (0, 3), (5, 2)))],
  fast=1,
)
def test_a_bad_example_is_replaced_by_the_next_good_one(start, num_replicas):
  """However many replicas share the batch, and wherever the run starts."""
  shares = []
  for pipeline in range(num_replicas):
    context = tf.distribute.InputContext(num_replicas, pipeline, num_replicas)
    with pipelines.starting_at(start):
      shares.append(batches(step_indexed.build_dataset(FlawedSource(), config(), context), 8))
  joined = [sum(parts, []) for parts in zip(*shares, strict=True)]
  firsts = range(start * BATCH_SIZE, (start + 8) * BATCH_SIZE, BATCH_SIZE)
  assert joined == [[expected(i) for i in indices_at(range(first, first + BATCH_SIZE))] for first in firsts]


def test_what_was_skipped_is_counted_when_it_is_used():
  log = bad_examples.ExampleLog()
  with bad_examples.logged_in(log):
    dataset = step_indexed.build_dataset(FlawedSource(), config())
  batches(dataset, 7)  # And some more are read ahead.
  counts = [log.take_skips(end * BATCH_SIZE) for end in range(1, 8)]
  used = [indices_at(range(first, first + BATCH_SIZE)) for first in range(0, 7 * BATCH_SIZE, BATCH_SIZE)]
  assert counts == [sum(index in BAD for index in indices) for indices in used]
  assert sum(counts) >= 3
  assert log.describe(8) == f'card {indices_at([8])[0]} at position 8 of the run'


def test_an_evaluation_leaves_bad_examples_out():
  log = bad_examples.ExampleLog()
  doubled = lambda example, seed: {**example, 'noise': tf.random.stateless_uniform([], seed)}
  with bad_examples.logged_in(log):
    dataset = step_indexed.build_dataset(
      FlawedSource((1, UNREADABLE, ODD_SHAPE, *range(6, 11), ODD_TYPE)), config(False), transform_per_example=doubled
    )
  elements = list(dataset)
  assert [element['index'].numpy().tolist() for element in elements] == [
    [0, 2, 3],
    [],
    [12, 13, 14, 15, 16, 17],
    [18, 19],
  ]
  assert elements[1]['nested']['pair'].shape == [0, 2] and elements[1]['name'].dtype == tf.string
  assert log.take_skips(BATCH_SIZE) == 3 and log.take_skips() == 6
  # The draws are those of the examples' positions.
  seeds = keyed_random.transform_seeds(tf.constant([0, 2, 3], tf.int64), 0)
  np.testing.assert_array_equal(elements[0]['noise'], [tf.random.stateless_uniform([], seed) for seed in seeds])


@pytest.mark.parametrize(
  'bad, problem',
  [
    (UNREADABLE, 'cannot be read: OSError: sector 4 is gone'),
    (ODD_SHAPE, r'cannot be batched with others: ValueError: nested/pair has shape \[3\], elsewhere \[2\]'),
    (ODD_TYPE, 'cannot be batched with others: ValueError: nested/pair is float64, elsewhere float32'),
  ],
)
def test_an_error_names_example_and_position(bad, problem):
  dataset = step_indexed.build_dataset(FlawedSource((bad,)), config(on_bad_example='error'))
  at = indices_at(range(NUM_EXAMPLES)).index(bad)
  pattern = (
    rf'BadExampleError: task\.train_data: card {bad}, at position {at} of the run, {problem}; repair or replace it, '
    r'or set task\.train_data\.on_bad_example=skip\n'
  )
  with pytest.raises(tf.errors.OpError, match=pattern):
    batches(dataset, 4)


@pytest.mark.parametrize(
  'action, message',
  [
    ('error', r'task\.validation_data: card 6 cannot be read: OSError: sector 6 .*on_bad_example=skip'),
    ('ignore', r"task\.validation_data\.on_bad_example: expected error or skip, got 'ignore'"),
  ],
)
def test_what_is_wrong_from_the_start_is_reported_then(action, message):
  with pytest.raises(errors.UserError, match=message):
    step_indexed.build_dataset(FlawedSource((6,)), config(False, action))


def test_an_odd_first_example_is_not_the_model_of_the_others():
  dataset = step_indexed.build_dataset(FlawedSource((ODD_SHAPE,), num_examples=8), config(False))
  assert sum(batches(dataset, -1), []) == [0, 1, 2, 3, 4, 6, 7]
  source = FlawedSource((ODD_SHAPE,))
  source.example = lambda index: FlawedSource.example(source, ODD_SHAPE if index == 0 else index)
  dataset = step_indexed.build_dataset(source, config(False))
  assert sum(batches(dataset, -1), [])[:4] == [1, 2, 3, 4]


def test_nothing_is_skipped_if_nothing_can_be_read(monkeypatch):
  with pytest.raises(errors.UserError, match=r'card 13 cannot be read: .*; nor can two others'):
    step_indexed.build_dataset(FlawedSource(range(NUM_EXAMPLES)), config())
  monkeypatch.setattr(batch_reader, 'MAX_RUN', 4)
  dataset = step_indexed.build_dataset(FlawedSource((7, 8, 9, 10)), config())
  with pytest.raises(tf.errors.OpError, match=r'card 7, .* sector 7 is gone; nor can the 3 after it be used'):
    batches(dataset, 4)
  dataset = step_indexed.build_dataset(FlawedSource((7, 8, 9)), config())
  assert len(batches(dataset, 4)) == 4


def test_the_error_of_a_collator_keeps_its_traceback():
  collators._REGISTRY._values.pop('broken', None)
  collators.register('broken')(lambda params: lambda examples: {}['no such key'])
  with pytest.raises(KeyError, match='no such key'):
    step_indexed.build_dataset(FlawedSource(()), config(collator='broken'))


def test_lengths_may_differ_where_the_collator_declares_it():
  """`pad` takes any length, but not another rank."""

  class Lists(FlawedSource):
    def example(self, index):
      return {'index': np.int64(index), 'tokens': np.ones((index % 3 + 1,) if index != 9 else (1, 1), np.int32)}

  dataset = step_indexed.build_dataset(Lists(), config(False, collator='pad'))
  assert sum(batches(dataset, -1), []) == [index for index in range(NUM_EXAMPLES) if index != 9]


@pytest.mark.parametrize(
  'bad, message',
  [
    (UNREADABLE, 'card 4 cannot be read: OSError: sector 4 is gone; repair or replace it'),
    (ODD_SHAPE, 'card 5 cannot be read: ValueError: all input arrays must have the same shape'),
  ],
)
def test_a_source_to_be_cached(bad, message):
  source = FlawedSource((bad,))
  with pytest.raises(errors.UserError, match=message):
    sources.cached(source, block_size=7)
  cached = sources.cached(source, block_size=7, on_bad_example='skip')
  assert cached.arrays['index'].tolist() == [index for index in range(NUM_EXAMPLES) if index != bad]


def test_warnings_name_an_example_once_and_end(monkeypatch, caplog):
  monkeypatch.setattr(bad_examples, '_MAX_WARNINGS', 2)
  log = bad_examples.ExampleLog()
  for at, index in enumerate([7, 8, 7, 9, 10]):
    log.add_skip(at, index, f'card {index}')
  assert [record.getMessage() for record in caplog.records] == [
    'skipped: card 7',
    'skipped: card 8 (further ones are only counted)',
  ]
  assert log.take_skips() == 5
