"""Labels [b] and predictions [b, 1], whose difference is [b, b]: a run and `official-ext check` report it."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.data import sources
from official_ext.data import step_indexed
from tests.training.loop import small_run


class Regression(small_run.SmallTask):
  label_axes, prediction_axes = 1, 2

  def build_model(self):
    return tf_keras.Sequential([tf_keras.layers.Input([4]), tf_keras.layers.Dense(1)])

  def build_metrics(self, training=True):
    return []

  def build_inputs(self, params, input_context=None):
    x = np.linspace(0, 1, 32 * 4, dtype=np.float32).reshape(32, 4)
    source = sources.ArraySource({'x': x, 'y': x[:, 0].astype(np.float64)})
    return step_indexed.build_dataset(source, params, input_context)

  def forward(self, inputs, model, training):
    labels, predictions = tf.cast(inputs['y'], tf.float32), model(inputs['x'])
    labels = labels if self.label_axes == 1 else labels[:, tf.newaxis]
    predictions = predictions if self.prediction_axes == 2 else tf.squeeze(predictions, -1)
    return tf.reduce_mean(self.error(labels, predictions)), {}

  def error(self, labels, predictions):
    return tf_keras.losses.mean_squared_error(labels, predictions)


class Reversed(Regression):
  label_axes, prediction_axes = 2, 1


class Absolute(Regression):
  def error(self, labels, predictions):
    return tf.abs(labels - predictions)


class CrossEntropy(Regression):
  def error(self, labels, predictions):
    return -(labels * tf.math.log_sigmoid(predictions))


class Vectors(Regression):
  prediction_axes = 1


class Columns(Regression):
  label_axes = 2


class PairsOfLabels(Vectors):
  """A loss that compares each label with each other one, on purpose; and centers of as many radial functions."""

  def error(self, labels, predictions):
    centers = tf.range(tf.cast(tf.size(labels), tf.float32))
    pairs = (labels[:, tf.newaxis] - labels) * (labels[:, tf.newaxis] - centers)
    return tf.reduce_mean(pairs) * predictions


def _run(folder, capfd, task_cls):
  params = small_run.make_params(train_steps=2, validation_interval=2)
  small_run.run(folder, task_cls=task_cls, params=params)
  return [line for line in capfd.readouterr().err.splitlines() if line.startswith('warning: ')]


@pytest.mark.parametrize('task_cls', [Regression, Reversed, Absolute, CrossEntropy])
def test_a_run_warns_once(tmp_path, capfd, task_cls):
  [warning] = _run(tmp_path, capfd, task_cls)
  assert warning.startswith(f'warning: {task_cls.__name__}.train_step: label and prediction have the shapes [8')
  assert 'the model learns the mean of the labels; give both one shape' in warning


@pytest.mark.parametrize('task_cls', [Vectors, Columns, PairsOfLabels])
def test_shapes_that_fit_are_not_reported(tmp_path, capfd, task_cls):
  assert not _run(tmp_path, capfd, task_cls)
