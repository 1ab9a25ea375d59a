"""The batch at step s is a pure function of (seed, s), whatever shares it out and wherever the run starts."""

import functools
import itertools

import numpy as np
from orbit.utils import common
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.data import collators
from official_ext.data import keyed_random
from official_ext.data import pipelines
from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.config import definitions
from tests import tiers

NUM_EXAMPLES = 29


class ListSource(sources.Source):
  """Examples that Python hands out, of lengths that differ."""

  def __init__(self, num_examples=NUM_EXAMPLES):
    self.num_examples = num_examples

  def __len__(self):
    return self.num_examples

  def fetch(self, indices):
    return [{'index': np.int64(i), 'name': f'n{i}', 'ones': np.ones(i % 3 + 1, np.float32)} for i in indices]


class BlockSource(ListSource):
  """Examples of one shape, of which one call reads many batches; `calls` has how many each read."""

  reads_in_blocks = True

  def __init__(self, num_examples=NUM_EXAMPLES):
    super().__init__(num_examples)
    self.calls = []

  def fetch(self, indices):
    self.calls.append(len(indices))
    return [{'index': np.int64(i), 'row': np.float32([i, i**2])} for i in indices]


@collators.register('index_only')
def index_only(params):
  """Keeps what the tests compare."""
  del params
  return lambda examples: {'index': np.stack([example['index'] for example in examples])}


def array_source(num_examples=NUM_EXAMPLES):
  rows = np.arange(num_examples)
  return sources.ArraySource({'index': rows, 'row': np.stack([rows, rows**2], 1).astype(np.float32)})


def data_config(batch_size=6, is_training=True, **fields):
  return definitions.DataConfig(global_batch_size=batch_size, is_training=is_training, **fields)


@functools.cache
def order_of(epoch, seed):
  """The examples of an epoch, in the order in which they come."""
  positions = tf.range(epoch * NUM_EXAMPLES, (epoch + 1) * NUM_EXAMPLES, dtype=tf.int64)
  return keyed_random.shuffled_indices(positions, NUM_EXAMPLES, seed).numpy().tolist()


def expected_batch(step, batch_size=6, seed=0):
  """The global batch at a step, by the definition."""
  positions = range(step * batch_size, (step + 1) * batch_size)
  return [order_of(p // NUM_EXAMPLES, seed)[p % NUM_EXAMPLES] for p in positions]


def take(dataset, count, key='index'):
  return [element[key].numpy().tolist() for element in dataset.take(count)]


def strategy_of(num_replicas):
  if num_replicas == 1:
    return tf.distribute.OneDeviceStrategy('CPU:0')
  return tf_internals.make_strategy(tf.distribute.MirroredStrategy, devices=[f'CPU:{i}' for i in range(num_replicas)])


def global_batches(strategy, build, count=None):
  """For each step, the replicas' shares, from the strategy's own distributed iterator."""
  iterator = iter(common.make_distributed_dataset(strategy, build))
  batches = []
  for _ in itertools.count() if count is None else range(count):
    try:
      element = next(iterator)
    except StopIteration:
      break
    batches.append([part.numpy().tolist() for part in strategy.experimental_local_results(element['index'])])
  return batches


def cases(fast, *factors):
  """All combinations of the factors' values: those of `fast`, and the others as soak tests."""
  return [pytest.param(*case, marks=[] if case in fast else pytest.mark.soak) for case in itertools.product(*factors)]


SOURCES = {  # And a collator for each.
  'arrays': (array_source(), 'stack'),
  'python': (ListSource(), 'index_only'),
  'blocks': (BlockSource(), 'stack'),
}
STARTS = [(0, 'arrays'), (1, 'python'), (1, 'blocks'), (700, 'arrays'), (701, 'python'), (10**9, 'blocks')]


@tiers.parametrize('start, kind', cases(STARTS, [0, 1, 700, 701, 10**9], SOURCES), fast=3)
def test_batch_is_a_pure_function_of_seed_and_step(start, kind):
  source, collator = SOURCES[kind]
  params = data_config(seed=3, collator=collator)
  with pipelines.starting_at(start) as at:
    dataset = step_indexed.build_dataset(source, params)
  assert at.honoured
  assert take(dataset, 12) == [expected_batch(start + i, seed=3) for i in range(12)]


def test_blocks_of_batches_join_without_a_seam(monkeypatch):
  straight = take(step_indexed.build_dataset(array_source(), data_config()), 40)
  monkeypatch.setattr(step_indexed, '_INDICES_PER_BLOCK', 18)  # three batches
  assert take(step_indexed.build_dataset(array_source(), data_config()), 40) == straight


@tiers.parametrize('rows_per_read', [1, 12, 20, 256], fast=[12])
def test_one_call_reads_many_batches_of_what_is_read_in_blocks(rows_per_read, monkeypatch):
  monkeypatch.setattr(step_indexed, '_ROWS_PER_READ', rows_per_read)
  source = BlockSource()
  dataset = step_indexed.build_dataset(source, data_config(seed=3))
  assert dataset.element_spec['row'].shape == [6, 2] and dataset.cardinality() == tf.data.INFINITE_CARDINALITY
  source.calls.clear()
  batches = list(dataset.take(12).as_numpy_iterator())
  assert [batch['index'].tolist() for batch in batches] == [expected_batch(i, seed=3) for i in range(12)]
  for batch in batches:
    np.testing.assert_array_equal(batch['row'], np.stack([batch['index'], batch['index'] ** 2], 1))
  assert set(source.calls) == {max(1, rows_per_read // 6) * 6}  # Whole batches.


@pytest.mark.parametrize('fields', [dict(collator='index_only'), dict(is_training=False, on_bad_example='skip')])
def test_batches_that_may_differ_in_shape_are_read_one_by_one(fields):
  source = BlockSource()
  dataset = step_indexed.build_dataset(source, data_config(**fields))
  source.calls.clear()
  assert len(take(dataset, 4)) == 4 and max(source.calls) == 6


def test_rows_of_all_arrays_belong_together():
  (batch,) = step_indexed.build_dataset(array_source(), data_config()).take(1)
  np.testing.assert_array_equal(batch['row'][:, 1], batch['index'].numpy() ** 2)


def test_epochs_are_permutations_even_with_batches_larger_than_an_epoch():
  for batch_size in (1, 6, 64):
    dataset = step_indexed.build_dataset(array_source(), data_config(batch_size))
    flat = sum(take(dataset, -(-3 * NUM_EXAMPLES // batch_size)), [])
    for epoch in range(3):
      assert sorted(flat[epoch * NUM_EXAMPLES : (epoch + 1) * NUM_EXAMPLES]) == list(range(NUM_EXAMPLES))


def test_seeds_give_different_orders_and_an_unset_seed_is_zero():
  first = [take(step_indexed.build_dataset(array_source(), data_config(seed=seed)), 3) for seed in (None, 0, 1)]
  assert first[0] == first[1] != first[2]


def test_shapes_are_static_and_the_dataset_infinite():
  dataset = step_indexed.build_dataset(array_source(), data_config())
  assert dataset.element_spec['row'].shape == [6, 2]
  # A known infinite dataset spares tf.distribute its tests for the end.
  assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY


@pytest.mark.parametrize('num_replicas, kind', cases([(1, 'python'), (2, 'arrays'), (3, 'blocks')], [1, 2, 3], SOURCES))
def test_global_batch_does_not_depend_on_the_number_of_replicas(num_replicas, kind):
  source, collator = SOURCES[kind]
  strategy = strategy_of(num_replicas)
  with pipelines.starting_at(4) as at:
    build = lambda input_context: step_indexed.build_dataset(source, data_config(collator=collator), input_context)
    batches = global_batches(strategy, build, count=15)
  assert at.honoured
  assert [sum(shares, []) for shares in batches] == [expected_batch(4 + i) for i in range(15)]
  assert {len(share) for shares in batches for share in shares} == {6 // num_replicas}


@tiers.parametrize('is_training', [True, False], fast=1)
def test_pipelines_of_several_workers_share_the_global_batch(is_training):
  """Two pipelines of two replicas each: their elements, interleaved, are the run of one replica."""
  params = data_config(batch_size=8, is_training=is_training)
  steps = 5 if is_training else None
  whole = step_indexed.build_dataset(array_source(), params)
  whole = take(whole, steps or -1)
  shares = []
  for pipeline in range(2):
    context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=pipeline, num_replicas_in_sync=4)
    elements = take(step_indexed.build_dataset(array_source(), params, context), 2 * steps if steps else -1)
    shares.append([elements[i : i + 2] for i in range(0, len(elements), 2)])
  joined = [sum(first + second, []) for first, second in zip(*shares, strict=True)]
  assert joined == whole


SIZES = [1, 5, 6, 24, 25, 27, 29]


@tiers.parametrize(
  'num_replicas, num_examples', cases([(1, 29), (2, 1), (2, 27), *((3, n) for n in SIZES)], [1, 2, 3], SIZES), fast=5
)
def test_evaluation_sees_every_example_once(num_replicas, num_examples):
  strategy = strategy_of(num_replicas)
  params = data_config(is_training=False)
  build = lambda input_context: step_indexed.build_dataset(array_source(num_examples), params, input_context)
  batches = global_batches(strategy, build)
  assert sum((sum(shares, []) for shares in batches), []) == list(range(num_examples))
  assert len(batches) == -(-num_examples // 6)
  assert all(len(share) <= 6 // num_replicas for shares in batches for share in shares)


@pytest.mark.parametrize('num_examples', [1, 7, 9])
def test_evaluation_of_a_python_source_gives_empty_shares_their_shapes(num_examples):
  source, params = ListSource(num_examples), data_config(is_training=False, collator='pad')
  seen = []
  for pipeline in range(3):
    context = tf.distribute.InputContext(num_input_pipelines=3, input_pipeline_id=pipeline, num_replicas_in_sync=3)
    elements = list(step_indexed.build_dataset(source, params, context))
    assert len(elements) == -(-num_examples // 6)
    for element in elements:
      count = len(element['index'])
      assert element['name'].shape == [count] and element['ones'].shape[0] == count
      seen += element['name'].numpy().tolist()
  assert sorted(seen) == sorted(f'n{i}'.encode() for i in range(num_examples))


def test_evaluation_does_not_take_the_start_of_training():
  with pipelines.starting_at(3) as at:
    dataset = step_indexed.build_dataset(array_source(), data_config(is_training=False))
  assert not at.honoured
  assert take(dataset, 1) == [[0, 1, 2, 3, 4, 5]]


def test_drop_remainder_is_honoured_where_it_is_set():
  dataset = step_indexed.build_dataset(array_source(), data_config(is_training=False, drop_remainder=True))
  assert take(dataset, -1) == [list(range(i, i + 6)) for i in range(0, 24, 6)]
  assert dataset.element_spec['index'].shape == [6]


@pytest.mark.parametrize('num_replicas', [pytest.param(1, marks=pytest.mark.soak), 3])
def test_transforms_draw_by_position_and_not_by_replica(num_replicas):
  """Batch-wise and example by example: the draws of step s are the same however the batch is shared."""

  def draw(seed):
    return tf.random.stateless_uniform([], seed)

  def per_example(example, seed):
    return {**example, 'noise': draw(seed), 'pair': tf.stack([example['index'], example['index']])}

  def per_batch(batch, seeds):
    return {**batch, 'same': tf.map_fn(draw, seeds, fn_output_signature=tf.float32)}

  elements = {}
  for pipeline in range(num_replicas):
    context = tf.distribute.InputContext(num_replicas, pipeline, num_replicas)
    with pipelines.starting_at(9):
      dataset = step_indexed.build_dataset(array_source(), data_config(), context, per_batch, per_example)
    (element,) = dataset.take(1)
    assert element['pair'].shape == [6 // num_replicas, 2]
    np.testing.assert_array_equal(element['noise'], element['same'])
    elements[pipeline] = element['noise'].numpy()
  seeds = keyed_random.transform_seeds(tf.range(9 * 6, 10 * 6, dtype=tf.int64), 0)
  np.testing.assert_array_equal(np.concatenate(list(elements.values())), [draw(seed).numpy() for seed in seeds])


def test_transforms_see_examples_even_where_the_share_is_empty():
  def per_example(example, seed):
    del seed
    return {'index': example['index'], 'double': 2.0 * example['row']}

  context = tf.distribute.InputContext(2, 1, 2)
  params = data_config(is_training=False)
  (element,) = step_indexed.build_dataset(array_source(2), params, context, transform_per_example=per_example)
  assert element['double'].shape == [0, 2] and element['index'].shape == [0]


def test_a_dataset_can_be_iterated_again():
  dataset = step_indexed.build_dataset(array_source(), data_config())
  assert take(dataset, 4) == take(dataset, 4)


def test_errors_name_the_field():
  context = tf.distribute.InputContext(1, 0, 4)
  with pytest.raises(errors.UserError, match=r'task\.train_data\.global_batch_size: 6 .* among 4 replicas'):
    step_indexed.build_dataset(array_source(), data_config(), context)
  with pytest.raises(errors.UserError, match=r'task\.validation_data\.global_batch_size: must be positive, is 0'):
    step_indexed.build_dataset(array_source(), data_config(0, is_training=False))
  with pytest.raises(errors.UserError, match=r'task\.train_data: there are no examples'):
    step_indexed.build_dataset(array_source(0), data_config())
  with pytest.raises(errors.UserError, match=r'task\.validation_data\.drop_remainder: the 29 examples'):
    step_indexed.build_dataset(array_source(), data_config(30, is_training=False, drop_remainder=True))
  with pytest.raises(errors.UserError, match="collator: no collator 'nothing'; there are "):
    step_indexed.build_dataset(array_source(), data_config(collator='nothing'))


def test_records_reach_the_graph_byte_by_byte():
  records = [bytes([number, 0, 0]) for number in range(8)]

  class Records(sources.Source):
    def __len__(self):
      return len(records)

    def fetch(self, indices):
      return [{'record': records[index]} for index in indices]

  params = definitions.DataConfig(global_batch_size=4, is_training=False)
  for source in (Records(), sources.cached(Records())):
    batches = list(step_indexed.build_dataset(source, params).as_numpy_iterator())
    assert [record for batch in batches for record in batch['record']] == records
