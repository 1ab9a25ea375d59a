"""The tap records the gradients that a task applies, and applies the reduced ones; arithmetic on all gradients."""

import threading

import numpy as np
from official.modeling import optimization
import pytest
import tensorflow as tf
import tf_keras

from official_ext.training.optimization import ema_optimizer
from official_ext.training.step import gradient_tap

legacy, new = tf_keras.optimizers.legacy, tf_keras.optimizers.experimental


def sparse(values, indices, rows=4):
  return tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([rows, len(values[0])]))


def dense(gradient):
  return tf.convert_to_tensor(gradient).numpy()


@pytest.mark.parametrize(
  'make',
  [legacy.SGD, new.SGD, lambda rate: tf_keras.mixed_precision.LossScaleOptimizer(legacy.SGD(rate))],
  ids=['legacy', 'new', 'scaled'],
)
def test_within_capture_gradients_are_recorded_and_outside_applied(make):
  optimizer, other = make(1.0), make(1.0)
  tap = gradient_tap.GradientTap(optimizer)
  variable = tf.Variable([1.0, 2.0])
  gradient = tf.constant([0.5, 0.25])
  with tap.capture() as calls:
    optimizer.apply_gradients(zip([gradient, None], [variable, variable]))
    optimizer.apply_gradients([(gradient, variable)])
    np.testing.assert_array_equal(variable, [1, 2])
    other.apply_gradients([(gradient, variable)])  # Another instance is not tapped.
    np.testing.assert_array_equal(variable, [0.5, 1.75])
  assert [[(g is gradient, v is variable) for g, v in call] for call in calls] == [
    [(True, True), (False, True)],
    [(True, True)],
  ]
  optimizer.apply_gradients([(gradient, variable)])
  np.testing.assert_array_equal(variable, [0, 1.5])


def test_minimize_is_recorded_too():
  optimizer = legacy.SGD(1.0)
  tap = gradient_tap.GradientTap(optimizer)
  variable = tf.Variable(3.0)
  with tap.capture() as calls:
    optimizer.minimize(lambda: variable**2, [variable])
  assert variable == 3 and calls[0][0][0] == 6


def test_what_is_captured_belongs_to_the_thread_that_captures():
  optimizer = legacy.SGD(1.0)
  tap = gradient_tap.GradientTap(optimizer)
  variables = [tf.Variable(0.0), tf.Variable(0.0)]
  barrier, captured = threading.Barrier(2), [None, None]

  def replica(index):
    with tap.capture() as calls:
      barrier.wait()  # Both are inside.
      optimizer.apply_gradients([(tf.constant(float(index)), variables[index])])
      barrier.wait()
    captured[index] = [(float(g), v is variables[index]) for call in calls for g, v in call]

  threads = [threading.Thread(target=replica, args=(index,)) for index in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert captured == [[(0.0, True)], [(1.0, True)]]


@pytest.mark.parametrize(
  'make',
  [
    lambda: adamw(1.0),
    lambda: tf_keras.optimizers.SGD(1.0, global_clipnorm=1.0),
    lambda: tf_keras.optimizers.legacy.SGD(1.0, global_clipnorm=1.0),
  ],
  ids=['adamw', 'new', 'legacy'],
)
def test_a_norm_that_is_known_is_not_computed_again(make):
  def update(norm):
    variable = tf.Variable([0.0, 0.0])
    optimizer = make()
    gradient_tap.build_optimizer(optimizer, [variable])
    gradient_tap.GradientTap(optimizer).apply_reduced([tf.constant([3.0, 4.0])], [variable], norm)
    return variable.numpy()

  np.testing.assert_array_equal(update(tf.constant(5.0)), update(None))
  assert not np.array_equal(update(tf.constant(50.0)), update(None))  # It is taken at its word.


def test_the_norm_is_not_that_of_transformed_gradients():
  variable = tf.Variable([0.0, 0.0])
  optimizer = tf_keras.optimizers.SGD(1.0, global_clipnorm=1.0)
  tap = gradient_tap.GradientTap(optimizer)
  clip = optimizer._clip_gradients
  optimizer._clip_gradients = lambda gradients: clip([2 * gradient for gradient in gradients])
  tap.apply_reduced([tf.constant([0.3, 0.4])], [variable], tf.constant(0.5))
  np.testing.assert_allclose(variable, [-0.6, -0.8], rtol=1e-6)  # Of norm 1: not clipped.
  tap.apply_reduced([tf.constant([3.0, 4.0])], [variable], tf.constant(5.0))
  np.testing.assert_allclose(variable, [-1.2, -1.6], rtol=1e-6)  # Clipped to 1, though 10 is not the norm reported.


def adamw(limit):
  return optimization.legacy_adamw.AdamWeightDecay(0.1, epsilon=0.1, gradient_clip_norm=limit)


def apply(optimizer, gradients, variables):
  gradient_tap.GradientTap(optimizer).apply_reduced(gradients, variables)


@pytest.mark.parametrize(
  'wrap',
  [
    lambda optimizer: optimizer,
    tf_keras.mixed_precision.LossScaleOptimizer,
    ema_optimizer.ExponentialMovingAverage,
  ],
  ids=['bare', 'scaled', 'averaged'],
)
def test_adam_weight_decay_clips_what_is_reduced(wrap):
  gradients = [np.float32([3, 4]), np.float32([12])]  # Global norm 13.
  results = []
  for limit, factor in ((1.0, 1.0), (0.0, 1 / 13)):
    variables = [tf.Variable([0.0, 0.0], name='a'), tf.Variable([0.0], name='b')]
    optimizer = wrap(adamw(limit))
    if hasattr(optimizer, 'shadow_copy'):
      optimizer.shadow_copy(tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1)]))
    apply(optimizer, [tf.constant(g * factor) for g in gradients], variables)
    results.append([v.numpy() for v in variables])
  for clipped, expected in zip(*results):
    np.testing.assert_allclose(clipped, expected, rtol=1e-6)
    assert np.abs(expected).min() > 0.001


@pytest.mark.parametrize(
  'clipping',
  [{'global_clipnorm': 6.5}, {'clipnorm': 6.5}, {'clipvalue': 6.5}, {'clipvalue': 6.5, 'global_clipnorm': 6.5}],
  ids=str,
)
@pytest.mark.parametrize('cls', [legacy.SGD, new.SGD], ids=['legacy', 'new'])
def test_clips_as_the_optimizer_does_by_itself(cls, clipping):
  gradients = [tf.constant([3.0, 4.0]), tf.constant([12.0])]  # Global norm 13.
  results = []
  for apply_gradients in (apply, lambda optimizer, grads, variables: optimizer.apply_gradients(zip(grads, variables))):
    variables = [tf.Variable([0.0, 0.0], name='a'), tf.Variable([0.0], name='b')]
    optimizer = cls(1.0, **clipping)
    apply_gradients(optimizer, gradients, variables)
    results.append([v.numpy() for v in variables])
    assert {name: getattr(optimizer, name) for name in clipping} == clipping
  for clipped, expected in zip(*results):
    np.testing.assert_allclose(clipped, expected, rtol=1e-6)
  assert results[0][1] > -12


def test_inner_optimizer_looks_through_all_wrappers():
  inner = legacy.SGD(1.0)
  averaged = ema_optimizer.ExponentialMovingAverage(inner)
  assert gradient_tap.inner_optimizer(inner) is inner
  assert gradient_tap.inner_optimizer(averaged) is inner
  assert gradient_tap.inner_optimizer(tf_keras.mixed_precision.LossScaleOptimizer(averaged)) is inner


def test_gradients_add_up_whatever_their_kind():
  a, b = sparse([[1.0, 2], [3, 4]], [0, 2]), sparse([[10.0, 20], [30, 40]], [2, 1])
  d = tf.fill([4, 2], 100.0)
  assert gradient_tap.accumulate(None, None) is None
  assert gradient_tap.accumulate(None, a) is a and gradient_tap.accumulate(a, None) is a
  both = gradient_tap.accumulate(a, b)
  assert isinstance(both, tf.IndexedSlices)
  np.testing.assert_array_equal(dense(both), dense(a) + dense(b))
  for one, other in ((a, d), (d, a), (d, d)):
    np.testing.assert_array_equal(dense(gradient_tap.accumulate(one, other)), dense(one) + dense(other))
  assert gradient_tap.scale(None, 0.5) is None
  np.testing.assert_array_equal(dense(gradient_tap.scale(both, 0.5)), dense(both) / 2)
  np.testing.assert_array_equal(gradient_tap.scale(d, 0.5), d / 2)


@pytest.mark.parametrize('on_cpu', [False, True], ids=['', 'cpu'])
@pytest.mark.parametrize('jit_compile', [False, True], ids=['graph', 'xla'])
def test_the_norm_of_sparse_gradients_without_duplicates_is_the_dense_norm(jit_compile, on_cpu):
  gradient = sparse([[1.0, 2], [3, 4], [5, 6], [-3, 1]], [3, 1, 3, 1])

  @tf.function(jit_compile=jit_compile)
  def norm_and_dense():
    unique = gradient_tap.without_duplicates(gradient, in_xla=jit_compile)
    return gradient_tap.global_norm([unique, None, tf.constant([[2.0]])], on_cpu), tf.convert_to_tensor(unique)

  norm, values = norm_and_dense()
  np.testing.assert_array_equal(values, [[0, 0], [0, 5], [0, 0], [6, 8]])
  np.testing.assert_allclose(norm, np.sqrt(25 + 36 + 64 + 4), rtol=1e-6)
  assert gradient_tap.without_duplicates(None) is None
  assert gradient_tap.global_norm([None]) == 0
  several = [tf.constant(2.0), tf.ones([3]), tf.zeros([0, 4]), tf.zeros([4, 0]), tf.fill([2, 3, 2], 3.0)]
  np.testing.assert_allclose(gradient_tap.global_norm(several, on_cpu), np.sqrt(4 + 3 + 12 * 9), rtol=1e-6)


def optimizers():
  rates = dict(learning_rate=0.1)
  classes = {
    f'{cls.__module__}.{cls.__name__}'.replace('tf_keras.src.optimizers.', ''): cls
    for table in (
      optimization.optimizer_factory.LEGACY_OPTIMIZERS_CLS,
      optimization.optimizer_factory.NEW_OPTIMIZERS_CLS,
    )
    for cls in table.values()
    if isinstance(cls, type)
  }
  made = {name: lambda cls=cls: cls(**rates) for name, cls in classes.items()}
  made['scaled adam'] = lambda: tf_keras.mixed_precision.LossScaleOptimizer(legacy.Adam(0.1))
  made['scaled new adam'] = lambda: tf_keras.mixed_precision.LossScaleOptimizer(new.Adam(0.1))
  made['schedule'] = lambda: new.SGD(tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), momentum=0.9)
  return made


@pytest.mark.parametrize('name', optimizers())
def test_build_makes_and_variables_of_names_all_that_an_update_writes(name):
  created = []
  model = tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(2)])
  creator = lambda next_creator, **kwargs: created.append(next_creator(**kwargs)) or created[-1]
  with tf.variable_creator_scope(creator):
    optimizer = optimizers()[name]()
    gradient_tap.build_optimizer(optimizer, model.trainable_variables)
    tap = gradient_tap.GradientTap(optimizer)
    num_created = len(created)
    found = gradient_tap.variables_of(optimizer)
    before = [v.numpy().tobytes() for v in created]
    gradients = [tf.ones_like(v) for v in model.trainable_variables]
    tap.apply_reduced(gradients, model.trainable_variables)
  assert len(created) == num_created  # Nothing is left for the first update to make.
  written = [v for v, value in zip(created, before) if v.numpy().tobytes() != value]
  assert {id(v) for v in written} <= {id(v) for v in found}
  assert any(v is optimizer.iterations for v in written)


@pytest.mark.parametrize('jit_compile', [False, True], ids=['graph', 'xla'])
@pytest.mark.parametrize(
  'make',
  [
    legacy.Adam,
    new.Adam,
    lambda rate: new.SGD(rate, momentum=0.9),
    new.RMSprop,
    new.Adagrad,
    lambda rate: optimization.legacy_adamw.AdamWeightDecay(rate, gradient_clip_norm=1.0),
  ],
  ids=['legacy adam', 'adam', 'momentum', 'rmsprop', 'adagrad', 'model garden'],
)
def test_a_sparse_gradient_updates_as_the_dense_one_after_a_single_search_for_equal_indices(make, jit_compile):
  duplicated = sparse([[1.0, 2], [3, 4], [5, 6], [-3, 1]], [3, 1, 3, 1], rows=5)

  def after_two_updates(gradient):
    optimizer, variable = make(0.125), tf.Variable(tf.ones([5, 2]))
    tap = gradient_tap.GradientTap(optimizer)
    gradient_tap.build_optimizer(optimizer, [variable])

    @tf.function(jit_compile=jit_compile)
    def update():
      tap.apply_reduced([gradient_tap.without_duplicates(gradient, in_xla=jit_compile)], [variable])

    update()
    update()
    operations = [operation.type for operation in update.get_concrete_function().graph.get_operations()]
    return variable.numpy(), operations.count('Unique')

  of_sparse, num_searches = after_two_updates(duplicated)
  np.testing.assert_allclose(of_sparse, after_two_updates(tf.convert_to_tensor(duplicated))[0], rtol=1e-6)
  assert num_searches == (0 if jit_compile else 1)
  assert not np.array_equal(of_sparse, np.ones([5, 2]))
