"""Randomness is a function of (seed, step, replica, micro-batch, layer)."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.step import step_random
from tests import tiers
from tests.training.loop import harness


def key(**kwargs):
  return step_random.step_key(step_random.StepKey(**{'seed': 0, 'step': 0, **kwargs}))


def seed_of(salt='a', **kwargs):
  with key(**kwargs):
    return tuple(step_random.make_seed(salt).numpy())


def test_equal_keys_give_equal_seeds_and_any_difference_another():
  base = dict(seed=1, step=5, replica=1, num_replicas=2, micro_step=1, num_micro_steps=2)
  assert seed_of(**base) == seed_of(**base)
  others = [
    seed_of(**{**base, name: value}) for name, value in (('seed', 2), ('step', 6), ('replica', 0), ('micro_step', 0))
  ] + [seed_of('b', **base)]
  assert len({seed_of(**base), *others}) == 6


def test_every_pass_of_a_run_has_its_own_position():
  positions = [
    seed_of(step=step, replica=replica, num_replicas=3, micro_step=micro, num_micro_steps=2)[1]
    for step in range(4)
    for micro in range(2)
    for replica in range(3)
  ]
  assert sorted(positions) == list(range(24))


def test_draws_without_a_name_are_numbered():
  with key():
    first, second = step_random.make_seed(), step_random.make_seed()
  with key():
    again = step_random.make_seed()
  np.testing.assert_array_equal(first, again)
  assert first.numpy().tolist() != second.numpy().tolist()


def test_outside_of_a_step_there_is_no_seed():
  with pytest.raises(RuntimeError, match='outside of a training step'):
    step_random.make_seed()


def in_graph_and_xla(function):
  """The results of `function(seed)` in a graph and in an XLA program."""
  seed = tf.constant([123456789123456789, 7], tf.int64)
  return [tf.function(function, jit_compile=jit)(seed).numpy() for jit in (False, True)]


@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16, tf.float32, tf.float64], ids=lambda d: d.name)
def test_uniform_numbers_are_the_same_in_a_graph_and_in_xla(dtype):
  graph, xla = (x.astype(np.float64) for x in in_graph_and_xla(lambda s: step_random.uniform([5, 4001], s, dtype)))
  np.testing.assert_array_equal(graph, xla)
  assert graph.min() >= 0 and graph.max() < 1
  assert scipy.stats.kstest(graph.ravel(), 'uniform').statistic < 0.01 + 1 / 256
  assert abs(np.corrcoef(graph[:, 1:].ravel(), graph[:, :-1].ravel())[0, 1]) < 0.02


def test_normal_numbers_are_the_same_in_a_graph_and_in_xla():
  graph, xla = in_graph_and_xla(lambda s: step_random.normal([20000], s))
  np.testing.assert_allclose(graph, xla, rtol=1e-3, atol=1e-4)
  assert scipy.stats.kstest(graph, 'norm').statistic < 0.012  # 99.5 % of true samples lie below.
  graph, xla = in_graph_and_xla(lambda s: step_random.normal([20000], s, limit=2.0))
  np.testing.assert_allclose(graph, xla, rtol=1e-3, atol=1e-4)
  assert scipy.stats.kstest(graph, scipy.stats.truncnorm(-2, 2).cdf).statistic < 0.012
  assert np.abs(graph).max() <= 2.0001


def dropout_model():
  layer = tf_keras.layers.Dropout(0.5)
  inputs = tf_keras.Input((1000,))
  return tf_keras.Model(inputs, [layer(inputs), layer(inputs), tf_keras.layers.Dropout(0.5)(inputs)])


def masks(model=None, **kwargs):
  if model is None:
    model = dropout_model()
    assert step_random.key_random_layers(model) == 2
  with key(**kwargs):
    return [mask.numpy()[0] for mask in model(tf.ones([1, 1000]), training=True)]


def test_dropout_is_a_function_of_the_key():
  base = dict(step=3, num_replicas=2, num_micro_steps=2)
  for one, other in zip(masks(**base), masks(**base)):  # Two models, as after a restart.
    np.testing.assert_array_equal(one, other)
  different = [*masks(**base)]  # Layers, and calls of one layer, differ.
  for changes in (dict(step=4), dict(seed=1), dict(replica=1), dict(micro_step=1)):
    different += masks(**{**base, **changes})
  for i, one in enumerate(different):
    assert set(np.unique(one)) == {0, 2} and 400 < (one > 0).sum() < 600
    for other in different[:i]:
      assert 400 < (one == other).sum() < 600


def test_replicas_that_take_turns_do_not_disturb_each_other():
  model = dropout_model()
  step_random.key_random_layers(model)
  layer, x = model.layers[1], tf.ones([1, 1000])
  one, other = step_random.StepKey(0, 3, 0, 2), step_random.StepKey(0, 3, 1, 2)
  drawn = []
  for turn in (one, other, one, other):
    with step_random.step_key(turn):
      drawn.append(layer(x, training=True).numpy())
  assert all(400 < (a == b).sum() < 600 for i, a in enumerate(drawn) for b in drawn[:i])


def test_dropout_drops_at_its_rate_in_every_form():
  for rate, noise_shape in ((0.1, None), (0.9, None), (0.25, (None, 1))):
    layer = tf_keras.layers.Dropout(rate, noise_shape=noise_shape)
    step_random.key_random_layers(layer)
    with key():
      x = layer(tf.ones([2000, 5]), training=True).numpy()
    assert abs((x == 0).mean() - rate) < 0.04
    np.testing.assert_allclose(x[x > 0], 1 / (1 - rate), rtol=1e-6)
    if noise_shape:
      assert (x == x[:, :1]).all()


@pytest.mark.parametrize(
  'layer',
  [
    tf_keras.layers.GaussianNoise(0.5),
    tf_keras.layers.GaussianDropout(0.2),
    tf_keras.layers.AlphaDropout(0.5),
    tf_keras.layers.SpatialDropout1D(0.5),
    tf_keras.layers.LSTM(3, dropout=0.5, recurrent_dropout=0.5),
    tf_keras.layers.MultiHeadAttention(2, 3, dropout=0.5),
    tf_keras.layers.RandomFlip(),
    tf_keras.layers.RandomZoom(0.5),
    tf_keras.layers.RandomCrop(4, 4),
  ],
  ids=lambda layer: type(layer).__name__,
)
def test_other_random_layers_draw_by_the_key_too(layer):
  shape = (
    [2, 8, 8, 3]
    if isinstance(layer, (tf_keras.layers.RandomFlip, tf_keras.layers.RandomZoom, tf_keras.layers.RandomCrop))
    else [2, 8, 3]
  )
  x = tf.random.stateless_uniform(shape, [0, 1])
  call = (
    (lambda: layer(x, x, training=True))
    if isinstance(layer, tf_keras.layers.MultiHeadAttention)
    else (lambda: layer(x, training=True))
  )
  call()
  assert step_random.key_random_layers(layer) >= 1
  results = []
  for step in (1, 1, 2, 3, 4, 5):
    with key(step=step):
      results.append(call().numpy())
  np.testing.assert_array_equal(results[0], results[1])
  assert any((result != results[0]).any() for result in results[2:])
  call()  # Outside of a step it still works.


# TensorFlow's stateful ops.

RAW = {
  'uniform': lambda: tf.random.uniform([4, 3], -1.0, 2.0),
  'uniform_int': lambda: tf.random.uniform([12], 0, 1000, tf.int32),
  'normal': lambda: tf.random.normal([12], 1.0, 2.0),
  'truncated_normal': lambda: tf.random.truncated_normal([12]),
  'shuffle': lambda: tf.random.shuffle(tf.range(50)),
  'categorical': lambda: tf.random.categorical(tf.zeros([2, 100]), 5),
  'gamma': lambda: tf.random.gamma([3], tf.constant([0.5, 2.0]), 2.0),
  'poisson': lambda: tf.random.poisson([5], tf.constant([3.0, 50.0])),
  'dropout': lambda: tf.nn.dropout(tf.ones([100]), 0.5),
  'keras backend': lambda: tf_keras.backend.random_normal([12], seed=1),
  'image flip': lambda: tf.image.random_flip_left_right(tf.reshape(tf.range(24.0), [8, 1, 3, 1])),
  'image brightness': lambda: tf.image.random_brightness(tf.zeros([2, 2, 3]), 0.5),
  'image crop': lambda: tf.image.random_crop(tf.reshape(tf.range(10000), [100, 100]), [2, 2]),
  'bounding box': lambda: (
    tf.image.sample_distorted_bounding_box([300, 300, 3], tf.constant([[[0.0, 0.0, 1.0, 1.0]]]), seed=1).begin
  ),
}


def in_a_step(draw, function=tf.function, **kwargs):
  """The result of `draw()` in a step that is traced anew."""

  def step():
    with key(**kwargs):
      return draw()

  return function(step)().numpy()


@tiers.parametrize('name', RAW, fast=5)
def test_tensorflows_own_ops_draw_by_the_key(name):
  draw = RAW[name]
  base = dict(step=3, num_replicas=2, num_micro_steps=2)
  first = in_a_step(draw, **base)
  np.testing.assert_array_equal(first, in_a_step(draw, **base))
  np.testing.assert_array_equal(first, in_a_step(draw, lambda step: step, **base))  # Eagerly.
  others = [
    in_a_step(draw, **{**base, **changes})
    for changes in (dict(step=4), dict(seed=1), dict(replica=1), dict(micro_step=1), dict(step=5))
  ]
  others.append(in_a_step(lambda: [draw(), draw()][1], **base))
  assert sum(bool((other != first).any()) for other in others) >= 5  # A flip of few images may give the same.
  assert first.dtype == draw().numpy().dtype and first.shape == draw().shape


# Those that have no kernel in XLA have none outside of a step either.
@tiers.parametrize('name', sorted(set(RAW) - {'gamma', 'poisson', 'bounding box'}), fast=5)
def test_what_xla_can_compile_it_compiles_in_a_step(name):
  draw, step = RAW[name], tf.constant(3, tf.int64)  # A constant in the graph would be computed outside of XLA.
  xla, graph = (tf.function(lambda step: in_key(draw, step), jit_compile=jit)(step).numpy() for jit in (True, False))
  np.testing.assert_allclose(xla, graph, rtol=1e-3, atol=1e-4)


class GammaTask(harness.LinearTask):
  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss * tf.random.gamma([], 2.0), logs


def test_what_xla_cannot_compile_runs_as_a_graph_or_is_refused_in_one_line():
  trainer = harness.make_trainer(GammaTask, enable_xla='auto')
  with trainer.strategy.scope():
    trainer.prepare_training()
  assert trainer.plan.execution == 'plain' and 'StatelessRandomGamma' in trainer.plan.reason
  with pytest.raises(errors.UserError, match='^runtime.enable_xla: XLA cannot compile the step of GammaTask'):
    harness.train(harness.make_trainer(GammaTask, enable_xla=True), 1)


def test_categories_are_drawn_with_their_probabilities():
  probabilities = np.array([0.5, 0.25, 0.2, 0.049, 0.001, 0.0])
  logits = np.log(np.maximum(probabilities, 1e-300)).astype(np.float32)[np.newaxis]
  drawn = in_a_step(lambda: tf.random.categorical(logits, 200_000))[0]
  counts = np.bincount(drawn, minlength=6)
  assert counts[5] == 0
  assert scipy.stats.chisquare(counts[:5], probabilities[:5] * 200_000).pvalue > 1e-3
  one = in_a_step(lambda: tf.random.categorical([[7.0]], 3, dtype=tf.int32))
  assert one.tolist() == [[0, 0, 0]] and one.dtype == np.int32


def test_a_shuffle_has_every_row_once_in_any_place():
  rows = np.stack([in_a_step(lambda: tf.random.shuffle(tf.range(10)), lambda f: f, step=step) for step in range(300)])
  assert (np.sort(rows) == np.arange(10)).all()
  assert scipy.stats.chisquare(np.bincount(rows[:, 0], minlength=10)).pvalue > 1e-3


def test_a_vectorized_map_inside_a_loop_draws_for_every_element():
  draw = lambda: tf.map_fn(lambda _: tf.vectorized_map(lambda _: tf.random.uniform([2]), tf.zeros([3])), tf.zeros([4]))
  assert len(set(in_a_step(draw).ravel())) == 24


def test_tensorflows_own_ops_are_as_they_were_outside_of_a_step():
  assert in_a_step(lambda: tf.random.uniform([2])).any()
  graph = tf.Graph()
  with graph.as_default():
    tf.random.uniform([2])
    with key():
      pass
    tf.random.uniform([2])
  assert [op.type for op in graph.get_operations()].count('RandomUniform') == 2


@pytest.mark.slow
@pytest.mark.parametrize(
  'draw, distribution',
  [
    (lambda: tf.random.uniform([2000]), ('uniform',)),
    (lambda: tf.random.normal([2000]), ('norm',)),
    (lambda: tf.random.gamma([2000], 2.0), ('gamma', (2.0,))),
  ],
  ids=['uniform', 'normal', 'gamma'],
)
def test_tensorflows_own_ops_keep_their_distributions(draw, distribution):
  compiled = tf.function(lambda step: in_key(draw, step))
  statistics = [
    scipy.stats.kstest(compiled(tf.constant(step, tf.int64)).numpy(), *distribution).statistic for step in range(100)
  ]
  # Kolmogorov's distribution has mean 0.8687 and standard deviation 0.2603, over the root of the sample's size.
  assert abs(np.mean(statistics) * 2000**0.5 - 0.8687) < 4 * 0.2603 / 100**0.5


def in_key(draw, step):
  with key(step=step):
    return draw()


# XLA's draws are compared with those of a graph.
@pytest.mark.parametrize('jit_compile', harness.cases([True], soak=[False]))
def test_draws_in_loops_and_branches(jit_compile):

  def draw():
    drawn = [tf.map_fn(lambda _: tf.random.uniform([]), tf.zeros([4]))]
    drawn.append(
      tf.reshape(tf.map_fn(lambda _: tf.map_fn(lambda _: tf.random.uniform([]), tf.zeros([2])), tf.zeros([3, 1])), [-1])
    )
    drawn.append([tf.cond(tf.size(drawn[0]) > 1, lambda: tf.random.uniform([]), lambda: -1.0)])
    drawn.append(tf.reshape(tf.vectorized_map(lambda _: tf.random.uniform([2]), tf.zeros([3])), [-1]))
    return tf.concat(drawn, 0)

  step = lambda number: in_key(draw, number)
  compiled = tf.function(step, jit_compile=jit_compile)
  first, again, other = (compiled(tf.constant(number, tf.int64)).numpy() for number in (1, 1, 2))
  np.testing.assert_array_equal(first, again)
  assert len(set(first) | set(other)) == 2 * len(first) == 34  # Anew in every iteration.
  np.testing.assert_array_equal(first, tf.function(step)(tf.constant(1, tf.int64)))


def test_the_loop_around_a_step_does_not_count():
  """If the step is traced into the training loop itself, how loops are cut must not show."""

  @tf.function
  def loop(first, num_steps):
    drawn = tf.TensorArray(tf.float32, tf.cast(num_steps, tf.int32))
    for i in tf.range(num_steps):
      drawn = drawn.write(tf.cast(i, tf.int32), in_key(lambda: tf.random.uniform([]), first + i))
    return drawn.stack()

  whole = loop(tf.constant(0, tf.int64), tf.constant(6, tf.int64)).numpy()
  cut = [loop(tf.constant(first, tf.int64), tf.constant(steps, tf.int64)) for first, steps in ((0, 4), (4, 2))]
  np.testing.assert_array_equal(whole, np.concatenate(cut))
  assert len(set(whole)) == 6


def test_a_function_inside_a_step_keeps_its_draws():
  tf.random.set_seed(None)  # Which another test may have set: a function would begin its draws anew in every trace.
  inner = tf.function(lambda: tf.random.uniform([]))
  compiled = tf.function(lambda step: in_key(lambda: tf.stack([inner(), inner()]), step))
  drawn = [*compiled(tf.constant(1, tf.int64)).numpy(), *compiled(tf.constant(1, tf.int64)).numpy(), inner().numpy()]
  assert len(set(drawn)) == 5


def test_initial_values_that_a_step_makes_are_no_draws_of_the_step():
  made = []

  @tf.function
  def step(number):
    with key(step=number):
      if not made:
        with tf.init_scope():
          made.append(tf.Variable(tf.random.normal([3])))
      return tf.random.uniform([3]) + 0 * made[0]

  first = step(tf.constant(1, tf.int64)).numpy()
  np.testing.assert_array_equal(first, in_a_step(lambda: tf.random.uniform([3]), step=1))
  assert np.ptp(made[0].numpy()) > 0


def test_the_largest_uniform_number_makes_a_normal_one_that_is_finite(monkeypatch):
  edges = tf.constant([0.0, 0.5, 1 - 2.0**-24])
  monkeypatch.setattr(step_random, 'uniform', lambda shape, seed: edges)
  low, middle, high = step_random.normal([3], tf.constant([0, 0], tf.int64)).numpy()
  assert -5.5 < low < -5 and abs(middle) < 1e-6 and 5 < high < 5.5
