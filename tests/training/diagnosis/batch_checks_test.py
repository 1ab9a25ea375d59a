"""A loss of a batch that is no mean of its examples' losses is found; weighted means are none."""

import itertools
import re
import types

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.training.diagnosis import batch_checks
from tests.training.diagnosis.task_checks_test import Sound
from tests.training.diagnosis.task_checks_test import find  # noqa: F401
from tests.training.loop import harness

WORDS = 'the loss of 8 examples is'


class StandardizedLabels(Sound):
  """Labels [b] and outputs [b, 1], neither of which is a part of the input by itself."""

  def forward(self, inputs, model, training):
    x, y = inputs
    labels = (tf.cast(y, tf.float32) - 1.0) / 0.8
    logits = model(x, training=training)
    return tf.reduce_mean(tf.abs(logits[:, :1] - labels)), {'accuracy': (y, logits)}


class PlainBroadcast(Sound):
  """The same, which the shapes of a trace show already."""

  def forward(self, inputs, model, training):
    x, y = inputs
    logits = model(x, training=training)
    return tf.reduce_mean(tf.square(logits[:, :1] - tf.cast(y, tf.float32))), {'accuracy': (y, logits)}


class SoftmaxOverBatch(Sound):
  """The softmax is over axis 0."""

  def forward(self, inputs, model, training):
    x, y = inputs
    logits = model(x, training=training)
    picked = tf.gather(tf.nn.log_softmax(logits, axis=0), y, axis=1, batch_dims=1)
    return -tf.reduce_mean(picked), {'accuracy': (y, logits)}


class Center(tf_keras.layers.Layer):
  """Subtracts the mean of the batch."""

  def call(self, inputs):
    return inputs - tf.reduce_mean(inputs, axis=0)


class Leaks(Sound):
  """A layer of its model uses statistics of the batch."""

  @staticmethod
  def model_fn():
    dense = tf_keras.layers.Dense(harness.NUM_CLASSES, name='logits')
    inputs = tf_keras.Input((harness.NUM_FEATURES,))
    return tf_keras.Sequential([inputs, tf_keras.layers.Dense(4, name='hidden'), Center(name='center'), dense])


class LeaksOnPurpose(Leaks):
  """The same, stated."""

  mixes_examples = True


def weighed(inputs, model, training):
  """Losses, and weights that are 0 for one class of three."""
  x, y = inputs
  logits = model(x, training=training)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits), tf.cast(y, tf.float32), {'accuracy': (y, logits)}


class WeightedMean(Sound):
  """A mean by weights that it does not state: as over tokens. Some examples have no weight."""

  def forward(self, inputs, model, training):
    losses, weights, logs = weighed(inputs, model, training)
    return tf.math.divide_no_nan(tf.reduce_sum(weights * losses), tf.reduce_sum(weights)), logs


class StatedWeights(WeightedMean):
  """A mean by weights that it states."""

  def micro_batch_weight(self, inputs):
    return tf.reduce_sum(tf.cast(inputs[1], tf.float32))


class KerasMean(Sound):
  """The sum of weighted losses over the number of examples, as in Keras."""

  def forward(self, inputs, model, training):
    losses, weights, logs = weighed(inputs, model, training)
    return tf.reduce_mean(weights * losses), logs


class RandomLoss(Sound):
  """Noise is drawn for a whole batch, also in an evaluation."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    noise = tf.random.stateless_uniform(tf.shape(inputs[1]), self.make_seed())
    return loss * tf.reduce_mean(noise), logs


@pytest.mark.parametrize(
  ('task_cls', 'what'),
  [
    (StandardizedLabels, f'labels and outputs broadcast, or examples mix in the loss: {WORDS}'),
    (SoftmaxOverBatch, f'labels and outputs broadcast, or examples mix in the loss: {WORDS}'),
    (Leaks, f'the output of the layer center for an example depends on the others of its batch: {WORDS}'),
  ],
)
def test_a_loss_that_is_no_mean_is_found(find, task_cls, what):  # noqa: F811
  (finding,) = find(task_cls)
  assert finding.level == 'warning' and finding.what.startswith(what), finding
  assert 'mixes_examples = True' in finding.remedy and re.search(r'\.py:\d+ \(\S*forward\)', finding.where)


def test_a_broadcast_is_reported_once(find):  # noqa: F811
  (finding,) = find(PlainBroadcast)
  assert 'label and prediction have the shapes' in finding.what and WORDS not in finding.what


@pytest.mark.parametrize('task_cls', [LeaksOnPurpose, WeightedMean, StatedWeights, KerasMean, RandomLoss])
def test_means_and_stated_mixtures_are_none(find, task_cls):  # noqa: F811
  assert find(task_cls) == []


def test_the_figures_are_those_of_the_task(find):  # noqa: F811
  class Greatest(Sound):
    """Its loss in an evaluation is the greatest label plus 1."""

    def forward(self, inputs, model, training):
      loss, logs = super().forward(inputs, model, training)
      return loss if training else tf.cast(tf.reduce_max(inputs[1]) + 1, tf.float32), logs

  labels = harness.make_data(24, seed=1)[1][:8] + 1
  (finding,) = find(Greatest)
  figures = re.search(r'is (\S+), and the mean of their losses, each computed alone, (\S+)', finding.what)
  assert figures and [float(figure) for figure in figures.groups()] == [labels.max(), np.mean(labels)]


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize('size', [2, 3, 8])
@pytest.mark.parametrize('spread', [1.0, 1e-2])
def test_any_weighted_mean_passes(size, spread):
  losses = 2 + spread * RANDOM.normal(size=size)
  weights = RANDOM.integers(1, 100, size)

  def loss_of(*chosen):
    return np.float32(np.average(losses[list(chosen)], weights=weights[list(chosen)]))

  compared = batch_checks.Comparison(loss_of(*range(size)), losses, np.ones(size))
  assert batch_checks.is_mean(compared, loss_of)


@pytest.mark.parametrize('function', [np.max, np.min, np.median, np.prod, lambda x: x.mean() + x.std()])
def test_other_functions_of_the_losses_do_not(function):
  losses = np.array([1.0, 3.0, 2.5, 0.5, 1.7])
  compared = batch_checks.Comparison(function(losses), losses, np.ones(5))
  assert not batch_checks.is_mean(compared, lambda *chosen: function(losses[list(chosen)]))


def test_a_task_without_a_loss_is_not_compared(find):  # noqa: F811
  class NoLoss(Leaks):
    """Its evaluation has no loss, so that `forward` is compared on training data."""

    def validation_step(self, inputs, model, metrics=None):
      metrics[0].update_state(inputs[1], model(inputs[0]))
      return {}

  (finding,) = find(NoLoss)
  assert 'the layer center' in finding.what and re.search(r'\.py:\d+ \(\S*forward\)', finding.where)


def test_the_finding_names_the_step_with_the_loss(find):  # noqa: F811
  class OwnStep(Leaks):
    """Its evaluation does not call `forward`."""

    def validation_step(self, inputs, model, metrics=None):
      logits = model(inputs[0])
      metrics[0].update_state(inputs[1], logits)
      losses = tf.nn.sparse_softmax_cross_entropy_with_logits(inputs[1], logits)
      return {self.loss: tf.reduce_mean(losses)}

  (finding,) = find(OwnStep)
  assert 'the layer center' in finding.what and re.search(r'\.py:\d+ \(\S*validation_step\)', finding.where)


def test_a_step_that_takes_long_is_not_repeated(find, monkeypatch):  # noqa: F811
  """The clock jumps by a minute at each call."""
  clock = itertools.count(0, 60)
  monkeypatch.setattr(batch_checks, 'time', types.SimpleNamespace(monotonic=lambda: next(clock)))
  assert find(Leaks) == []
