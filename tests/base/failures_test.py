"""The exceptions of a task, in one line: the line of its code, wherever TensorFlow puts it; the traceback in a file."""

import inspect
import re
import tempfile

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import tracebacks
from official_ext.training.config import epochs
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run

Task = small_run.SmallTask


class TwoArgumentsError(Exception):
  """AutoGraph cannot make another one of it with a longer message."""

  def __init__(self, first, second):
    super().__init__(f'{first} and {second}')


class RaisesInForward(Task):
  def forward(self, inputs, model, training):
    return self.config.task_kwargs['no_such_key']  # HERE


class RaisesItsOwn(Task):
  def forward(self, inputs, model, training):
    raise TwoArgumentsError(1, 2)  # HERE


class AssertsWithoutWords(Task):
  def forward(self, inputs, model, training):
    assert inputs[0].shape[1] == 5  # HERE
    return super().forward(inputs, model, training)


class WrongShapes(Task):
  def forward(self, inputs, model, training):
    tf.matmul(inputs[0], tf.zeros([5, 3]))  # HERE
    return super().forward(inputs, model, training)


class WrongShapesAtRunTime(Task):
  """The graph fails far from the line that made the operation."""

  def forward(self, inputs, model, training):
    size = 7 + tf.cast(0 * tf.reduce_sum(inputs[0]), tf.int32)
    loss, logs = super().forward(inputs, model, training)
    return loss + tf.reduce_sum(tf.reshape(inputs[0], [size, size])), logs  # HERE


class MakesAVariable(Task):
  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss + tf.Variable(1.0), logs  # HERE


def add(x):
  return x + tf.zeros([77])  # Of AddLayer.


class AddLayer(tf_keras.layers.Layer):
  def call(self, inputs):
    return add(inputs)


class RaisesInALayer(Task):
  """Keras wraps the exceptions that AutoGraph has wrapped."""

  model_fn = staticmethod(lambda: tf_keras.Sequential([tf_keras.Input((harness.NUM_FEATURES,)), AddLayer()]))


class RaisesInItsPipeline(Task):
  def build_inputs(self, params, input_context=None):
    def broken(x, y):
      raise OSError('no such picture')  # HERE

    return super().build_inputs(params, input_context).map(broken)


class RaisesOnTheHost(Task):
  def build_inputs(self, params, input_context=None):
    @tf.autograph.experimental.do_not_convert
    def broken(x):
      return {}['lost']  # HERE

    def load(x, y):
      return tf.ensure_shape(tf.numpy_function(broken, [x], tf.float32), x.shape), y

    return super().build_inputs(params, input_context).map(load)


class RaisesInAGenerator(Task):
  def build_inputs(self, params, input_context=None):
    def generate():
      yield np.zeros([8, harness.NUM_FEATURES], np.float32), np.zeros([8], np.int32)
      raise RuntimeError('the socket was closed')  # HERE

    return tf.data.Dataset.from_generator(
      generate, output_signature=(tf.TensorSpec([8, harness.NUM_FEATURES]), tf.TensorSpec([8], tf.int32))
    )


class RaisesInAnAction(Task):
  def build_actions(self, trainer):
    def act(logs):
      logs['no_such_log']  # HERE

    return [act]


class BrokenMetric(tf_keras.metrics.Mean):
  def update_state(self, *args, **kwargs):
    raise TypeError('it cannot be updated')  # Of BrokenMetric.


class RaisesInAMetric(Task):
  def build_metrics(self, training=True):
    return [BrokenMetric('accuracy')]


class RaisesInItsEvaluation(Task):
  def validation_step(self, inputs, model, metrics=None):
    return {self.loss: tf.reduce_sum(tf.gather(inputs[0], tf.shape(inputs[0])[0] + 1))}  # HERE


class RaisesAfterItsEvaluation(Task):
  def aggregate_logs(self, state, step_outputs):
    return 1

  def reduce_aggregated_logs(self, logs, global_step=None):
    return {'share': 1 / (logs - 1)}  # HERE


class RaisesInBuildMetrics(Task):
  def build_metrics(self, training=True):
    return [undefined_name]  # noqa: F821  # HERE


class ReturnsALossAlone(Task):
  def forward(self, inputs, model, training):  # HERE
    return 3.0


CASES = [
  (RaisesInForward, 'HERE', 'AttributeError: '),
  (RaisesItsOwn, 'HERE', 'TwoArgumentsError: 1 and 2'),
  (AssertsWithoutWords, 'HERE', r'AssertionError: assert inputs\[0\].shape\[1\] == 5  # HERE'),
  (WrongShapes, 'HERE', r'ValueError: Dimensions must be equal, but are 4 and 5 for MatMul with input shapes: '),
  (
    WrongShapesAtRunTime,
    'HERE',
    'InvalidArgumentError: Input to reshape is a tensor with 32 values, but the requested shape has 49$',
  ),
  (MakesAVariable, 'HERE', 'ValueError: tf.function only supports singleton tf.Variables created on the first call'),
  (RaisesInALayer, 'Of AddLayer', 'ValueError: Dimensions must be equal, but are 4 and 77 for .*add'),
  (RaisesInItsPipeline, 'HERE', r'OSError: no such picture'),
  (RaisesOnTheHost, 'HERE', "KeyError: 'lost'$"),
  (RaisesInAGenerator, 'HERE', 'RuntimeError: the socket was closed$'),
  (RaisesInAnAction, 'HERE', "KeyError: 'no_such_log'$"),
  (RaisesInAMetric, 'Of BrokenMetric', 'TypeError: it cannot be updated$'),
  (RaisesInItsEvaluation, 'HERE', r'InvalidArgumentError: indices = 9 is not in \[0, 8\)$'),
  (RaisesAfterItsEvaluation, 'HERE', 'ZeroDivisionError: division by zero$'),
  (RaisesInBuildMetrics, 'HERE', "NameError: name 'undefined_name' is not defined"),
  (ReturnsALossAlone, 'HERE', r'ReturnsALossAlone.forward must return \(loss, logs\)'),
]


@tiers.parametrize('task_cls, mark, message', CASES, ids=[case[0].__name__ for case in CASES], fast=CASES[::3])
def test_what_a_task_raises_is_one_line_that_names_its_own(task_cls, mark, message, tmp_path):
  code, first = (
    inspect.getsourcelines(task_cls)
    if mark == 'HERE'
    else (inspect.getsource(inspect.getmodule(task_cls)).splitlines(), 1)
  )
  (line,) = [first + number for number, text in enumerate(code) if text.endswith((f'# {mark}\n', f'# {mark}.'))]
  with pytest.raises(Exception) as info:
    small_run.run(tmp_path, task_cls=task_cls, trainer={'train_steps': 2, 'steps_per_loop': 2})
  described = tracebacks.describe(info.value)
  place = re.escape(f'tests/base/failures_test.py:{line}')
  assert re.match(rf'{place}: {message}', described) and '\n' not in described, described
  if (tmp_path / 'run.json').exists():
    assert small_run.record(tmp_path)['error'] == tracebacks.message_of(info.value)
    assert small_run.events(tmp_path)[-1]['error'] == tracebacks.message_of(info.value)


def test_an_error_without_a_line_of_the_users_names_the_librarys():
  with pytest.raises(TypeError) as info:
    epochs.in_steps(None, None, None)
  traceback = info.value.__traceback__.tb_next  # Without this file.
  assert re.match(
    r'official_ext/training/config/epochs.py:\d+: TypeError: ',
    tracebacks.describe(info.value.with_traceback(traceback)),
  )


def test_a_script_that_calls_the_library_is_not_where_it_went_wrong(tmp_path):
  with pytest.raises(TypeError) as info:
    epochs.in_steps(None, None, None)
  assert tracebacks.place_of(info.value) is None


def test_a_user_error_of_a_task_stays_one_line(tmp_path):
  """AutoGraph makes another one of it, whose message has all frames."""

  class Refuses(Task):
    def forward(self, inputs, model, training):
      raise errors.UserError('task.model: has no such head')

  with pytest.raises(Exception, match='in user code') as info:
    small_run.run(tmp_path, task_cls=Refuses)
  assert str(tracebacks.refusal_in(info.value)) == 'task.model: has no such head'
  assert tracebacks.refusal_in(RuntimeError('UserError: x')) is None


@pytest.mark.parametrize(
  'error, text',
  [
    (ValueError("first\nsecond\n  In call to configurable 'Trainer' (<class>)"), 'ValueError: first second'),
    (RuntimeError(), 'RuntimeError'),
    (KeyError('name'), "KeyError: 'name'"),
    (ValueError('x' * 10_000), f'ValueError: {"x" * 300} ...'),
  ],
  ids=['gin', 'empty', 'key', 'long'],
)
def test_messages(error, text):
  assert tracebacks.message_of(error) == text


def test_the_traceback_goes_where_there_is_room(tmp_path, monkeypatch, capsys):
  error = RuntimeError('out of luck')
  path = tracebacks.save_traceback(error, str(tmp_path))
  assert path == f'{tmp_path}/traceback.txt' and 'RuntimeError: out of luck' in (tmp_path / 'traceback.txt').read_text()
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'temporary'))
  (tmp_path / 'temporary').mkdir()
  for folder in ('', '/proc', str(tmp_path / 'nowhere')):  # None, one that nobody can write to, one that is missing.
    path = tracebacks.save_traceback(error, folder)
    assert path.startswith(f'{tmp_path}/temporary/traceback-')
  assert not (tmp_path / 'nowhere').exists() and capsys.readouterr() == ('', '')
  monkeypatch.setattr(tempfile, 'tempdir', '/proc')
  assert tracebacks.save_traceback(error, '/proc') == ''
  assert 'RuntimeError: out of luck' in capsys.readouterr().err
