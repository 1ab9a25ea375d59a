"""The moving average of the weights: exact swaps, under loss scaling, and once for all replicas."""

import numpy as np
from official.modeling import optimization
import pytest
import tensorflow as tf
from tensorflow.python.distribute import input_lib
import tf_keras

from official_ext.base import tf_internals
from official_ext.training.loop import base_trainer
from official_ext.training.optimization import ema_optimizer
from tests import tiers
from tests.training.loop import harness

SHAPES = {
  'plain': dict(enable_xla=False),
  'fused': dict(steps_per_execution=2),
  'split': dict(replicas='two'),
  'plain_two': dict(enable_xla=False, replicas='two'),
}
DECAY = 0.5


def in_shapes(*fast):
  """A test in these shapes; in the others it is one of the long tests."""
  return pytest.mark.parametrize(
    'shape', [pytest.param(SHAPES[name], marks=[] if name in fast else pytest.mark.soak, id=name) for name in SHAPES]
  )


def stock_ema(wrap=lambda optimizer: optimizer):
  """Model Garden's own class, as its factory makes it."""
  return wrap(optimization.ExponentialMovingAverage(harness.sgd(), average_decay=DECAY, dynamic_decay=False))


def weights_and_average(num_steps, batch_size=8, start=1.0):
  """(weights, their moving average) after so many steps, by the formula, from `start` times the first weights."""
  reference = harness.Reference(harness.sgd(), harness.make_data(64), batch_size)
  average = [start * w for w in reference.weights]
  for _ in range(num_steps):
    reference.train(1)
    average = [DECAY * a + (1 - DECAY) * w for a, w in zip(average, reference.weights)]
  return reference.weights, average


def averages_of(trainer):
  ema = ema_optimizer.find(trainer.optimizer)
  return [ema.get_slot(v, 'average').numpy() for v in trainer.model.trainable_variables]


@pytest.mark.slow
@in_shapes('plain', 'split')
def test_the_average_follows_the_formula(shape):
  trainer = harness.make_trainer(optimizer=stock_ema, **shape)
  harness.train(trainer, 5)
  weights, average = weights_and_average(5)
  harness.assert_close(harness.weights_of(trainer), weights)
  harness.assert_close(averages_of(trainer), average)


@pytest.mark.slow
@in_shapes('fused', 'plain_two')
def test_the_average_follows_float16_training_and_waits_at_an_overflow(shape):
  # Stock: TypeError, its apply_gradients does not know experimental_aggregate_gradients.
  x, y = harness.make_data(64)
  x[24] *= 500  # Batch 3 overflows in float16, scaled.

  class Task(harness.LinearTask):
    model_fn = staticmethod(lambda: harness.linear_model('mixed_float16'))

  scaled = lambda: stock_ema(lambda ema: tf_keras.mixed_precision.LossScaleOptimizer(ema, initial_scale=2.0**15))
  trainer = harness.make_trainer(Task, (x, y), optimizer=scaled, **shape)
  harness.train(trainer, 3)
  weights, average = weights_and_average(3)
  harness.assert_close(harness.weights_of(trainer), weights, rtol=0.005, atol=0.005)
  harness.assert_close(averages_of(trainer), average, rtol=0.005, atol=0.005)
  before = averages_of(trainer)
  harness.train(trainer, 1)
  harness.assert_close(averages_of(trainer), before, rtol=0, atol=0)
  assert trainer.optimizer.loss_scale == 2.0**14


class LazyModel(tf_keras.Model):
  """Makes its weights at its first call, as Model Garden's RetinaNet makes those of its heads."""

  def __init__(self):
    super().__init__()
    kernel, bias = map(tf_keras.initializers.Constant, harness.initial_weights())
    self.layer = tf_keras.layers.Dense(harness.NUM_CLASSES, kernel_initializer=kernel, bias_initializer=bias)

  def call(self, inputs, training=None):
    return self.layer(inputs)


@tiers.parametrize('replicas', ['one', 'two'], fast=['two'])
def test_weights_that_the_first_call_makes_have_an_average(replicas):
  class Task(harness.LinearTask):
    model_fn = LazyModel

  trainer = harness.make_trainer(Task, optimizer=stock_ema, replicas=replicas, enable_xla=False)
  assert [weight.shape for weight in averages_of(trainer)] == [
    (harness.NUM_FEATURES, harness.NUM_CLASSES),
    (harness.NUM_CLASSES,),
  ]
  harness.train(trainer, 5)
  weights, average = weights_and_average(5)
  harness.assert_close(harness.weights_of(trainer), weights)
  harness.assert_close(averages_of(trainer), average)


@tiers.parametrize('replicas', ['one', 'two'], fast=['two'])
def test_the_first_call_makes_no_iterator(replicas, monkeypatch):
  # Another iterator over Model Garden's detection data augments otherwise, and a resumed run has a new dataset.
  made = []

  class Task(harness.LinearTask):
    model_fn = LazyModel

  for cls in (tf.data.Dataset, input_lib.DistributedDatasetsFromFunction):
    known = cls.__iter__
    monkeypatch.setattr(cls, '__iter__', lambda self, known=known: made.append(self) or known(self))
  trainer = harness.make_trainer(Task, optimizer=stock_ema, replicas=replicas, enable_xla=False)
  assert len(averages_of(trainer)) == 2 and not made
  harness.train(trainer, 1)
  assert made


@tiers.parametrize(
  'replicas, enable_xla', [('one', True), ('two', True), pytest.param('one', False, marks=pytest.mark.soak)], fast=1
)
def test_a_skipped_step_leaves_the_average(replicas, enable_xla):
  x, y = harness.make_data(64)
  x[15] = np.nan
  trainer = harness.make_trainer(data=(x, y), optimizer=stock_ema, replicas=replicas, enable_xla=enable_xla)
  harness.train(trainer, 1)
  before = averages_of(trainer)
  harness.train(trainer, 1)
  harness.assert_close(averages_of(trainer), before, rtol=0, atol=0)
  assert trainer.step_state.num_skips == 1


@tiers.parametrize(
  'replicas, enable_xla', [('one', True), ('two', False), pytest.param('two', True, marks=pytest.mark.soak)], fast=1
)
def test_evaluation_uses_the_average_and_gives_back_every_bit(replicas, enable_xla):
  # Stock: weights are swapped by a+b and a-b; after 20 evaluations 76 % of them have changed.
  trainer = harness.make_trainer(optimizer=stock_ema, replicas=replicas, enable_xla=enable_xla, evaluate=True)
  harness.train(trainer, 3)
  before = [w.tobytes() for w in [*harness.weights_of(trainer), *averages_of(trainer)]]
  _, average = weights_and_average(3)
  expected, _, accuracy = harness.softmax_regression(average, trainer.task.validation_data)
  for _ in range(20):
    logs = harness.evaluate(trainer)
  np.testing.assert_allclose(logs['validation_loss'], expected, rtol=1e-5)
  np.testing.assert_allclose(logs['accuracy'], accuracy)
  assert [w.tobytes() for w in [*harness.weights_of(trainer), *averages_of(trainer)]] == before


@tiers.parametrize('where', ['validation_step', 'next_eval_inputs', 'eval_end'], fast=1)
def test_an_evaluation_that_fails_gives_back_every_bit(where):
  # Stock: averages stay in place of the weights.
  class Broken(base_trainer.Trainer):
    broken = True

    def eval_end(self, aggregated_logs=None):
      if where == 'eval_end' and self.broken:
        raise OSError('Out of order.')
      return super().eval_end(aggregated_logs)

    def next_eval_inputs(self, iterator):
      if where == 'next_eval_inputs' and self.broken:
        raise OSError('Out of order.')
      return super().next_eval_inputs(iterator)

  class Task(harness.LinearTask):
    def validation_step(self, inputs, model, metrics=None):
      if where == 'validation_step' and trainer.broken:
        raise OSError('Out of order.')
      return super().validation_step(inputs, model, metrics)

  trainer = harness.make_trainer(Task, optimizer=stock_ema, trainer_cls=Broken, evaluate=True, enable_xla=False)
  harness.train(trainer, 2)
  before = [w.tobytes() for w in harness.weights_of(trainer)]
  with pytest.raises(Exception, match='Out of order'):  # A graph reports it in another class.
    harness.evaluate(trainer)
  assert [w.tobytes() for w in harness.weights_of(trainer)] == before
  trainer.broken = False
  _, average = weights_and_average(2)
  logs = harness.evaluate(trainer)
  np.testing.assert_allclose(
    logs['validation_loss'], harness.softmax_regression(average, trainer.task.validation_data)[0], rtol=1e-5
  )


class RecordingExporter:
  best_ckpt_logs = {'accuracy': 0.0}

  def maybe_export_checkpoint(self, checkpoint, logs, step):
    self.exported = [v.numpy() for v in checkpoint.model.trainable_variables]


def test_the_best_checkpoint_holds_the_averages():
  exporter = RecordingExporter()
  trainer = harness.make_trainer(
    optimizer=stock_ema,
    evaluate=True,
    checkpoint_exporter=exporter,
    trainer_config=dict(best_checkpoint_eval_metric='accuracy'),
  )
  harness.train(trainer, 2)
  harness.evaluate(trainer)
  harness.assert_close(exporter.exported, weights_and_average(2)[1])


def with_switch(zero_start):
  return dict(
    optimizer=stock_ema, enable_xla=False, trainer_config={'optimizer_config': {'ema_zero_start': zero_start}}
  )


@pytest.mark.parametrize('zero_start', [False, True])
def test_the_switch_starts_the_average_at_zero(zero_start):
  trainer = harness.make_trainer(**with_switch(zero_start))
  harness.train(trainer, 2)
  harness.assert_close(averages_of(trainer), weights_and_average(2, start=0.0 if zero_start else 1.0)[1])


def test_the_average_starts_at_weights_that_were_loaded_after_the_build():
  trainer = harness.make_trainer(evaluate=True, **with_switch(False))
  loaded = [weight + 1 for weight in harness.initial_weights()]
  for variable, value in zip(trainer.model.trainable_variables, loaded):
    variable.assign(value)
  logs = harness.evaluate(trainer)
  expected = harness.softmax_regression(loaded, trainer.task.validation_data)[0]
  np.testing.assert_allclose(logs['validation_loss'], expected, rtol=1e-5)
  harness.train(trainer, 1)
  after = harness.weights_of(trainer)
  harness.assert_close(averages_of(trainer), [DECAY * w + (1 - DECAY) * v for w, v in zip(loaded, after)])
  harness.train(trainer, 1)  # A second loop does not start again.
  again = harness.weights_of(trainer)
  before = [DECAY * w + (1 - DECAY) * v for w, v in zip(loaded, after)]
  harness.assert_close(averages_of(trainer), [DECAY * a + (1 - DECAY) * v for a, v in zip(before, again)])


VALUES = {
  'float16': 1.0,
  'bfloat16': 1.0,
  'float32': 1.0,
  'float64': 1.0,
  'complex64': 1.0 + 1.0j,
  'int32': 1,
  'int64': 2**40,
  'uint8': 250,
  'bool': False,
  'string': 'before',
}
AFTER = {**{name: 2 * value for name, value in VALUES.items()}, 'uint8': 255, 'bool': True, 'string': 'after'}


def of_dtype(name, value):
  return np.array(value).astype(tf.as_dtype(name).as_numpy_dtype) if name != 'string' else value


@pytest.mark.parametrize('name', VALUES)
def test_the_average_of_any_dtype_starts_at_the_value_follows_it_and_swaps_exactly(name):
  """By 1 from 1 at a decay of 0.999: moves of 0.001, below half a unit of the last place of bfloat16 and float16."""
  module = tf.Module()
  module.variable = tf.Variable(of_dtype(name, VALUES[name]), dtype=name, trainable=False)
  ema = ema_optimizer.ExponentialMovingAverage(
    harness.sgd(), average_decay=0.999, dynamic_decay=False, trainable_weights_only=False
  )
  ema.shadow_copy(module)
  average = ema.get_slot(module.variable, 'average')
  assert average.dtype == module.variable.dtype and average.numpy() == module.variable.numpy()
  module.variable.assign(of_dtype(name, AFTER[name]))
  for _ in range(100):
    ema.update_average(tf.distribute.get_strategy())
  before = module.variable.numpy(), average.numpy()
  if module.variable.dtype.is_floating or module.variable.dtype.is_complex:
    expected = AFTER[name] + (VALUES[name] - AFTER[name]) * 0.999**100
    eps = float(np.finfo(tf.as_dtype(name).as_numpy_dtype).eps) if name != 'bfloat16' else 2.0**-7
    np.testing.assert_allclose(before[1].astype(complex), expected, rtol=eps + 1e-5)
  else:
    assert before[1] == before[0]
  with harness.strategy('one').scope():
    ema.swap_weights()
    assert (module.variable.numpy(), average.numpy()) == before[::-1]
    ema.swap_weights()
    assert (module.variable.numpy(), average.numpy()) == before


class Normalised(harness.LinearTask):
  """A batch normalisation before the linear model: each replica has its own moving mean."""

  @staticmethod
  def model_fn():
    layers = [tf_keras.layers.BatchNormalization(momentum=0.5), tf_keras.layers.Dense(harness.NUM_CLASSES)]
    return tf_keras.Sequential([tf_keras.Input((harness.NUM_FEATURES,)), *layers])


@tiers.parametrize('replicas', ['one', 'two'], fast=['two'])
def test_the_average_of_a_statistic_is_that_of_all_replicas(replicas):
  """The averages of the means over replicas, also after a loop of several steps; the same on each replica."""
  optimizer = lambda: ema_optimizer.ExponentialMovingAverage(
    harness.sgd(), average_decay=DECAY, dynamic_decay=False, trainable_weights_only=False
  )
  trainer = harness.make_trainer(Normalised, optimizer=optimizer, replicas=replicas, enable_xla=False)
  statistic = trainer.model.layers[0].moving_mean
  average = trainer.optimizer.get_slot(statistic, 'average')
  x, expected, mean = harness.make_data(64)[0], np.zeros(4), np.zeros(4)
  for loop in (range(1), range(1, 4)):
    harness.train(trainer, len(loop))
    for step in loop:
      mean = 0.5 * mean + 0.5 * x[8 * step : 8 * step + 8].mean(0)
      expected = DECAY * expected + (1 - DECAY) * mean
  np.testing.assert_allclose(statistic.numpy(), mean, rtol=1e-5)
  for component in trainer.strategy.experimental_local_results(average):
    np.testing.assert_allclose(component.numpy(), expected, rtol=1e-5)


def test_adopting_makes_model_gardens_class_this_one():
  ema = stock_ema()
  assert ema_optimizer.adopt(ema) is ema and isinstance(ema, ema_optimizer.ExponentialMovingAverage)
  assert ema_optimizer.adopt(ema) is ema_optimizer.find(ema) is ema
  scaled = stock_ema(tf_keras.mixed_precision.LossScaleOptimizer)
  assert ema_optimizer.adopt(scaled) is ema_optimizer.find(scaled) is scaled.inner_optimizer
  assert isinstance(scaled.inner_optimizer, ema_optimizer.ExponentialMovingAverage)
  assert ema_optimizer.adopt(harness.sgd()) is None
  assert ema_optimizer.adopt(tf_keras.optimizers.experimental.Adam()) is None


def test_looking_for_an_average_changes_no_class():
  ema = stock_ema()
  stock = type(ema)
  assert ema_optimizer.find(ema) is None and type(ema) is stock
  assert ema_optimizer.find(harness.sgd()) is None


def test_swapping_needs_a_cross_replica_context():
  ema = ema_optimizer.adopt(stock_ema())
  ema.shadow_copy(harness.linear_model())
  with pytest.raises(ValueError, match='Swapping weights'):
    tf_internals.make_strategy(tf.distribute.MirroredStrategy, devices=['CPU:0', 'CPU:1']).run(ema.swap_weights)
