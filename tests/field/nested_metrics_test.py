"""Metrics whose result is a dictionary, wherever a metric is named: `|` separates the levels."""

import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from tests.training.loop import small_run


class _Both(tf_keras.metrics.Metric):
  def __init__(self):
    super().__init__(name='m')
    self.total = self.add_weight('total', initializer='zeros')

  def update_state(self, values):
    self.total.assign_add(tf.reduce_sum(values))

  def result(self):
    return {'a': self.total + 0.0, 'deep': {'b': -self.total}}


class NestedMetric(small_run.SmallTask):
  evaluation_end_names = ('end',)

  def build_metrics(self, training=True):
    return [] if training else [_Both()]

  def forward(self, inputs, model, training):
    loss, _ = super().forward(inputs, model, training)
    return loss, {} if training else {'m': (inputs[0],)}

  def evaluation_end(self, model):
    return {'end': {'c': 1.0}}


@pytest.mark.parametrize('name', ['m|a', 'm|deep|b', 'end|c'])
def test_a_value_inside_decides(tmp_path, name):
  trainer = {
    'best_checkpoint_export_subdir': 'best',
    'best_checkpoint_eval_metric': name,
    'best_checkpoint_metric_comp': 'higher',
    'early_stopping': {'metric': name, 'mode': 'max', 'patience': 2},
    'reduce_lr_on_plateau': {'metric': name, 'mode': 'max', 'patience': 2},
  }
  small_run.run(tmp_path, task_cls=NestedMetric, trainer=trainer)
  [*_, last] = small_run.events(tmp_path, 'eval')
  assert last[f'best_{name}'] == max(event[name.replace('|', '/')] for event in small_run.events(tmp_path, 'eval'))


@pytest.mark.parametrize('name', ['m', 'm|c', 'm|deep'])
def test_a_name_that_is_no_number_is_refused_before_training(tmp_path, name):
  trainer = {'best_checkpoint_export_subdir': 'best', 'best_checkpoint_eval_metric': name}
  reports = r'reports end, m\|a, m\|deep\|b, validation_loss$'
  with pytest.raises(errors.UserError, match=rf'^trainer.best_checkpoint_eval_metric: .*{reports}'):
    small_run.run(tmp_path, task_cls=NestedMetric, trainer=trainer)
