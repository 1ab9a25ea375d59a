"""`forward` makes a task: train_step and validation_step are derived from it."""

import numpy as np
from official.core import config_definitions as cfg
import pytest
import tensorflow as tf
import tf_keras

from official_ext.training.step import step_random
from official_ext.training.tasks import base_task
from tests.training.loop import harness


def task_of(cls=harness.LinearTask):
  return cls(cfg.TaskConfig(), harness.make_data(8))


def test_train_step_applies_the_gradient_of_the_mean_loss():
  task = task_of()
  model, metrics = task.build_model(), task.build_metrics()
  logs = task.train_step(task.data, model, tf_keras.optimizers.legacy.SGD(0.5), metrics)
  loss, gradients, accuracy = harness.softmax_regression(harness.initial_weights(), task.data)
  np.testing.assert_allclose(logs['loss'], loss, rtol=1e-6)
  np.testing.assert_allclose(metrics[0].result(), accuracy)
  harness.assert_close(
    [v.numpy() for v in model.trainable_variables], [w - 0.5 * g for w, g in zip(harness.initial_weights(), gradients)]
  )
  assert set(logs) == {'loss', 'logit_mean'}


def test_validation_step_changes_no_weight():
  task = task_of()
  model, metrics = task.build_model(), task.build_metrics(training=False)
  logs = task.validation_step(task.data, model, metrics)
  loss, _, accuracy = harness.softmax_regression(harness.initial_weights(), task.data)
  np.testing.assert_allclose(logs['loss'], loss, rtol=1e-6)
  np.testing.assert_allclose(metrics[0].result(), accuracy)
  harness.assert_close(model.get_weights(), harness.initial_weights(), rtol=0, atol=0)


def test_loss_scaling_cancels_out():
  task = task_of()
  model = task.build_model()
  optimizer = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.legacy.SGD(0.5), initial_scale=1024)
  task.train_step(task.data, model, optimizer, task.build_metrics())
  _, gradients, _ = harness.softmax_regression(harness.initial_weights(), task.data)
  harness.assert_close(model.get_weights(), [w - 0.5 * g for w, g in zip(harness.initial_weights(), gradients)])


class RegularisedTask(harness.LinearTask):
  def build_model(self):
    layer = tf_keras.layers.Dense(harness.NUM_CLASSES, kernel_regularizer=tf_keras.regularizers.L2(0.1))
    model = tf_keras.Sequential([tf_keras.Input((harness.NUM_FEATURES,)), layer])
    model.set_weights(harness.initial_weights())
    return model

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss, {**logs, 'loss': loss, 'cross_entropy': loss}


def test_losses_of_the_model_are_added():
  task = task_of(RegularisedTask)
  model = task.build_model()
  penalty = 0.1 * np.square(harness.initial_weights()[0]).sum()
  loss, gradients, _ = harness.softmax_regression(harness.initial_weights(), task.data)
  logs = task.train_step(task.data, model, tf_keras.optimizers.legacy.SGD(0.5), task.build_metrics())
  np.testing.assert_allclose(logs['loss'], loss + penalty, rtol=1e-6)  # The value that forward logs under this name.
  np.testing.assert_allclose(logs['cross_entropy'], loss, rtol=1e-6)
  kernel = harness.initial_weights()[0]
  np.testing.assert_allclose(model.get_weights()[0], kernel - 0.5 * (gradients[0] + 0.2 * kernel), rtol=1e-4)


def test_a_tuple_without_a_metric_names_the_metrics_that_there_are():
  class Task(harness.LinearTask):
    def forward(self, inputs, model, training):
      loss, logs = super().forward(inputs, model, training)
      return loss, {'acuracy': logs['accuracy']}

  task = task_of(Task)
  with pytest.raises(ValueError, match=r"Task.forward logs the tuple 'acuracy', .* it has \['accuracy'\]"):
    task.validation_step(task.data, task.build_model(), task.build_metrics())


@pytest.mark.parametrize(
  'returned, message',
  [
    (lambda loss, logs: None, r'must return \(loss, logs\), .* it returned None'),
    (lambda loss, logs: loss, r'must return \(loss, logs\)'),
    (lambda loss, logs: (loss, loss), r'must return \(loss, logs\)'),
    (lambda loss, logs: (loss * tf.ones([8]), logs), r'must return a scalar loss, .*shape=\(8,\)'),
  ],
)
@pytest.mark.parametrize('in_graph', [False, True])
def test_what_forward_returns_is_checked(returned, message, in_graph):
  class Task(harness.LinearTask):
    def forward(self, inputs, model, training):
      return returned(*super().forward(inputs, model, training))

  task = task_of(Task)
  model = task.build_model()
  step = lambda: task.train_step(task.data, model, tf_keras.optimizers.legacy.SGD(0.5), task.build_metrics())
  with pytest.raises(ValueError, match=f'Task.forward {message}'):
    (tf.function(step) if in_graph else step)()


def test_forward_must_be_written():
  class Task(base_task.Task):
    def build_inputs(self, params, input_context=None):
      del params, input_context

  task = Task(cfg.TaskConfig())
  with pytest.raises(NotImplementedError, match='Task must implement forward'):
    task.train_step(None, tf_keras.Sequential(), None)


def test_config_step_and_seed():
  config = cfg.TaskConfig(init_checkpoint='somewhere')
  task = harness.LinearTask(config, harness.make_data(8))
  assert task.config is config and task.num_examples(None) is None
  assert task.step == 0
  with step_random.step_key(step_random.StepKey(seed=1, step=tf.constant(7, tf.int64))):
    assert task.step == 7
    np.testing.assert_array_equal(task.make_seed('a'), step_random.make_seed('a'))
