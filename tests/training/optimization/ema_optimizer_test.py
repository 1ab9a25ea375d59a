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


def weights_and_average(num_steps, batch_size=8):
  """(weights, their moving average) after so many steps, by the formula."""
  reference = harness.Reference(harness.sgd(), harness.make_data(64), batch_size)
  average = [np.zeros_like(w) for w in reference.weights]  # The start of Model Garden's.
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
