"""A forward whose loss includes the model's losses is found; others are not."""

import pytest
import tensorflow as tf
import tf_keras

from official_ext.training.diagnosis import step_checks
from tests.training.loop import harness
from tests.training.loop import small_run


def regularized():
  layer = tf_keras.layers.Dense(3, kernel_regularizer='l2')
  return tf_keras.Sequential([tf_keras.Input((harness.make_data(8)[0].shape[1],)), layer])


class Regularized(small_run.SmallTask):
  model_fn = staticmethod(regularized)


class AddsThem(Regularized):
  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss + 0.5 * tf.add_n(model.losses), logs


class AddsThemInTraining(Regularized):
  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss + sum(model.losses) if training else loss, logs


class LogsThem(Regularized):
  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss, {**logs, 'regularization': tf.add_n(model.losses)}


class AddsNothingInItsStep(AddsThem):
  def _loss_and_logs(self, inputs, model, training):
    return self.forward(inputs, model, training)


@pytest.mark.parametrize(
  ('task_cls', 'is_found'),
  [
    (AddsThem, True),
    (AddsThemInTraining, True),
    (Regularized, False),
    (LogsThem, False),
    (AddsNothingInItsStep, False),
    (small_run.SmallTask, False),
  ],
)
def test_find(task_cls, is_found):
  params = small_run.make_params()
  task = small_run.make_task(params, task_cls)
  model = task.build_model()
  before = float(sum(model.losses))
  found = step_checks.find_model_losses(task, model, tuple(part[:8] for part in task.data))
  assert [finding.level for finding in found] == ['error'] * is_found
  for finding in found:
    assert f'({task_cls.__name__}.forward)' in finding.where and 'model_losses_test.py:' in finding.where
  assert float(sum(model.losses)) == pytest.approx(before)
