"""Patterns by which an optimizer excludes variables: none is read by characters, or matches nothing without a word."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from tests.training.loop import harness
from tests.training.loop import small_run


class NormTask(small_run.SmallTask):
  """The normalization has no gradient: only decay changes it."""

  def build_model(self):
    layers = [
      tf_keras.layers.Dense(4, name='body'),
      tf_keras.layers.LayerNormalization(name='ln'),
      tf_keras.layers.Dense(harness.NUM_CLASSES, name='head'),
    ]
    return tf_keras.Sequential([tf_keras.Input((harness.NUM_FEATURES,)), *layers])

  def build_metrics(self, training=True):
    return []

  def forward(self, inputs, model, training):
    return tf.reduce_mean(model.layers[0](inputs[0]) ** 2) + 0.0 * tf.reduce_sum(model(inputs[0])), {}


def _run(folder, capfd, patterns, optimizer='adamw', field='exclude_from_weight_decay'):
  config = {
    'optimizer': {'type': optimizer, optimizer: {'weight_decay_rate': 0.5, field: patterns}},
    'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.1}},
  }
  trainer = {'optimizer_config': config, 'train_steps': 2, 'steps_per_loop': 1}
  model, _ = small_run.run(folder, 'train', task_cls=NormTask, trainer=trainer)
  warnings = [line for line in capfd.readouterr().err.splitlines() if line.startswith('warning: trainer.optimizer_c')]
  return model.layers[1].gamma.numpy(), warnings


def test_what_is_excluded_does_not_decay(tmp_path, capfd):
  gamma, warnings = _run(tmp_path, capfd, ['ln/', 'bias'])
  assert (gamma == 1.0).all() and not warnings


def test_normalizations_that_decay_are_named_once(tmp_path, capfd):
  gamma, warnings = _run(tmp_path, capfd, ['LayerNorm', 'layer_norm', 'bias'])
  np.testing.assert_allclose(gamma, (1 - 0.1 * 0.5) ** 2, rtol=1e-5)
  path = 'trainer.optimizer_config.optimizer.adamw.exclude_from_weight_decay'
  assert warnings == [f'warning: {path}: the weights of normalizations decay: ln/gamma, ln/beta']


@pytest.mark.parametrize(
  ('optimizer', 'field'),
  [('adamw', 'exclude_from_weight_decay'), ('adamw', 'include_in_weight_decay'), ('lamb', 'exclude_from_weight_decay')],
)
def test_a_text_and_patterns_without_a_match_are_refused(tmp_path, capfd, optimizer, field):
  path = f'^trainer.optimizer_config.optimizer.{optimizer}.{field}: '
  with pytest.raises(errors.UserError, match=f"{path}.*'ln/,bias'"):
    _run(tmp_path, capfd, 'ln/,bias', optimizer, field)
  with pytest.raises(
    errors.UserError, match=f"{path}'nothing': no pattern matches one of the 6 trainable variables: bo"
  ):
    _run(tmp_path, capfd, ['nothing'], optimizer, field)
