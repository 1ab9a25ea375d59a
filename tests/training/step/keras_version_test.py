"""Models, layers, optimizers, metrics and callbacks of Keras 3 are refused in one line, in every mode."""

import re

import keras
from official.core import task_factory
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.actions import keras_callbacks
from official_ext.training.diagnosis import dry_run
from official_ext.training.step import keras_version
from official_ext.training.trained import trained_model
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run

SIZE = harness.make_data(8)[0].shape[1]


class Subclassed(tf_keras.Model):
  """Has its last layer in a dictionary in a list."""

  def __init__(self, last):
    super().__init__()
    self.first = tf_keras.layers.Dense(4)
    self.others = [{'last': last}]

  def call(self, inputs):
    return self.others[0]['last'](self.first(inputs))


def functional(first):
  inputs = tf_keras.Input((SIZE,))
  return tf_keras.Model(inputs, tf_keras.layers.Dense(3)(first(inputs)))


def task_with(**methods):
  return type('KerasThree', (small_run.SmallTask,), {name: made(name) for name, made in methods.items()})


def returning(make):
  """A method of any name that returns the result of `make`; its line is that of the lambda below."""
  return lambda name: lambda self, *args, **kwargs: make()


MODELS = {
  'returned a Keras 3 model (Sequential)': lambda: keras.Sequential([keras.Input((SIZE,)), keras.layers.Dense(3)]),
  "the model has a Keras 3 layer, Subclassed.others[0]['last'] (Dense)": lambda: Subclassed(keras.layers.Dense(3)),
  'the model has a Keras 3 layer, a variable of tf.nn.bias_add': lambda: functional(keras.layers.Dense(3)),
  'mixes Keras 3 and tf_keras': lambda: tf_keras.Sequential([keras.layers.Dense(3)]),
}


@tiers.parametrize('mode', ['train_and_eval', 'train'], fast=1)
@pytest.mark.parametrize('message', MODELS)
def test_models(message, mode, tmp_path):
  task = task_with(build_model=returning(MODELS[message]))
  line = r'keras_version_test.py:\d+: KerasThree.build_model: ' + re.escape(message) + '.*; use tf_keras'
  with pytest.raises(errors.UserError, match=line):
    small_run.run(tmp_path / 'a', mode, task_cls=task)
  assert not (tmp_path / 'a').exists()


@tiers.parametrize('message', MODELS, fast=1)
def test_an_evaluation_and_a_model_that_is_loaded_for_export_or_predict(message, tmp_path, monkeypatch):
  params = small_run.make_params(train_steps=4, validation_interval=4)
  small_run.run(tmp_path, params=params)
  task = task_with(build_model=returning(MODELS[message]))
  line = 'KerasThree.build_model: ' + re.escape(message)
  with pytest.raises(errors.UserError, match=line):
    small_run.run(tmp_path, 'eval', task, params=params)
  monkeypatch.setattr(task_factory, 'get_task', lambda config: small_run.make_task(params, task))
  with pytest.raises(errors.UserError, match=line):
    trained_model.load_model(params, str(tmp_path))


@pytest.mark.parametrize('message', MODELS)
def test_the_dry_run_without_data_refuses_them_too(message):
  params = small_run.make_params()
  task = small_run.make_task(params, task_with(build_model=returning(MODELS[message])))
  with pytest.raises(errors.UserError, match='KerasThree.build_model: ' + re.escape(message)):
    dry_run._build_parts(tf.distribute.get_strategy(), task, params)


@pytest.mark.parametrize(
  ('method', 'make', 'message'),
  [
    ('create_optimizer', keras.optimizers.SGD, r'create_optimizer: returned a Keras 3 optimizer \(SGD\)'),
    ('build_metrics', lambda: [keras.metrics.Mean('m')], r'build_metrics: returned a Keras 3 metric, m \(Mean\)'),
  ],
)
def test_optimizers_and_metrics(method, make, message, tmp_path):
  task = task_with(**{method: returning(make)})
  with pytest.raises(errors.UserError, match=rf'keras_version_test.py:\d+: KerasThree.{message}; use tf_keras'):
    small_run.run(tmp_path / 'a', task_cls=task)
  assert not (tmp_path / 'a').exists()


def test_callbacks():
  with pytest.raises(errors.UserError, match='build_actions: LearningRateScheduler is a Keras 3 callback'):
    keras_callbacks.KerasCallback(keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), None)


def test_models_of_tf_keras_are_taken():
  """Initializers, regularizers and activations of Keras 3 are functions of tensors, and work."""
  initializer = keras.initializers.Zeros()
  dense = tf_keras.layers.Dense(3, keras.activations.relu, kernel_initializer=initializer)
  for model in (Subclassed(dense), functional(tf_keras.layers.Dense(3)), harness.linear_model()):
    keras_version.check_model(None, model)
  keras_version.check_optimizer(None, tf_keras.optimizers.legacy.SGD())
  keras_version.check_metrics(None, [tf_keras.metrics.Mean()])
