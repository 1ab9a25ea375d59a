"""One step is one update: accumulate, reduce, test for finite, clip, apply; the same in every shape."""

import functools
import time

import numpy as np
from official.modeling.optimization import legacy_adamw
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.devices import device_types
from official_ext.training.step import step_plan
from official_ext.training.step import step_random
from official_ext.training.step import training_step
from tests import tiers
from tests.training.loop import harness

PLAIN = dict(enable_xla=False)
FUSED = dict(enable_xla=True)
SPLIT = dict(enable_xla=True, replicas='two')
PLAIN_TWO = dict(enable_xla=False, replicas='two')
SHAPES = {'plain': PLAIN, 'fused': FUSED, 'split': SPLIT, 'plain_two': PLAIN_TWO}
each_shape = pytest.mark.parametrize('shape', SHAPES.values(), ids=SHAPES)

legacy, new = tf_keras.optimizers.legacy, tf_keras.optimizers.experimental


def shapes(*fast):
  """Each of SHAPES, those that are not among `fast` with the long tests."""
  soak = [name for name in SHAPES if name not in fast]
  return pytest.mark.parametrize(
    'shape', harness.cases([SHAPES[name] for name in fast], [SHAPES[name] for name in soak]), ids=[*fast, *soak]
  )


def shapes_and(name, values, fast):
  """Each of SHAPES with each of `values`, which have names; the pairs of names that `fast` does not hold are long."""
  pairs = [(shape, value) for shape in SHAPES for value in values]
  return pytest.mark.parametrize(
    f'shape, {name}',
    [
      pytest.param(
        SHAPES[shape], values[value], id=f'{value}-{shape}', marks=[] if (shape, value) in fast else [pytest.mark.soak]
      )
      for shape, value in pairs
    ],
  )


# The shapes agree, with each other and with the formulas.


@pytest.mark.parametrize(
  'settings',
  harness.cases(
    [
      PLAIN,
      FUSED,
      dict(steps_per_execution=4),
      SPLIT,
      PLAIN_TWO,
      dict(replicas='default', enable_xla=False),
      dict(replicas='mirrored_one'),
      dict(enable_xla=False, trainer_config=dict(train_tf_while_loop=False)),
      dict(enable_xla=False, trainer_config=dict(train_tf_while_loop=False, train_tf_function=False)),
    ],
    soak=[dict(steps_per_execution=16), dict(replicas='default')],
  ),
  ids=str,
)
def test_every_shape_computes_the_formulas(settings):
  trainer = harness.make_trainer(**settings)
  reference = harness.Reference(harness.sgd(), trainer.task.data, 8).train(20)
  first, second = harness.train(trainer, 7), harness.train(trainer, 13)
  harness.assert_close(harness.weights_of(trainer), reference.weights)
  for logs, steps in ((first, slice(0, 7)), (second, slice(7, 20))):
    np.testing.assert_allclose(logs['training_loss'], np.mean(reference.losses[steps]), rtol=1e-5)
    np.testing.assert_allclose(logs['grad_norm'], np.mean(reference.norms[steps]), rtol=1e-5)
    np.testing.assert_allclose(logs['accuracy'], np.mean(reference.accuracies[steps]), rtol=1e-5)
  assert second['model_global_step'] == second['optimizer_iterations'] == 20


def deep_model():
  """Batch normalisation and dropout between two dense layers."""
  return tf_keras.Sequential(
    [
      tf_keras.Input((harness.NUM_FEATURES,)),
      tf_keras.layers.Dense(6, kernel_initializer=tf_keras.initializers.GlorotUniform(seed=1)),
      tf_keras.layers.BatchNormalization(),
      tf_keras.layers.Dropout(0.5),
      tf_keras.layers.Dense(harness.NUM_CLASSES, kernel_initializer=tf_keras.initializers.GlorotUniform(seed=2)),
    ]
  )


class DeepTask(harness.LinearTask):
  model_fn = staticmethod(deep_model)


@pytest.mark.parametrize('enable_xla, steps_per_execution', harness.cases([('auto', 0)], soak=[(True, 1), (True, 4)]))
def test_batch_normalisation_and_dropout_are_the_same_in_plain_and_fused(enable_xla, steps_per_execution):
  results = []
  for settings in (PLAIN, dict(enable_xla=enable_xla, steps_per_execution=steps_per_execution)):
    trainer = harness.make_trainer(DeepTask, **settings)
    logs = harness.train(trainer, 10)
    results.append([v.numpy() for v in trainer.model.variables] + [logs['training_loss'], logs['accuracy']])
  assert trainer.plan.execution == 'fused'
  assert trainer.plan.steps_per_execution == (steps_per_execution or 8)  # The library's choice for a small batch.
  harness.assert_close(results[1], results[0], rtol=1e-4)


# Accumulation.


@each_shape
def test_accumulated_micro_batches_equal_one_large_batch(shape):
  # Stock: there is no gradient accumulation.
  trainer = harness.make_trainer(accumulation=3, **shape)
  reference = harness.Reference(harness.sgd(), trainer.task.data, 24).train(5)
  logs = harness.train(trainer, 5)
  harness.assert_close(harness.weights_of(trainer), reference.weights)
  np.testing.assert_allclose(logs['training_loss'], np.mean(reference.losses), rtol=1e-5)
  np.testing.assert_allclose(logs['grad_norm'], np.mean(reference.norms), rtol=1e-5)
  np.testing.assert_allclose(logs['accuracy'], np.mean(reference.accuracies), rtol=1e-5)
  assert logs['model_global_step'] == logs['optimizer_iterations'] == 5


def test_fused_programs_of_several_accumulated_steps():
  trainer = harness.make_trainer(accumulation=2, steps_per_execution=4)
  harness.train(trainer, 8)
  reference = harness.Reference(harness.sgd(), trainer.task.data, 16).train(8)
  harness.assert_close(harness.weights_of(trainer), reference.weights)


LIMIT = 0.2  # Below every gradient norm that occurs.
OPTIMIZERS = {
  'sgd, global_clipnorm': (
    legacy.SGD,
    dict(learning_rate=0.5, momentum=0.9),
    dict(global_clipnorm=LIMIT),
    harness.clip_by_global_norm,
  ),
  'sgd, clipnorm': (legacy.SGD, dict(learning_rate=0.5, momentum=0.9), dict(clipnorm=LIMIT), harness.clip_by_norm),
  'sgd, clipvalue': (
    legacy.SGD,
    dict(learning_rate=0.5, momentum=0.9),
    dict(clipvalue=LIMIT / 4),
    harness.clip_by_value,
  ),
  'adam': (legacy.Adam, dict(learning_rate=0.05), {}, None),
  'adamw': (
    legacy_adamw.AdamWeightDecay,
    dict(learning_rate=0.05, weight_decay_rate=0.1, epsilon=0.1),
    dict(gradient_clip_norm=LIMIT),
    harness.clip_by_global_norm,
  ),
  'sgd_experimental, clipvalue': (
    new.SGD,
    dict(learning_rate=0.5, momentum=0.9),
    dict(clipvalue=LIMIT / 4),
    harness.clip_by_value,
  ),
  'adam_experimental, clipnorm': (
    new.Adam,
    dict(learning_rate=0.05, epsilon=0.1),
    dict(clipnorm=LIMIT),
    harness.clip_by_norm,
  ),
  'adamw_experimental, global_clipnorm': (
    new.AdamW,
    dict(learning_rate=0.05, weight_decay=0.1, epsilon=0.1),
    dict(global_clipnorm=LIMIT),
    harness.clip_by_global_norm,
  ),
}


def limit_of(clip):
  return next(iter(clip.values()))


# Every optimizer in one shape, every kind of clipping in both.
CLIPPED_ON_TWO = ('sgd, clipvalue', 'adamw', 'sgd_experimental, clipvalue', 'adam_experimental, clipnorm')
CLIPPED = [(name, PLAIN_TWO if name in CLIPPED_ON_TWO else FUSED) for name in OPTIMIZERS]
CLIPPED_IN_SOAK = [(name, FUSED if name in CLIPPED_ON_TWO else PLAIN_TWO) for name in OPTIMIZERS]


@tiers.parametrize(
  'name, shape',
  harness.cases(CLIPPED, CLIPPED_IN_SOAK),
  ids=lambda value: value if isinstance(value, str) else ('fused' if value is FUSED else 'plain_two'),
  fast=1,
)
def test_clipping_acts_once_on_the_accumulated_and_reduced_gradient(name, shape):
  cls, kwargs, clip, formula = OPTIMIZERS[name]
  trainer = harness.make_trainer(optimizer=lambda: cls(**kwargs, **clip), accumulation=2, **shape)
  logs = harness.train(trainer, 5)
  is_adamw = cls is legacy_adamw.AdamWeightDecay  # It holds its rate of decay as float32.
  reference = harness.Reference(
    cls(**kwargs, **(dict(gradient_clip_norm=0.0) if is_adamw else {})),
    trainer.task.data,
    16,
    formula and formula(limit_of(clip)),
    dtype=np.float32 if is_adamw else np.float64,
  )
  reference.train(5)
  harness.assert_close(harness.weights_of(trainer), reference.weights, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(logs['grad_norm'], np.mean(reference.norms), rtol=1e-4)  # Before clipping.
  if formula:
    unclipped = harness.Reference(
      cls(**kwargs, **(dict(gradient_clip_norm=0.0) if is_adamw else {})),
      trainer.task.data,
      16,
      dtype=np.float32 if is_adamw else np.float64,
    ).train(5)
    assert np.abs(unclipped.weights[0] - reference.weights[0]).max() > 1e-3  # The limit made a difference.


# Mixed precision.


def model_of(dtype):
  class Task(harness.LinearTask):
    model_fn = staticmethod(functools.partial(harness.linear_model, dtype))

  return Task


def scaled_sgd(initial_scale=2.0**15, **kwargs):
  return tf_keras.mixed_precision.LossScaleOptimizer(harness.sgd(), initial_scale=initial_scale, **kwargs)


def scaled_new_sgd(initial_scale=2.0**15):
  return tf_keras.mixed_precision.LossScaleOptimizer(new.SGD(0.1, momentum=0.9), initial_scale=initial_scale)


@pytest.mark.slow
@shapes('split', 'plain_two')
def test_bfloat16_accumulates_to_the_large_batch(shape):
  trainer = harness.make_trainer(model_of('mixed_bfloat16'), accumulation=2, **shape)
  reference = harness.Reference(harness.sgd(), trainer.task.data, 16).train(4)
  logs = harness.train(trainer, 4)
  harness.assert_close(harness.weights_of(trainer), reference.weights, rtol=0.02, atol=0.01)
  np.testing.assert_allclose(logs['training_loss'], np.mean(reference.losses), rtol=0.01)
  np.testing.assert_allclose(logs['grad_norm'], np.mean(reference.norms), rtol=0.02)


def data_with_overflow(batch):
  """Batch number `batch` of 8 has one example so large that its scaled gradient overflows in float16."""
  x, y = harness.make_data(64)
  x[batch * 8] *= 500
  return x, y


@shapes_and(
  'optimizer',
  {'legacy': scaled_sgd, 'new': scaled_new_sgd},
  fast=[('plain', 'legacy'), ('fused', 'new'), ('split', 'legacy'), ('plain_two', 'new')],
)
def test_float16_accumulates_to_the_large_batch_and_survives_an_overflow(shape, optimizer):
  trainer = harness.make_trainer(
    model_of('mixed_float16'), data_with_overflow(5), accumulation=2, optimizer=optimizer, **shape
  )
  reference = harness.Reference(harness.sgd(), trainer.task.data, 16).train(2)
  logs = harness.train(trainer, 2)
  harness.assert_close(harness.weights_of(trainer), reference.weights, rtol=0.002, atol=0.002)
  np.testing.assert_allclose(logs['training_loss'], np.mean(reference.losses), rtol=0.002)
  np.testing.assert_allclose(logs['grad_norm'], np.mean(reference.norms), rtol=0.002)
  assert trainer.optimizer.loss_scale == 2.0**15
  # The second micro-batch of step 3 overflows: the scale halves, the weights stay, and it counts as no skip.
  before = harness.weights_of(trainer)
  logs = harness.train(trainer, 1)
  assert trainer.optimizer.loss_scale == 2.0**14
  harness.assert_close(harness.weights_of(trainer), before, rtol=0, atol=0)
  assert trainer.step_state.num_skips.numpy() == 0
  assert np.isfinite(logs['training_loss']) and 'grad_norm' not in logs
  logs = harness.train(trainer, 1)
  assert trainer.optimizer.loss_scale == 2.0**14 and np.isfinite(logs['grad_norm'])
  assert np.abs(harness.weights_of(trainer)[0] - before[0]).max() > 0


@pytest.mark.slow
@shapes('plain', 'fused', 'plain_two')
def test_float16_does_not_scale_a_nan_loss_away(shape):
  trainer = harness.make_trainer(model_of('mixed_float16'), data_with_nan([1]), optimizer=scaled_sgd, **shape)
  harness.train(trainer, 3)
  assert trainer.step_state.last_skips(3) == [2]
  assert trainer.optimizer.loss_scale == 2.0**15
  assert trainer.optimizer.iterations == 2


# The finite guard.


def data_with_nan(batches, size=8):
  """The last example of these batches has a NaN: on two replicas the second one's."""
  x, y = harness.make_data(64)
  for batch in batches:
    x[batch * size + size - 1, 0] = np.nan
  return x, y


def state_of(trainer):
  """All that a skipped step leaves alone, as bits."""
  optimizer = trainer.optimizer
  slots = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
  metrics = [v for metric in trainer.train_metrics for v in metric.variables]
  return [np.asarray(v.numpy()).tobytes() for v in [*trainer.model.variables, *slots, *metrics]]


ADAM = dict(optimizer=lambda: legacy.Adam(0.05))
NEW_ADAM = dict(optimizer=lambda: new.Adam(tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)))


@tiers.parametrize(
  'settings',
  harness.cases(
    [
      PLAIN | ADAM,
      FUSED | NEW_ADAM,
      SPLIT | ADAM | dict(accumulation=2),
      PLAIN_TWO | dict(accumulation=2),
      dict(replicas='default') | ADAM,
    ],
    soak=[PLAIN_TWO | NEW_ADAM, FUSED | dict(accumulation=2)],
  ),
  ids=lambda s: '-'.join(f'{k}={v}' for k, v in s.items() if k != 'optimizer') + ('-optimizer' * ('optimizer' in s)),
  fast=1,
)
def test_a_nan_step_leaves_every_bit(settings):
  # Stock: the update is applied, and every weight is NaN from then on.
  # The bad batch belongs to step 3, the last micro-batch of it.
  trainer = harness.make_trainer(DeepTask, data_with_nan([3 * settings.get('accumulation', 1) - 1]), **settings)
  harness.train(trainer, 1)
  with trainer.strategy.scope():
    trainer.run_steps(1)  # Without the loop's end, so that the metrics hold something when the bad step comes.
    before = state_of(trainer)
    trainer.run_steps(1)
    assert state_of(trainer) == before
    trainer.train_loop_end()
  assert trainer.global_step == 3
  assert trainer.step_state.num_skips == 1
  assert trainer.step_state.last_skips(5) == [3]
  assert trainer.optimizer.iterations == 2
  with trainer.strategy.scope():
    trainer.global_step.assign(2)
    trainer.restart_input()  # The bad batch again, as a separate loop.
  logs = harness.train(trainer, 1)
  assert state_of(trainer)[:-2] == before[:-2]
  assert np.isnan(logs['training_loss'])  # No step of this loop was good.
  assert 'grad_norm' not in logs and 'logit_mean' not in logs
  logs = harness.train(trainer, 1)
  assert np.isfinite(logs['training_loss']) and np.isfinite(logs['grad_norm'])
  assert state_of(trainer) != before


@pytest.mark.parametrize(
  'settings', harness.cases([PLAIN, dict(steps_per_execution=4), PLAIN_TWO], soak=[FUSED, SPLIT]), ids=str
)
def test_training_continues_as_if_the_bad_batches_had_not_been_there(settings):
  bad = [1, 4, 5]
  trainer = harness.make_trainer(data=data_with_nan(bad), **settings)
  logs = harness.train(trainer, 8)
  good = np.concatenate([np.arange(b * 8, b * 8 + 8) for b in range(8) if b not in bad])
  reference = harness.Reference(harness.sgd(), tuple(part[good] for part in trainer.task.data), 8).train(5)
  harness.assert_close(harness.weights_of(trainer), reference.weights)
  for name, values in (
    ('training_loss', reference.losses),
    ('grad_norm', reference.norms),
    ('accuracy', reference.accuracies),
  ):
    np.testing.assert_allclose(logs[name], np.mean(values), rtol=1e-5)
  assert logs['model_global_step'] == 8 and logs['optimizer_iterations'] == 5
  assert trainer.step_state.last_skips(16) == [2, 5, 6]


def test_the_last_sixteen_skips_are_remembered():
  trainer = harness.make_trainer(data=data_with_nan(range(8)), steps_per_execution=7)
  harness.train(trainer, 21)
  assert trainer.step_state.num_skips == 21
  assert trainer.step_state.last_skips(100) == list(range(6, 22))
  assert trainer.step_state.last_skips(2) == [20, 21]


@shapes('fused', 'plain_two')
def test_a_gradient_whose_norm_overflows_is_not_applied(shape):
  x, y = harness.make_data(64)
  x[8:16] = 3e19  # The loss is finite; the norm of the gradient is not, and clipping by it would give NaN.
  trainer = harness.make_trainer(data=(x, y), optimizer=lambda: harness.sgd(global_clipnorm=1.0), **shape)
  harness.train(trainer, 3)
  assert all(np.isfinite(w).all() for w in harness.weights_of(trainer))
  assert trainer.step_state.last_skips(3) == [2]


# Gradients that are IndexedSlices or None.


class EmbeddingTask(harness.LinearTask):
  """Softmax regression over the mean of embedded tokens, with rows that repeat, and a layer that no loss reads."""

  @staticmethod
  def model_fn():
    inputs = tf_keras.Input((6,), dtype=tf.int32)
    rng = np.random.default_rng(7)
    embedding = tf_keras.layers.Embedding(
      9, harness.NUM_FEATURES, embeddings_initializer=tf_keras.initializers.Constant(rng.normal(size=(9, 4)))
    )
    embedded = tf.reduce_mean(embedding(inputs), 1)
    dense = tf_keras.layers.Dense(harness.NUM_CLASSES)
    outputs = {'logits': dense(embedded), 'unused': tf_keras.layers.Dense(2)(embedded)}
    model = tf_keras.Model(inputs, outputs)
    dense.set_weights(harness.initial_weights())
    return model

  def forward(self, inputs, model, training):
    x, y = inputs
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)['logits'])), {}


def tokens_and_labels(num_examples=64):
  rng = np.random.default_rng(3)
  return rng.integers(0, 7, (num_examples, 6)).astype(np.int32), harness.make_data(num_examples)[1]


def train_embeddings_by_the_formulas(data, batch_size, num_steps, learning_rate, limit):
  """SGD on [embeddings, kernel, bias] with dense gradients, clipped by their global norm, in float64."""
  table = np.random.default_rng(7).normal(size=(9, 4)).astype(np.float32).astype(np.float64)
  weights, norms = [table, *harness.initial_weights(np.float32)], []
  for step in range(num_steps):
    tokens, labels = harness.global_batch(data, step, batch_size)
    one_hot = np.eye(9)[tokens].mean(1)
    _, (kernel, bias), _ = harness.softmax_regression(weights[1:], (one_hot @ weights[0], labels))
    logits = one_hot @ weights[0] @ weights[1] + weights[2]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    error = (p - np.eye(3)[labels]) / batch_size
    gradients = [one_hot.T @ error @ weights[1].T, kernel, bias]
    norms.append(harness.norm(gradients))
    weights = [w - learning_rate * g for w, g in zip(weights, harness.clip_by_global_norm(limit)(gradients))]
  return weights, norms


@shapes_and(
  'optimizer',
  {'legacy': legacy.SGD, 'new': new.SGD},
  fast=[('plain', 'legacy'), ('fused', 'legacy'), ('split', 'new'), ('plain_two', 'legacy')],
)
def test_sparse_and_missing_gradients_equal_dense_ones(shape, optimizer):
  trainer = harness.make_trainer(
    EmbeddingTask, tokens_and_labels(), accumulation=2, optimizer=lambda: optimizer(0.5, global_clipnorm=0.3), **shape
  )
  unused = trainer.model.layers[-1].get_weights()
  logs = harness.train(trainer, 4)
  weights, norms = train_embeddings_by_the_formulas(trainer.task.data, 16, 4, 0.5, 0.3)
  assert min(norms) > 0.3
  np.testing.assert_allclose(logs['grad_norm'], np.mean(norms), rtol=1e-5)
  harness.assert_close(harness.weights_of(trainer)[:3], weights, rtol=1e-4, atol=1e-5)
  harness.assert_close(trainer.model.layers[-1].get_weights(), unused, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize('name', harness.cases(['fused'], soak=['split', 'plain_two']))
def test_adam_on_sparse_gradients_is_the_same_in_every_shape(name):
  results = []
  for shape in (PLAIN, SHAPES[name]):
    trainer = harness.make_trainer(
      EmbeddingTask,
      tokens_and_labels(),
      optimizer=lambda: legacy_adamw.AdamWeightDecay(0.05, gradient_clip_norm=0.1, epsilon=1e-3),
      **shape,
    )
    harness.train(trainer, 5)
    results.append(harness.weights_of(trainer)[:3])  # The unused layer starts from random numbers.
  harness.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_an_update_that_xla_has_no_kernel_for_runs_outside_of_the_program():
  optimizer = lambda: legacy.SGD(0.5, momentum=0.9)  # Its sparse update is a kernel of TensorFlow's alone.
  results = []
  for enable_xla in (False, True, 'auto'):
    trainer = harness.make_trainer(
      EmbeddingTask, tokens_and_labels(), optimizer=optimizer, enable_xla=enable_xla, steps_per_execution=4
    )
    harness.train(trainer, 5)
    results.append(harness.weights_of(trainer)[:3])
    if enable_xla:
      assert (trainer.plan.execution, trainer.plan.jit_compile, trainer.plan.steps_per_execution) == ('split', True, 1)
      assert 'XLA cannot compile the update: Detected unsupported operations' in trainer.plan.reason
  for result in results[1:]:
    harness.assert_close(result, results[0], rtol=1e-4, atol=1e-5)


# Manual optimization.


class TwoUpdatesTask(harness.LinearTask):
  """Updates twice in a step with the trainer's optimizer, the second time along the first gradient's half."""

  def train_step(self, inputs, model, optimizer, metrics=None):
    with tf.GradientTape() as tape:
      loss, _ = self.forward(inputs, model, training=True)
      loss /= tf.distribute.get_strategy().num_replicas_in_sync
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    optimizer.apply_gradients(zip([g / 2 for g in gradients], model.trainable_variables))
    return {self.loss: loss * tf.distribute.get_strategy().num_replicas_in_sync, 'half': 0.5}


class OwnOptimizersTask(harness.LinearTask):
  """Updates kernel and bias by two custom optimizers, as a GAN does with its two networks."""

  def build_model(self):
    model = super().build_model()
    self.optimizers = [new.SGD(0.1), legacy.SGD(0.3)]
    self.optimizers[0].build(model.trainable_variables[:1])
    return model

  def train_step(self, inputs, model, optimizer, metrics=None):
    num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
    with tf.GradientTape() as tape:
      loss, _ = self.forward(inputs, model, training=True)
      scaled = loss / num_replicas
    kernel, bias = model.trainable_variables
    gradients = tape.gradient(scaled, [kernel, bias])
    self.optimizers[0].apply_gradients([(gradients[0], kernel)])
    self.optimizers[1].apply_gradients([(gradients[1], bias)])
    return {self.loss: loss}


def train_by_sgd(data, num_steps, kernel_rate, bias_rate):
  """(weights, losses) of plain gradient descent on batches of 8."""
  weights, losses = harness.initial_weights(np.float64), []
  weights = [w.astype(np.float32).astype(np.float64) for w in harness.initial_weights()]
  for step in range(num_steps):
    loss, (kernel, bias), _ = harness.softmax_regression(weights, harness.global_batch(data, step, 8))
    losses.append(loss)
    weights = [weights[0] - kernel_rate * kernel, weights[1] - bias_rate * bias]
  return weights, losses


class OneOwnOptimizerTask(OwnOptimizersTask):
  """Updates the kernel by the trainer's optimizer, once, and the bias by a custom one."""

  def train_step(self, inputs, model, optimizer, metrics=None):
    self.optimizers[0] = optimizer
    return super().train_step(inputs, model, optimizer, metrics)


MANUAL_SHAPES = {'plain': PLAIN, 'fused': FUSED, 'fused4': dict(steps_per_execution=4), 'two': SPLIT}
MANUAL_RATES = {TwoUpdatesTask: (0.15, 0.15), OwnOptimizersTask: (0.1, 0.3), OneOwnOptimizerTask: (0.1, 0.3)}
MANUAL = [
  (TwoUpdatesTask, 'plain'),
  (TwoUpdatesTask, 'fused4'),
  (OwnOptimizersTask, 'fused'),
  (OwnOptimizersTask, 'two'),
  (OneOwnOptimizerTask, 'fused4'),
  (OneOwnOptimizerTask, 'two'),
]
MANUAL_IN_SOAK = [(task, shape) for task in MANUAL_RATES for shape in MANUAL_SHAPES if (task, shape) not in MANUAL]


@tiers.parametrize('task, shape', harness.cases(MANUAL, MANUAL_IN_SOAK), fast=1)
def test_a_task_may_own_its_updates(task, shape):
  rates, shape = MANUAL_RATES[task], MANUAL_SHAPES[shape]
  trainer = harness.make_trainer(task, optimizer=lambda: legacy.SGD(0.1), **shape)
  logs = harness.train(trainer, 6)
  assert trainer.plan.manual_optimization and not trainer.guards_updates
  assert trainer.plan.execution == ('plain' if shape in (PLAIN, SPLIT) else 'fused')
  weights, losses = train_by_sgd(trainer.task.data, 6, *rates)
  harness.assert_close(harness.weights_of(trainer), weights)
  np.testing.assert_allclose(logs['training_loss'], np.mean(losses), rtol=1e-5)
  assert logs['model_global_step'] == 6
  assert task is not TwoUpdatesTask or logs['half'] == 0.5


@pytest.mark.parametrize(
  'task, message, replicas',
  harness.cases(
    [(TwoUpdatesTask, '2 times', 'one'), (OneOwnOptimizerTask, '1 times .*1 times on others', 'two')],
    soak=[(TwoUpdatesTask, '2 times', 'two'), (OneOwnOptimizerTask, '1 times .*1 times on others', 'one')],
  ),
)
def test_a_task_that_owns_its_updates_cannot_be_accumulated_for(task, message, replicas):
  trainer = harness.make_trainer(task, accumulation=2, replicas=replicas)
  with pytest.raises(errors.UserError, match=f'trainer.gradient_accumulation_steps: 2 needs .* calls it {message}'):
    harness.train(trainer, 1)


# Synchronised batch normalisation.


class SyncTask(harness.LinearTask):
  @staticmethod
  def model_fn():
    return tf_keras.Sequential(
      [
        tf_keras.Input((harness.NUM_FEATURES,)),
        tf_keras.layers.Dense(6, kernel_initializer=tf_keras.initializers.GlorotUniform(seed=1)),
        tf_keras.layers.BatchNormalization(synchronized=True),
        tf_keras.layers.Dense(harness.NUM_CLASSES, kernel_initializer=tf_keras.initializers.GlorotUniform(seed=2)),
      ]
    )


@pytest.mark.parametrize('accumulation', harness.cases([2], soak=[1]))
def test_synchronised_batch_normalisation_sees_the_global_batch(accumulation):
  results = []
  for replicas in ('one', 'two'):
    trainer = harness.make_trainer(SyncTask, replicas=replicas, accumulation=accumulation)
    logs = harness.train(trainer, 6 // accumulation)
    results.append([v.numpy() for v in trainer.model.variables] + [logs['accuracy']])
    if replicas == 'one':
      assert trainer.plan.execution == 'fused'
    else:
      assert trainer.plan.execution == 'plain' and 'synchronised batch normalisation' in trainer.plan.reason
  harness.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
  # Accumulated too, the moving statistics saw every batch.
  assert not np.allclose(results[1][4], 0) and np.isfinite(results[1][0]).all()


@pytest.mark.slow
def test_the_guard_works_beside_synchronised_batch_normalisation():
  trainer = harness.make_trainer(SyncTask, data_with_nan([1]), replicas='two')
  harness.train(trainer, 1)
  before = state_of(trainer)[:-2]
  harness.train(trainer, 1)
  assert state_of(trainer)[:-2] == before and trainer.step_state.num_skips == 1


# Operations that XLA cannot compile, and shapes that vary.


class StringsTask(harness.LinearTask):
  """Has a string among its inputs."""

  def build_inputs(self, params, input_context=None):
    return super().build_inputs(params, input_context).map(lambda x, y: (x, y, tf.strings.as_string(y)))

  def forward(self, inputs, model, training):
    return super().forward(inputs[:2], model, training)


class PythonTask(harness.LinearTask):
  """Calls Python in its step."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss + 0 * tf.numpy_function(lambda x: x, [tf.stop_gradient(loss)], tf.float32, stateful=False), logs


@tiers.parametrize(
  'replicas, task',
  harness.cases([('one', StringsTask), ('two', PythonTask)], soak=[('one', PythonTask), ('two', StringsTask)]),
  fast=1,
)
def test_what_xla_cannot_compile_runs_without_it_unless_ordered(task, replicas):
  trainer = harness.make_trainer(task, enable_xla='auto', replicas=replicas)
  harness.train(trainer, 2)
  reference = harness.Reference(harness.sgd(), trainer.task.data, 8).train(2)
  harness.assert_close(harness.weights_of(trainer), reference.weights)
  # XLA is asked only if the plan would be its.
  reason = {'one': 'XLA cannot compile the step: Detected unsupp', 'two': 'several replicas on CPUs'}[replicas]
  assert trainer.plan.execution == 'plain' and reason in trainer.plan.reason
  trainer = harness.make_trainer(task, enable_xla=True, replicas=replicas)
  message = f'runtime.enable_xla: XLA cannot compile the step of {task.__name__} .Detected unsupported operations'
  with pytest.raises(errors.UserError, match=message):
    harness.train(trainer, 2)


class VaryingTask(harness.LinearTask):
  """Batches of 2, 3, 4, 5 and 6 examples, in turn."""

  def build_inputs(self, params, input_context=None):
    x, y = self.data
    batches = lambda: ((x[:n], y[:n]) for _ in range(100) for n in range(2, 7))
    signature = (tf.TensorSpec([None, harness.NUM_FEATURES]), tf.TensorSpec([None], tf.int32))
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


@pytest.mark.parametrize('replicas', harness.cases(['one'], soak=['two']))
def test_shapes_that_vary_are_counted_and_named_where_xla_is_an_order(replicas, monkeypatch):
  # Stock: recompiles without a word.
  warnings = []
  monkeypatch.setattr('absl.logging.warning', lambda message, *args: warnings.append(message % args))
  trainer = harness.make_trainer(VaryingTask, enable_xla=True, steps_per_execution=4, replicas=replicas)
  harness.train(trainer, 2)
  assert trainer.plan.jit_compile and trainer.plan.steps_per_execution == 1
  assert trainer.num_compilations == (2 if replicas == 'one' else 4)
  assert not warnings or replicas == 'two'
  harness.train(trainer, 5)
  assert trainer.num_compilations == 5
  assert 'compiled 5 times' in warnings[-1]
  assert all(f'({n}, 4) ({n})' in warnings[-1] for n in range(2, 7))
  num_warnings = len(warnings)
  harness.train(trainer, 5)
  assert trainer.num_compilations == 5 and len(warnings) == num_warnings == (1 if replicas == 'one' else 2)


def test_shapes_that_vary_run_without_xla_by_the_rule():
  trainer = harness.make_trainer(VaryingTask, enable_xla='auto')
  harness.train(trainer, 3)
  assert trainer.plan.execution == 'plain' and 'shapes of the input are not fixed' in trainer.plan.reason
  assert trainer.num_compilations == 1


@pytest.fixture
def as_gpu(monkeypatch):
  monkeypatch.setattr(device_types, 'device_type', lambda strategy: 'GPU')


def count_plain_steps(monkeypatch, replicas):
  """A variable that counts the steps, or on several replicas the forward passes, that run without XLA."""
  count = tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
  choose = training_step.InputShapes.choose

  def noted(plain):
    def run(*args):
      count.assign_add(1)
      return plain(*args)

    return run

  monkeypatch.setattr(
    training_step.InputShapes, 'choose', lambda self, compiled, plain: choose(self, compiled, noted(plain))
  )
  return count


@pytest.mark.parametrize(
  'replicas, accumulation, max_shapes',
  harness.cases([('one', 1, 16), ('one', 1, 3), ('two', 1, 3)], soak=[('one', 2, 3), ('two', 2, 16)]),
)
def test_on_gpus_the_first_shapes_are_compiled_and_all_have_the_same_values(
  replicas, accumulation, max_shapes, as_gpu, monkeypatch
):
  monkeypatch.setattr(step_plan, 'MAX_SHAPES', max_shapes)
  warnings = []
  monkeypatch.setattr('absl.logging.warning', lambda message, *args: warnings.append(message % args))
  plain = harness.make_trainer(VaryingTask, enable_xla=False, replicas=replicas, accumulation=accumulation)
  harness.train(plain, 10)
  num_plain = count_plain_steps(monkeypatch, replicas)
  trainer = harness.make_trainer(VaryingTask, enable_xla='auto', replicas=replicas, accumulation=accumulation)
  harness.train(trainer, 10)
  assert trainer.plan.execution == ('fused' if replicas == 'one' else 'split') and trainer.plan.max_shapes == max_shapes
  harness.assert_close(harness.weights_of(trainer), harness.weights_of(plain))
  assert trainer.num_compilations == min(max_shapes, 5)  # A step takes 2 of 5 sizes, of which there are 5 pairs.
  assert (int(num_plain) > 0) == (max_shapes < 5)
  if replicas == 'one' and max_shapes < 5:
    assert int(num_plain) == 4  # Of 10 steps, the fourth and fifth of each five.
  assert len(warnings) == (1 if max_shapes < 5 else 0)
  if warnings:
    assert 'more than 3 shapes' in warnings[0] and 'pad them to a few lengths' in warnings[0]


class RaggedTask(harness.LinearTask):
  """A row of each batch is ragged."""

  def build_inputs(self, params, input_context=None):
    return super().build_inputs(params, input_context).map(lambda x, y: (x, y, tf.RaggedTensor.from_tensor(x)))

  def forward(self, inputs, model, training):
    return super().forward(inputs[:2], model, training)


def test_ragged_inputs_run_without_xla_on_gpus_too(as_gpu):
  trainer = harness.make_trainer(RaggedTask, enable_xla='auto')
  harness.train(trainer, 2)
  assert trainer.plan.execution == 'plain' and 'ragged' in trainer.plan.reason


class ConvolutionTask(harness.LinearTask):
  @staticmethod
  def model_fn():
    return tf_keras.Sequential(
      [
        tf_keras.Input((harness.NUM_FEATURES,)),
        tf_keras.layers.Reshape((2, 2, 1)),
        tf_keras.layers.Conv2D(2, 2, kernel_initializer=tf_keras.initializers.GlorotUniform(seed=1)),
        tf_keras.layers.Flatten(),
        tf_keras.layers.Dense(harness.NUM_CLASSES, kernel_initializer=tf_keras.initializers.GlorotUniform(seed=2)),
      ]
    )


@pytest.mark.slow
def test_convolutions_on_cpu_run_without_xla_by_the_rule_and_one_step_a_program_by_order():
  results = []
  for settings, shape, steps in (
    (dict(enable_xla='auto'), 'plain', 1),
    (dict(enable_xla=True, steps_per_execution=0), 'fused', 1),
    (dict(enable_xla=True, steps_per_execution=2), 'fused', 2),
  ):
    trainer = harness.make_trainer(ConvolutionTask, **settings)
    harness.train(trainer, 4)
    assert (trainer.plan.execution, trainer.plan.steps_per_execution) == (shape, steps)
    assert trainer.plan.unroll == (shape == 'fused')
    results.append(harness.weights_of(trainer))
  for result in results[1:]:
    harness.assert_close(result, results[0], rtol=1e-4)


def test_micro_batches_are_computed_one_after_the_other():
  """At the same time, the activations of all would be in memory."""
  heard = []

  def note(value, what):
    def hear(value):
      time.sleep(0.05)  # Long enough for another one to begin, if it may.
      heard.append(what)
      return value

    return tf.ensure_shape(tf.numpy_function(hear, [value], tf.float32, stateful=False), value.shape)

  @tf.custom_gradient
  def noted(loss):
    loss = note(loss, 'forward')
    return loss, lambda upstream: note(upstream + 1e-9 * loss, 'backward')

  class NotingTask(harness.LinearTask):
    def build_metrics(self, training=True):
      return []

    def forward(self, inputs, model, training):
      return noted(super().forward(inputs, model, training)[0]), {}

  trainer = harness.make_trainer(NotingTask, accumulation=3, **PLAIN)
  harness.train(trainer, 1)
  assert heard == 3 * ['forward', 'backward']


class DrawingTask(harness.LinearTask):
  """Logs a draw of each step."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss, {**logs, 'draw': step_random.uniform([], self.make_seed('draw'))}


def test_every_replica_draws_for_itself_in_a_step():
  trainer = harness.make_trainer(DrawingTask, replicas='two', enable_xla=False)
  drawn = []
  for step in range(2):
    for replica in range(2):
      with step_random.step_key(step_random.StepKey(seed=0, step=step, replica=replica, num_replicas=2)):
        drawn.append(float(step_random.uniform([], step_random.make_seed('draw'))))
  assert len(set(drawn)) == 4
  # The mean over replicas and steps.
  np.testing.assert_allclose(harness.train(trainer, 2)['draw'], np.mean(drawn), rtol=1e-6)
