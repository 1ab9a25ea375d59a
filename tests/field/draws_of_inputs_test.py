"""Draws of inputs: other numbers in each pipeline, and a report if a resumed run has others than an undisturbed one."""

import random

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals
from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.config import definitions
from official_ext.training.loop import garden
from tests.training.loop import small_run


def pipeline(number, seed=None):
  """The elements of one of two pipelines: (number of the example, a draw, a draw in a branch)."""
  tf_keras.utils.set_random_seed(0)
  context = tf.distribute.InputContext(2, number, 2)
  with garden._drawing_apart(context):
    dataset = tf.data.Dataset.range(12).shuffle(12).shard(2, number)
    draw = lambda: tf.random.uniform([], seed=seed)
    dataset = dataset.map(lambda i: (i, draw(), tf.cond(i >= 0, draw, lambda: 0.0)))
  return list(dataset.as_numpy_iterator())


@pytest.mark.parametrize('seed', [None, 7])
def test_pipelines_draw_other_numbers_and_divide_one_order(seed):
  first, second = pipeline(0, seed), pipeline(1, seed)
  assert sorted(int(row[0]) for row in first + second) == list(range(12))
  for column in (1, 2):
    assert len({float(row[column]) for row in first + second}) == 12
  assert first == pipeline(0, seed) and second == pipeline(1, seed)
  tf_keras.utils.set_random_seed(0)
  alone = tf.data.Dataset.range(12).shuffle(12).shard(2, 0).map(lambda i: (i, tf.random.uniform([], seed=seed)))
  assert [row[:2] for row in first] == list(alone.as_numpy_iterator())


class Varies(sources.Source):
  """Examples with a draw."""

  def __init__(self, draw):
    self._draw = draw

  def __len__(self):
    return 4

  def fetch(self, indices):
    return [{'x': np.float32(self._draw()), 'y': np.nan} for _ in indices]


@pytest.mark.parametrize(('draw', 'is_reported'), [(np.random.rand, True), (lambda: 1.0, False)])
def test_a_source_whose_examples_vary_is_reported(draw, is_reported, caplog):
  data = definitions.InMemoryDataConfig(global_batch_size=2, is_training=True)
  step_indexed.build_dataset(Varies(draw), data)
  assert ('example 0 of Varies differs when it is read again' in caplog.text) == is_reported


STATEFUL = lambda: tf.cond(tf.random.uniform([]) > 0.5, lambda: 1.0, lambda: 0.0)


@pytest.mark.parametrize(
  ('is_source', 'parallel', 'draw', 'report'),
  [
    (False, 2, STATEFUL, 'in several threads: from batch 4 on'),
    (False, None, STATEFUL, ''),
    (False, 2, lambda: tf.random.stateless_uniform([], [1, 2]), ''),
    (True, None, STATEFUL, 'in tf.data: from batch 4 on'),
  ],
  ids=['threads', 'one thread', 'stateless', 'after a source'],
)
def test_draws_that_a_resume_does_not_repeat_are_reported(tmp_path, caplog, is_source, parallel, draw, report):
  class Drawing(small_run.SmallTask):
    def build_inputs(self, params, input_context=None):
      if is_source:
        dataset = super().build_inputs(params, input_context)
      else:
        dataset = tf.data.Dataset.from_tensor_slices(self.data).repeat().batch(small_run.BATCH_SIZE)
      return dataset.map(lambda *batch: (draw(), batch)[1], num_parallel_calls=parallel)

  small_run.run(tmp_path, 'train', Drawing, trainer={'train_steps': 4})
  assert 'draws by tf.random' not in caplog.text
  small_run.run(tmp_path, 'train', Drawing, trainer={'train_steps': 6})
  assert report in caplog.text and ('draws by tf.random' in caplog.text) == bool(report)


@pytest.mark.parametrize('seed', [None, 3])
def test_a_shuffle_without_a_seed_has_the_order_of_an_undisturbed_run(tmp_path, seed):
  class Shuffling(small_run.SmallTask):
    def build_inputs(self, params, input_context=None):
      order = np.random.permutation(small_run.NUM_EXAMPLES)  # As of names of files.
      dataset = tf.data.Dataset.from_tensor_slices(tuple(part[order] for part in self.data))
      return dataset.shuffle(small_run.NUM_EXAMPLES, seed).repeat().batch(small_run.BATCH_SIZE)

  def trained(folder, *ends):
    for end in ends:
      small_run.run(tmp_path / folder, 'train', Shuffling, trainer={'train_steps': end})
    reader = tf.train.load_checkpoint(str(tmp_path / folder / f'ckpt-{ends[-1]}'))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if 'kernel' in name}

  expected, found = trained('whole', 24), trained('resumed', 4, 12, 24)
  assert expected.keys() == found.keys() and expected
  for name, values in expected.items():
    np.testing.assert_array_equal(found[name], values)


def test_a_build_of_an_input_leaves_no_trace():
  tf_keras.utils.set_random_seed(4)
  draws = lambda: (tf_internals.op_seeds.get_seed(None), np.random.rand(), random.random())
  first = draws()
  tf_keras.utils.set_random_seed(4)
  with garden._same_at_each_build(4):
    inside = draws()
  assert draws() == first
  with garden._same_at_each_build(4):
    assert draws() == inside


def test_a_driver_without_a_seed_has_one_order(monkeypatch):
  """Each worker shuffles before its part is taken: with other orders, examples would be read twice and never."""
  monkeypatch.setattr(tf_internals, 'global_seed', lambda: None)
  found = []
  for number in range(2):
    with monkeypatch.context() as patch:
      patch.setattr(tf_internals.eager_context(), '_seed', None)
      with garden._same_at_each_build(3):
        order = random.sample(range(8), 8)
        dataset = tf.data.Dataset.from_tensor_slices(order).shuffle(8).shard(2, number)
    found += list(dataset.as_numpy_iterator())
  assert sorted(found) == list(range(8))
