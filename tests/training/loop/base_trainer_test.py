"""The trainer: its override points, its logs, exact evaluation, exact input, and Model Garden's plain parts."""

import numpy as np
from official.core import base_task as official_task
from official.core import base_trainer as official_trainer
from official.core import config_definitions as cfg
import pytest
import tensorflow as tf
from tensorflow.python.framework import config
import tf_keras

from official_ext.base import errors
from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.config import definitions
from official_ext.training.loop import base_trainer
from tests import tiers
from tests.training.loop import harness


def reference(trainer, num_steps, batch_size=8):
  return harness.Reference(harness.sgd(), trainer.task.data, batch_size).train(num_steps)


# Logs.


@pytest.mark.slow
def test_logs_of_a_training_loop():
  trainer = harness.make_trainer(
    optimizer=lambda: harness.sgd(tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))
  )
  weights, means = harness.initial_weights(), []
  harness.train(trainer, 2)
  logs = harness.train(trainer, 1)
  assert set(logs) == {
    'accuracy',
    'training_loss',
    'grad_norm',
    'learning_rate',
    'logit_mean',
    'optimizer_iterations',
    'model_global_step',
  }
  np.testing.assert_allclose(logs['learning_rate'], 0.1 * 0.5**2)  # Of the third update.
  assert logs['model_global_step'] == logs['optimizer_iterations'] == 3
  trainer = harness.make_trainer(optimizer=lambda: harness.sgd(0.0), steps_per_execution=2)
  logs = harness.train(trainer, 5)
  for step in range(5):
    means.append((harness.global_batch(trainer.task.data, step, 8)[0] @ weights[0] + weights[1]).mean())
  np.testing.assert_allclose(logs['logit_mean'], np.mean(means), rtol=1e-5)


@pytest.mark.parametrize('optimizer_cls', [tf_keras.optimizers.legacy.SGD, tf_keras.optimizers.experimental.SGD])
def test_the_logged_learning_rate_is_that_of_the_last_update(optimizer_cls):
  schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
  trainer = harness.make_trainer(optimizer=lambda: optimizer_cls(schedule))
  with trainer.strategy.scope():
    for step in range(3):
      assert float(trainer.train(tf.constant(1))['learning_rate']) == 0.5 * 0.5**step


def test_the_logged_learning_rate_does_not_change_afterwards():
  schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
  trainer = harness.make_trainer(optimizer=lambda: tf_keras.optimizers.experimental.SGD(schedule))
  with trainer.strategy.scope():
    logs = trainer.train(tf.constant(1))
    before = float(logs['learning_rate'])
    trainer.train(tf.constant(3))
  assert float(logs['learning_rate']) == before


class ScalarsTask(harness.LinearTask):
  """Logs, in evaluation, the mean of the first feature, something that is not a scalar, and aggregates on the host."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss, {**logs, 'first_feature': tf.reduce_mean(inputs[0][:, 0]), 'features': inputs[0]}

  def aggregate_logs(self, state, step_logs):
    self.names = set(step_logs)
    return (state or []) + [np.concatenate([part.numpy() for part in step_logs['features']])]

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return {'num_examples': sum(len(part) for part in aggregated_logs), 'at_step': global_step.numpy()}


@tiers.parametrize(
  'num_examples, replicas',
  harness.cases([(21, 'one'), (16, 'two'), (9, 'two')], soak=[(16, 'one'), (9, 'one'), (21, 'two')]),
  fast=1,
)
def test_evaluation_counts_every_example_once(replicas, num_examples):
  # Stock: the mean of means of batches, and NaN where the last batch leaves a replica without examples.
  data = harness.make_data(num_examples, seed=5)
  trainer = harness.make_trainer(ScalarsTask, replicas=replicas, validation_data=data, evaluate=True, train=False)
  loss, _, accuracy = harness.softmax_regression(harness.initial_weights(), data)
  for _ in range(2):  # The second time as the first.
    logs = harness.evaluate(trainer)
    np.testing.assert_allclose(logs['validation_loss'], loss, rtol=1e-6)
    np.testing.assert_allclose(logs['accuracy'], accuracy, rtol=1e-6)
    np.testing.assert_allclose(logs['first_feature'], data[0][:, 0].mean(), rtol=1e-5)
    assert logs['num_examples'] == num_examples and logs['at_step'] == 0
    assert set(logs) == {'validation_loss', 'accuracy', 'first_feature', 'logit_mean', 'num_examples', 'at_step'}
  assert trainer.task.names == {'loss', 'first_feature', 'logit_mean', 'features'}
  assert trainer.validation_log_names() == ['first_feature', 'logit_mean']


@pytest.mark.parametrize('config', [dict(eval_tf_function=False), dict(eval_tf_while_loop=True)], ids=str)
def test_evaluation_loops_of_model_garden(config):
  trainer = harness.make_trainer(evaluate=True, train=False, trainer_config=config)
  logs = harness.evaluate(trainer, 1)
  loss, _, accuracy = harness.softmax_regression(harness.initial_weights(), trainer.task.validation_data)
  np.testing.assert_allclose(logs['validation_loss'], loss, rtol=1e-6)
  np.testing.assert_allclose(logs['accuracy'], accuracy)


class Exporter:
  """Replaces orbit's exporter of the best checkpoint."""

  def __init__(self):
    self.best_ckpt_logs = {}

  def maybe_export_checkpoint(self, checkpoint, logs, step):
    self.best_ckpt_logs = {'accuracy': 0.75}
    self.exported = (checkpoint, dict(logs), step)


def test_evaluation_exports_the_best_checkpoint_and_logs_it():
  exporter = Exporter()
  trainer = harness.make_trainer(
    evaluate=True, checkpoint_exporter=exporter, trainer_config=dict(best_checkpoint_eval_metric='accuracy')
  )
  harness.train(trainer, 2)
  logs = harness.evaluate(trainer)
  assert logs['best_accuracy'] == 0.75
  checkpoint, exported, step = exporter.exported
  assert checkpoint is trainer.checkpoint and step == 2
  assert set(exported) == {'accuracy', 'validation_loss', 'logit_mean'}


# Override points.


class SelectiveTrainer(base_trainer.Trainer):
  """Trains on every second batch only; passes a log past the device in evaluation."""

  def next_train_inputs(self, iterator):
    next(iterator)
    return next(iterator)

  def next_eval_inputs(self, iterator):
    inputs, logs = super().next_eval_inputs(iterator)
    return inputs, {**logs, 'passed': tf.constant([1, 2]), 'logit_mean': 'shadowed'}


@tiers.parametrize('settings', [dict(enable_xla=False), dict(steps_per_execution=4)], ids=['plain', 'fused'], fast=1)
def test_next_train_inputs_may_be_overridden(settings):
  trainer = harness.make_trainer(trainer_cls=SelectiveTrainer, **settings)
  harness.train(trainer, 4)
  used = np.concatenate([np.arange(s * 8, s * 8 + 8) for s in (1, 3, 5, 7)])
  expected = harness.Reference(harness.sgd(), tuple(part[used] for part in trainer.task.data), 8).train(4)
  harness.assert_close(harness.weights_of(trainer), expected.weights)


@pytest.mark.parametrize('replicas', harness.cases(['two'], soak=['one']))
def test_next_eval_inputs_may_pass_logs_to_aggregate_logs(replicas, monkeypatch):
  trainer = harness.make_trainer(
    ScalarsTask, replicas=replicas, trainer_cls=SelectiveTrainer, evaluate=True, train=False
  )
  seen = []
  monkeypatch.setattr(trainer.task, 'aggregate_logs', lambda state, logs: seen.append(logs))
  warnings = []
  monkeypatch.setattr('absl.logging.warning', lambda message, *args: warnings.append(message % args))
  logs = harness.evaluate(trainer)
  np.testing.assert_array_equal(seen[0]['passed'], [1, 2])
  assert 'logit_mean' in logs and "both log ['logit_mean']" in warnings[0]


class CountingTrainer(base_trainer.Trainer):
  """Wraps the library's train_step, and adds to the logs at both ends."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.num_calls = tf.Variable(0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

  def train_step(self, iterator):
    super().train_step(iterator)
    self.num_calls.assign_add(1)

  def train_loop_end(self):
    return {**super().train_loop_end(), 'num_calls': self.num_calls.numpy()}

  def eval_end(self, aggregated_logs=None):
    return {**super().eval_end(aggregated_logs), 'twice': 2 * self.validation_loss.result()}


@tiers.parametrize(
  'settings', [dict(enable_xla=False), dict(steps_per_execution=4), dict(replicas='two')], ids=str, fast=1
)
def test_train_step_may_call_the_librarys(settings):
  trainer = harness.make_trainer(trainer_cls=CountingTrainer, evaluate=True, **settings)
  logs = harness.train(trainer, 6)
  assert logs['num_calls'] == logs['model_global_step'] == 6
  assert trainer.plan.steps_per_execution == 1  # Between the steps stands the subclass.
  harness.assert_close(harness.weights_of(trainer), reference(trainer, 6).weights)
  logs = harness.evaluate(trainer)
  np.testing.assert_allclose(logs['twice'], 2 * logs['validation_loss'])


class WholeTrainer(base_trainer.Trainer):
  """Owns its step: no tap, no plan."""

  def train_step(self, iterator):
    def step_fn(inputs):
      logs = self.task.train_step(inputs, self.model, self.optimizer, self.train_metrics)
      self.train_loss.update_state(logs[self.task.loss])
      self.global_step.assign_add(1)

    self.strategy.run(step_fn, args=(self.next_train_inputs(iterator),))

  def eval_step(self, iterator):
    def step_fn(inputs):
      logs = self.task.validation_step(inputs, self.model, self.validation_metrics)
      self.validation_loss.update_state(logs[self.task.loss])

    self.strategy.run(step_fn, args=(next(iterator),))


@pytest.mark.parametrize('replicas', harness.cases(['two'], soak=['one']))
def test_train_step_and_eval_step_may_be_wholly_a_subclasss_own(replicas):
  trainer = harness.make_trainer(trainer_cls=WholeTrainer, replicas=replicas, evaluate=True)
  logs = harness.train(trainer, 5)
  expected = reference(trainer, 5)
  assert trainer.plan is None
  harness.assert_close(harness.weights_of(trainer), expected.weights)
  np.testing.assert_allclose(logs['training_loss'], np.mean(expected.losses), rtol=1e-5)
  assert logs['model_global_step'] == 5
  logs = harness.evaluate(trainer)
  assert set(logs) == {'validation_loss', 'accuracy'}


# Plain parts of Model Garden.


class OfficialTask(official_task.Task):
  """Derives everything from Model Garden's own train_step."""

  def build_model(self):
    return harness.linear_model()

  def build_inputs(self, params, input_context=None):
    num_replicas = input_context.num_replicas_in_sync if input_context else 1
    dataset = tf.data.Dataset.from_tensor_slices(harness.make_data(64))
    dataset = dataset.repeat() if params.is_training else dataset.take(20)
    return dataset.batch(params.global_batch_size // num_replicas, drop_remainder=params.is_training)

  def build_losses(self, labels, model_outputs, aux_losses=None):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model_outputs))

  def build_metrics(self, training=True):
    return [tf_keras.metrics.SparseCategoricalAccuracy('accuracy')]


def official_config(**runtime):
  return cfg.ExperimentConfig(
    task=cfg.TaskConfig(
      train_data=cfg.DataConfig(global_batch_size=8, is_training=True),
      validation_data=cfg.DataConfig(global_batch_size=8, is_training=False),
    ),
    trainer=cfg.TrainerConfig(train_steps=8, steps_per_loop=8),
    runtime=cfg.RuntimeConfig(**runtime),
  )


@pytest.mark.slow
@tiers.parametrize('replicas', harness.cases(['default', 'two'], soak=['one', 'mirrored_one']), fast=1)
def test_model_gardens_plain_config_and_task(replicas):
  config = official_config()
  results = []
  for trainer_cls in (base_trainer.Trainer, official_trainer.Trainer):
    with harness.strategy(replicas).scope():
      task = OfficialTask(config.task)
      trainer = trainer_cls(config, task, task.build_model(), harness.sgd())
    logs = harness.train(trainer, 8)
    results.append([*harness.weights_of(trainer), logs['training_loss'], logs['accuracy']])
    logs = harness.evaluate(trainer)
    results[-1].append(logs['accuracy'])
    if trainer_cls is base_trainer.Trainer:
      loss, _, _ = harness.softmax_regression(
        harness.weights_of(trainer), tuple(part[:20] for part in harness.make_data(64))
      )
      np.testing.assert_allclose(logs['validation_loss'], loss, rtol=1e-5)
      assert trainer.plan.execution == ('fused' if replicas in ('default', 'one') else 'plain')
      assert trainer.gradient_accumulation_steps == 1
  harness.assert_close(*results)


def test_datasets_may_be_handed_over():
  data = harness.make_data(16, seed=9)
  dataset = tf.data.Dataset.from_tensor_slices(data).repeat().batch(8, drop_remainder=True)
  trainer = harness.make_trainer(
    train_dataset=harness.strategy('one').experimental_distribute_dataset(dataset),
    validation_dataset=dataset.take(2),
    evaluate=True,
  )
  harness.train(trainer, 3)
  expected = harness.Reference(harness.sgd(), data, 8).train(3)
  harness.assert_close(harness.weights_of(trainer), expected.weights)
  logs = harness.evaluate(trainer)
  np.testing.assert_allclose(logs['validation_loss'], harness.softmax_regression(expected.weights, data)[0], rtol=1e-5)


# Input.


class IndexedTask(harness.LinearTask):
  """On the library's own input, shuffled."""

  def build_inputs(self, params, input_context=None):
    x, y = self.data
    params = definitions.DataConfig(global_batch_size=params.global_batch_size, is_training=params.is_training, seed=3)
    source = sources.ArraySource({'x': x, 'y': y})
    return step_indexed.build_dataset(source, params, input_context)

  def forward(self, inputs, model, training):
    return super().forward((inputs['x'], inputs['y']), model, training)


class FixedTask(harness.LinearTask):
  """Model Garden's signature without an input context."""

  def build_inputs(self, params):
    return super().build_inputs(params)


@pytest.mark.slow
@tiers.parametrize(
  'task, replicas, accumulation',
  harness.cases(
    [(IndexedTask, 'two', 2), (harness.LinearTask, 'one', 1)],
    soak=[(IndexedTask, 'one', 1), (harness.LinearTask, 'one', 2), (harness.LinearTask, 'two', 1)],
  ),
  fast=1,
)
def test_a_resumed_trainer_reads_on_where_the_other_stopped(task, replicas, accumulation, tmp_path):
  # Stock: the checkpoint does not record the data, which start again from the first example.
  data = harness.make_data(40)
  make = lambda: harness.make_trainer(task, data, replicas=replicas, accumulation=accumulation, steps_per_execution=2)
  straight, second = make(), make()
  harness.train(straight, 3)
  path = straight.checkpoint.write(str(tmp_path / 'checkpoint'))
  harness.train(straight, 4)
  second.checkpoint.read(path).assert_existing_objects_matched()
  second.checkpoint_restored()
  assert second.global_step == 3
  harness.train(second, 4)
  harness.assert_close(harness.weights_of(second), harness.weights_of(straight), rtol=0, atol=0)
  # Set back within one process, as a rollback does.
  second.checkpoint.read(path).assert_existing_objects_matched()
  second.checkpoint_restored()
  harness.train(second, 4)
  harness.assert_close(harness.weights_of(second), harness.weights_of(straight), rtol=0, atol=0)


def test_skipping_reports_its_cost(monkeypatch):
  warnings = []
  monkeypatch.setattr('absl.logging.warning', lambda message, *args: warnings.append(message % args))
  trainer = harness.make_trainer(FixedTask, enable_xla=False)
  trainer.global_step.assign(3)
  harness.train(trainer, 1)
  assert len(warnings) == 1 and 'read again up to batch 3' in warnings[0]
  indexed = harness.make_trainer(IndexedTask, enable_xla=False)
  indexed.global_step.assign(3)
  harness.train(indexed, 1)
  assert len(warnings) == 1


class FiniteTask(harness.LinearTask):
  def build_inputs(self, params, input_context=None):
    return super().build_inputs(params, input_context).take(3)


@tiers.parametrize(
  'settings',
  harness.cases(
    [
      dict(steps_per_execution=2),
      dict(trainer_config=dict(train_tf_while_loop=False)),
      dict(replicas='two', enable_xla=False),
    ],
    soak=[dict()],
  ),
  ids=str,
  fast=1,
)
def test_data_that_end_inside_a_loop_end_the_run_with_one_line(settings):
  # Stock: loops for ever with train_tf_while_loop=false, and raises a bare OutOfRangeError with true.
  trainer = harness.make_trainer(FiniteTask, **settings)
  with pytest.raises(errors.UserError, match='task.train_data: the examples ended at step'):
    harness.train(trainer, 7)


def test_data_that_are_not_set_are_named():
  class Task(harness.LinearTask):
    def build_inputs(self, params, input_context=None):
      raise ValueError('No files\nmatch.')

  with pytest.raises(errors.UserError, match=r'task.train_data: names no data; .* \(ValueError: No files match.\)'):
    harness.make_trainer(Task)


def test_a_mistake_in_a_task_that_brings_its_data_is_shown_as_it_is():
  class Task(harness.LinearTask):
    def build_inputs(self, params, input_context=None):
      return nothing_of_that_name  # noqa: F821

  params = definitions.ExperimentConfig(
    task=definitions.TaskConfig(train_data=definitions.DataConfig(global_batch_size=8, is_training=True))
  )
  with harness.strategy('one').scope():
    task = Task(params.task, harness.make_data(8))
    with pytest.raises(NameError, match='nothing_of_that_name'):
      base_trainer.Trainer(params, task, task.build_model(), harness.sgd(), evaluate=False)


def test_pace_counts_updates_and_examples():
  trainer = harness.make_trainer(accumulation=2)
  harness.train(trainer, 5)
  assert trainer.speed.steps == 4  # The first program is compiled, and timed by itself.
  assert trainer.speed.examples_per_step == 16
  assert trainer.speed.compile_seconds > trainer.speed.seconds > trainer.speed.data_wait_seconds > 0
  harness.train(trainer, 5)
  assert trainer.speed.steps == 5


def test_speed_leaves_out_the_first_run_of_each_program(monkeypatch):
  run, runs, took = base_trainer.Trainer.run_steps, [], []

  def timed(trainer, num_steps, inspects=False):
    runs.append(num_steps)
    took.append(run(trainer, num_steps, inspects))
    return took[-1]

  monkeypatch.setattr(base_trainer.Trainer, 'run_steps', timed)
  trainer = harness.make_trainer(steps_per_execution=3)
  compile_seconds = 0.0
  # Whole programs and the rest, both for the first time; then neither.
  for expected_runs, compiling in [([3, 6, 1, 1], [0, 2]), ([11], [])]:
    runs.clear()
    took.clear()
    harness.train(trainer, 11)
    assert runs == expected_runs
    compile_seconds += sum(took[i] for i in compiling)
    assert trainer.speed.compile_seconds == pytest.approx(compile_seconds)
    assert trainer.speed.steps == 11 - sum(runs[i] for i in compiling)
    timed_seconds = [seconds for i, seconds in enumerate(took) if i not in compiling]
    assert trainer.speed.seconds == pytest.approx(sum(timed_seconds))
  expected = harness.Reference(harness.sgd(), trainer.task.data, 8).train(22).weights
  harness.assert_close(harness.weights_of(trainer), expected)


# Dropout, in training.


class MaskTask(harness.LinearTask):
  """Learns nothing: its bias gathers which of 64 units were dropped, a bit each, in the step."""

  @staticmethod
  def model_fn():
    inputs = tf_keras.Input((harness.NUM_FEATURES,))
    mask = tf_keras.layers.Dropout(0.5)(tf.ones_like(inputs[:, :1]) * tf.ones([1, 64]))
    scale = tf_keras.layers.Dense(64, use_bias=False, kernel_initializer='zeros')
    return tf_keras.Model(inputs, scale(inputs) + mask)

  def forward(self, inputs, model, training):
    mask = model(inputs[0], training=training)[0]
    bits = tf.reduce_sum(tf.where(mask > 1, 2.0 ** (tf.range(64.0) % 20), 0.0)[:20])
    return bits, {}


# On two replicas: tests/training/loop/resume_test.py.
@pytest.mark.slow
@pytest.mark.parametrize('replicas', harness.cases(['one'], soak=['two']))
def test_dropout_after_a_restart_drops_the_same_units(replicas, tmp_path):
  def bits(trainer, num_steps):
    return [float(harness.train(trainer, 1)['training_loss']) for _ in range(num_steps)]

  make = lambda **kwargs: harness.make_trainer(
    MaskTask, replicas=replicas, optimizer=lambda: harness.sgd(0.0), **{'seed': 1, **kwargs}
  )
  straight = bits(make(), 6)
  assert len(set(straight)) == 6  # Steps differ.
  first, second = make(), make()
  bits(first, 4)
  second.checkpoint.read(first.checkpoint.write(str(tmp_path / 'checkpoint')))
  second.checkpoint_restored()
  assert bits(second, 2) == straight[4:]
  assert bits(make(enable_xla=False), 6) == straight
  assert bits(make(seed=2), 2) != straight[:2]


@pytest.mark.slow
@pytest.mark.parametrize(
  'settings', harness.cases([{'steps_per_execution': 4}], soak=[{'enable_xla': False}, {'replicas': 'two'}])
)
def test_op_determinism_changes_nothing_here(settings):
  """TensorFlow then refuses ops that it cannot order, tf.timestamp among them."""
  expected = harness.train(harness.make_trainer(**settings), 8)
  tf.config.experimental.enable_op_determinism()
  tf.random.set_seed(0)
  try:
    trainer = harness.make_trainer(**settings)
    logs = harness.train(trainer, 8)
  finally:
    config.disable_op_determinism()
    tf.random.set_seed(None)
  assert logs['training_loss'] == pytest.approx(expected['training_loss'], rel=1e-6)
  assert trainer.speed.steps and 0 < trainer.speed.data_wait_seconds < trainer.speed.seconds
