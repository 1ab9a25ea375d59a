"""Tests of finite_checks.py and finite_checks.py: tasks that fail in a known operation and layer, and the output of
--debug."""

import numpy as np
from official.core import task_factory
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.diagnosis import finite_checks
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run


class LogLayer(tf_keras.layers.Layer):
  """The logarithm of a ReLU: of 0, where a unit is off."""

  def call(self, inputs):
    return tf.math.log(tf.nn.relu(inputs))


class RootLayer(tf_keras.layers.Layer):
  """Finite forward; backward 1 / (2 sqrt(0)) times 0."""

  def call(self, inputs):
    return tf.sqrt(tf.nn.relu(inputs - 1e6))


class MaskLayer(tf_keras.layers.Layer):
  """An attention mask of -inf, as many write it, which a softmax turns into zeros; all masked, into NaN."""

  def __init__(self, num_masked, **kwargs):
    super().__init__(**kwargs)
    self._mask = [-np.inf] * num_masked + [0.0] * (harness.NUM_CLASSES - num_masked)

  def call(self, inputs):
    return tf.nn.softmax(tf.where(tf.math.is_inf(self._mask), tf.fill(tf.shape(inputs), -np.inf), inputs))


class OwnGradientLayer(tf_keras.layers.Layer):
  """A custom gradient that divides by 0."""

  def call(self, inputs):
    @tf.custom_gradient
    def same(x):
      return tf.identity(x), lambda upstream: upstream / tf.zeros_like(x)

    return same(inputs)


class InsideLayer(tf_keras.layers.Layer):
  """A layer inside a layer, called in a tf.function."""

  def __init__(self, inside, **kwargs):
    super().__init__(**kwargs)
    self.inside = inside

  @tf.function
  def call(self, inputs):
    return self.inside(inputs)


def task_with(make_layer):
  """A task whose model ends in a layer."""

  def build_model():
    inputs = tf_keras.Input((harness.NUM_FEATURES,))
    dense = tf_keras.layers.Dense(harness.NUM_CLASSES, name='dense')
    model = tf_keras.Model(inputs, make_layer()(dense(inputs)))
    dense.set_weights(harness.initial_weights())
    return model

  return type('TaskWithLayer', (small_run.SmallTask,), {'model_fn': staticmethod(build_model)})


def debug(monkeypatch, capsys, task_cls, *args, **trainer):
  """(the output of --debug, its error or None)."""
  params = small_run.make_params(**trainer)
  monkeypatch.setattr(task_factory, 'get_task', lambda *_, **__: task_cls(params.task, harness.make_data(64)))
  error = None
  try:
    finite_checks.debug_step(params, *(args or (None,)))
  except errors.DivergedError as e:
    error = e
  return capsys.readouterr().out, error


@tiers.parametrize(
  ('make_layer', 'operation', 'gradient_of', 'layer', 'phase', 'code', 'text'),
  [
    (
      lambda: LogLayer(name='log'),
      'Log',
      '',
      'log',
      'forward',
      'tf.math.log(tf.nn.relu(inputs))',
      'input    float32 [8, 3], 0 to ',
    ),
    (
      lambda: RootLayer(name='root'),
      'SqrtGrad',
      'Sqrt',
      'root',
      'backward',
      'tf.sqrt(tf.nn.relu(inputs - 1e6))',
      'input    float32 [8, 3], 0 to 0, 24 of 24 zero',
    ),
    (lambda: InsideLayer(LogLayer(name='log'), name='outer'), 'Log', '', 'outer/log', 'forward', 'tf.math.log', '-inf'),
    (
      lambda: OwnGradientLayer(name='own'),
      'RealDiv',
      '',
      'own',
      'backward',
      'upstream / tf.zeros_like(x)',
      'input    float32 [8, 3], 0 to 0, 24 of 24 zero',
    ),
  ],
  ids=['forward', 'backward', 'inside', 'custom'],
  fast=2,
)
def test_the_operation_and_the_layer(monkeypatch, capsys, make_layer, operation, gradient_of, layer, phase, code, text):
  out, error = debug(monkeypatch, capsys, task_with(make_layer))
  what = f'{operation}, of the gradient of {gradient_of},' if gradient_of else operation
  assert f'first      {what} in layer {layer}, {phase}\n' in out
  assert 'debugging_test.py:' in out and code in out and text in out
  assert f'{what} in layer {layer}, {phase}' in str(error) and error.exit_status == 3
  assert 'step       1 (the first), from the first weights' in out


def test_infinities_that_do_no_harm(monkeypatch, capsys):
  """A mask of -inf is not one of the run's troubles, until everything is masked: then the softmax is the first NaN."""
  out, error = debug(monkeypatch, capsys, task_with(lambda: MaskLayer(1, name='mask')))
  assert error is None and 'result     all finite' in out
  out, error = debug(monkeypatch, capsys, task_with(lambda: MaskLayer(3, name='mask')))
  assert 'first      Fill in layer mask, forward' in out
  assert 'first NaN  Softmax in layer mask, forward' in out
  assert str(error).endswith('; the first NaN is that of Softmax in layer mask, forward')


def test_a_batch_that_is_not_finite(monkeypatch, capsys):
  class Task(small_run.SmallTask):
    def build_inputs(self, params, input_context=None):
      return super().build_inputs(params, input_context).map(lambda x, y: (tf.where(x > 1.5, np.nan, x), y))

  out, error = debug(monkeypatch, capsys, Task)
  assert 'before     0 of the batch is not finite: float32 [8, 4]' in out
  assert 'not finite the loss, the gradient of dense/kernel:0' in out


def test_an_update(monkeypatch, capsys):
  """Gradient and learning rate are finite, their product is not."""

  class Task(small_run.SmallTask):
    def forward(self, inputs, model, training):
      loss, logs = super().forward(inputs, model, training)
      return 1e25 * loss, logs

  optimizer = {
    'optimizer': {'type': 'sgd', 'sgd': {'momentum': 0.9}},
    'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 1e20}},
  }
  out, error = debug(monkeypatch, capsys, Task, optimizer_config=optimizer)
  assert 'not finite the weight dense/kernel:0, the weight dense/bias:0\n' in out
  assert 'the first operation whose result is not finite is ResourceApplyKerasMomentum' in str(error)
  assert 'in no layer, update' in str(error)


class LaterTask(small_run.SmallTask):
  """Not finite from step 7 on."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return tf.where(self.step >= 6, tf.math.log(-loss), loss), logs


@pytest.mark.slow
def test_the_step_that_a_run_has_skipped(tmp_path, monkeypatch, capsys):
  """The run has skipped steps 7 to 9 and ended; 9 is debugged, from ckpt-8, and ckpt-4 if 8 is requested."""
  with pytest.raises(errors.DivergedError):
    small_run.run(tmp_path, 'train', LaterTask, trainer={'nonfinite': {'max_skips': 2}, 'steps_per_loop': 1})
  capsys.readouterr()
  before = sorted(path.name for path in tmp_path.iterdir())
  out, error = debug(monkeypatch, capsys, LaterTask, str(tmp_path))
  assert f'9 (the last that the run has skipped), from {tmp_path}/ckpt-8' in out
  assert 'first      Log in no layer, forward' in out and 'step 9: ' in str(error)
  out, error = debug(monkeypatch, capsys, LaterTask, str(tmp_path), None, 6)
  assert f'6 (--debug_step), from {tmp_path}/ckpt-4' in out and 'training   1 steps' in out and error is None
  assert sorted(path.name for path in tmp_path.iterdir()) == before
  with pytest.raises(errors.UserError, match='--debug_step: 4 is not after .*ckpt-8'):
    debug(monkeypatch, capsys, LaterTask, str(tmp_path), str(tmp_path / 'ckpt-8'), 4)


def test_ranges():
  assert finite_checks.describe_operation(tf.constant([0.0, 2.0, np.nan, -np.inf])) == (
    'float32 [4], 0 to 2, 1 of 4 NaN, 1 of 4 -inf, 1 of 4 zero'
  )
  assert finite_checks.describe_operation(tf.constant(['a'])) == 'string'
  assert not finite_checks.is_finite(tf.constant([1, np.inf], tf.bfloat16)) and finite_checks.is_finite(
    tf.constant([1])
  )
