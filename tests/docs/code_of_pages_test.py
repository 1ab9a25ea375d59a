"""The code of pages of how_to works as described: debug, manual_optimization, optimization, token_loss."""

import json
import re

import numpy as np
import pytest
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util
import tensorflow as tf
import tf_keras

from experiments.digits_mlp import configs
from official_ext.cli import launch
from official_ext.training.config import definitions
from official_ext.training.loop import train_lib
from tests import documents
from tests.training.loop import harness
from tests.training.loop import small_run


def code_of(page, containing, **names):
  (code,) = [code for code in documents.code(documents.read(page)) if containing in code]
  namespace = {'__name__': 'page', **names}
  exec(compile(code, page, 'exec'), namespace)  # pylint: disable=exec-used
  return namespace


def train(task_cls, folder, mode='train_and_eval'):
  """digits_mlp, shorter, by another task."""
  params = small_run.make_params(train_steps=20, steps_per_loop=20, validation_interval=20, checkpoint_interval=20)
  params.task = configs.DigitsMlpTaskConfig(model=configs.DigitsMlpModelConfig(hidden_sizes=(32,)))
  strategy = harness.strategy('one')
  with strategy.scope():
    task = task_cls(params.task, logging_dir=str(folder))
  return train_lib.run_experiment(strategy, task, mode, definitions.upgrade(params), str(folder))


def images(folder, tag):
  accumulator = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.TENSORS: 0}).Reload()
  assert accumulator.SummaryMetadata(tag).plugin_data.plugin_name == 'images'
  (event,) = accumulator.Tensors(tag)
  return event.step, [tf.io.decode_png(png).numpy() for png in tensor_util.make_ndarray(event.tensor_proto)[2:]]


def test_pictures_of_a_task_and_of_an_action_reach_tensorboard(tmp_path):
  task_cls = code_of('docs/how_to/debug.md', 'draw_filters')['MyTask']
  train(task_cls, tmp_path)
  step, digits = images(tmp_path / 'validation', 'digits')
  assert (step, len(digits)) == (20, 20)
  from experiments.digits_mlp import task as digits_task  # pylint: disable=g-import-not-at-top

  first = digits_task.examples(False)['pixels'][0].reshape(8, 8, 1)
  np.testing.assert_allclose(digits[0] / 255, first, atol=0.01)
  step, filters = images(tmp_path / 'validation', 'filters')
  assert (step, len(filters), filters[0].shape) == (20, 16, (8, 8, 1))
  line = json.loads([text for text in (tmp_path / 'events.jsonl').read_text().splitlines() if '"eval"' in text][0])
  assert 'digits' not in line or not isinstance(line['digits'], list)


@pytest.mark.slow
def test_a_trainer_that_takes_its_own_batches(tmp_path):
  task_cls = code_of('docs/how_to/manual_optimization.md', 'HardestOfTwo')['MyTask']
  _, logs = train(task_cls, tmp_path)
  assert logs['accuracy'] > 0.2 and small_run.record(tmp_path)['status'] == 'finished'


@pytest.mark.slow
def test_tokens_count_alike_under_accumulation():
  """The update of micro-batches and replicas is that of one batch of all; the mean of their means is another."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(8, 5, 4)).astype(np.float32)
  labels = rng.integers(0, 3, (8, 5)).astype(np.int32)
  mask = (np.arange(5) < np.array([[5]] * 4 + [[1]] * 4)).astype(np.float32)  # Long sentences, and then short ones.

  class Tokens(harness.LinearTask):
    def build_model(self):
      model = tf_keras.Sequential([tf_keras.Input((5, 4)), tf_keras.layers.Dense(3)])
      model.set_weights(harness.initial_weights())
      return model

    def build_inputs(self, params, input_context=None):
      batches = tf.data.Dataset.from_tensor_slices({'tokens': x, 'labels': labels, 'mask': mask}).repeat()
      size = (
        input_context.get_per_replica_batch_size(params.global_batch_size)
        if input_context
        else params.global_batch_size
      )
      return batches.batch(size, drop_remainder=True)

  found = code_of('docs/how_to/token_loss.md', 'token_loss', tf=tf, tf_keras=tf_keras)
  task_cls = type('Task', (Tokens,), {name: found[name] for name in ('forward', 'micro_batch_weight', 'build_metrics')})
  without_weights = type('Means', (task_cls,), {'micro_batch_weight': lambda self, inputs: None})
  # By the formula: the gradient of the mean over 24 tokens.
  weights, tokens = harness.initial_weights(), mask.reshape(-1) > 0
  loss, gradients, _ = harness.softmax_regression(weights, (x.reshape(-1, 4)[tokens], labels.reshape(-1)[tokens]))
  expected = [w - g for w, g in zip(weights, gradients)]

  def trained(cls, batch_size, accumulation, replicas='one', enable_xla=False):
    trainer = harness.make_trainer(
      cls,
      batch_size=batch_size,
      accumulation=accumulation,
      replicas=replicas,
      enable_xla=enable_xla,
      optimizer=lambda: harness.sgd(1.0),
    )
    return harness.train(trainer, 1), harness.weights_of(trainer)

  for setting in ((8, 1), (4, 2), (2, 4), (8, 1, 'two'), (4, 2, 'two'), (4, 2, 'one', True)):
    logs, found_weights = trained(task_cls, *setting)
    harness.assert_close(found_weights, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose([logs['token_loss'], logs['training_loss']], loss, rtol=1e-5)
  _, of_means = trained(without_weights, 4, 2)
  assert max(np.abs(a - b).max() for a, b in zip(of_means, expected)) > 1e-2


def test_the_flags_of_launch_are_those_that_the_page_lists(capsys):
  with pytest.raises(SystemExit):
    launch.main(['--help'])
  listed = documents.tables(documents.read('docs/how_to/several_gpus.md'))['flag (default)']
  flags = set(re.findall(r'--\w+', capsys.readouterr().out)) - {'--help'}
  assert {re.match(r'`(--\w+)`', row).group(1) for row in listed} == flags


@pytest.mark.slow
def test_a_custom_schedule_sets_the_learning_rate(tmp_path):
  names = code_of('docs/how_to/optimization.md', 'TriangularRate')
  train(names['MyTask'], tmp_path)
  (line,) = small_run.events(tmp_path, 'train')
  rate = float(names['TriangularRate']()(line['step'] - 1))  # Of the last update.
  assert line['learning_rate'] == pytest.approx(rate)
