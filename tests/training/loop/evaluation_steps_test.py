"""In an evaluation there are steps and seeds, and values that are not finite are reported."""

import logging as python_logging

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.loop import base_trainer
from official_ext.training.step import step_random
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run

NUM_EXAMPLES, BATCH_SIZE = 20, 8


class NoisyTask(harness.LinearTask):
  """Draws in every way there is, in training and in evaluation, and logs its draws, and its step."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    logs = {**logs, 'step': tf.cast(self.step, tf.float32)}
    logs['own'] = tf.reduce_sum(step_random.uniform([], self.make_seed('own')))
    logs['raw'] = tf.random.uniform([])
    logs['layer'] = tf.reduce_mean(model.get_layer('dropout')(tf.range(1000.0), training=True))
    return loss + 0.1 * logs['own'], logs

  @staticmethod
  def model_fn():
    inputs = tf_keras.Input((harness.NUM_FEATURES,))
    layer = tf_keras.layers.Dense(harness.NUM_CLASSES, name='dense')
    model = tf_keras.Model(inputs, layer(tf_keras.layers.Dropout(0.5, name='dropout')(inputs)))
    layer.set_weights(harness.initial_weights())
    return model


class StockNoisyTask(NoisyTask):
  """The same as Model Garden's tasks are: with custom steps."""

  def validation_step(self, inputs, model, metrics=None):
    loss, logs = self.forward(inputs, model, training=False)
    return {self.loss: loss, **{name: logs[name] for name in DRAWN}, 'step': logs['step']}


DRAWN = ('own', 'raw', 'layer')


class LoggingTrainer(base_trainer.Trainer):
  """Draws for its inputs too."""

  def next_eval_inputs(self, iterator):
    inputs, logs = super().next_eval_inputs(iterator)
    return inputs, {**logs, 'for_inputs': [tf.random.uniform([])], 'step_of_inputs': [self.task.step]}


def make_trainer(task=NoisyTask, **kwargs):
  data = harness.make_data(NUM_EXAMPLES)
  defaults = dict(validation_data=data, evaluate=True, enable_xla=False, trainer_cls=LoggingTrainer)
  return harness.make_trainer(task, **{**defaults, **kwargs})


def drawn_by_batch(trainer, names=(*DRAWN, 'for_inputs', 'step', 'step_of_inputs')):
  """{name: the draws of each replica of each batch}, of one evaluation."""
  seen = []
  trainer.task.aggregate_logs = lambda state, logs: seen.append(logs)
  logs = harness.evaluate(trainer)
  return {name: [float(value) for batch in seen for value in batch[name]] for name in names}, logs


@pytest.mark.slow
@tiers.parametrize('task', [NoisyTask, StockNoisyTask], fast=1)
def test_seeds_in_an_evaluation_are_those_of_the_batch_and_steps_are_true(task):
  trainer = make_trainer(task)
  first, logs = drawn_by_batch(trainer)
  for name in (*DRAWN, 'for_inputs'):
    assert len(set(first[name])) == 3, name  # Another draw in each of three batches.
  assert set(first['step']) == set(first['step_of_inputs']) == {0.0}
  harness.train(trainer, 5)
  second, _ = drawn_by_batch(trainer)
  assert set(second['step']) == set(second['step_of_inputs']) == {5.0}
  for name in (*DRAWN, 'for_inputs'):
    assert second[name] == first[name], name
  np.testing.assert_allclose(logs['own'], np.average(first['own'], weights=[8, 8, 4]), rtol=1e-6)
  # One that only evaluates, as --mode=eval does.
  other, _ = drawn_by_batch(make_trainer(task, train=False))
  assert other == first


def test_replicas_draw_each_for_themselves():
  trainer = make_trainer(replicas='two', trainer_cls=base_trainer.Trainer)
  first, _ = drawn_by_batch(trainer, DRAWN)
  for name in DRAWN:
    assert len(first[name]) == len(set(first[name])) >= 5, name
  assert drawn_by_batch(trainer, DRAWN)[0] == first


def test_an_evaluation_does_not_draw_what_training_draws():
  seeds = []
  for purpose in ('', 'evaluation', 'inputs'):
    with step_random.step_key(step_random.StepKey(seed=0, step=0, purpose=purpose)):
      seeds.append(tuple(step_random.make_seed('a').numpy()))
  assert len(set(seeds)) == 3


class AnnealedTask(NoisyTask):
  """A small run's task whose loss has a part that grows with the step."""

  build_inputs = small_run.SmallTask.build_inputs
  num_examples = small_run.SmallTask.num_examples

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss + tf.cast(self.step, tf.float32), {**logs, 'anneal': tf.cast(self.step, tf.float32)}


@pytest.mark.slow
def test_an_annealed_loss_is_evaluated_at_the_step_of_the_checkpoint_in_every_mode(tmp_path):
  trainer = {'best_checkpoint_export_subdir': 'best', 'best_checkpoint_eval_metric': 'own', 'max_to_keep': 5}
  small_run.run(tmp_path, task_cls=AnnealedTask, trainer=trainer)
  trained = small_run.events(tmp_path, 'eval')
  assert [event['anneal'] for event in trained] == [6, 12]
  assert trained[0]['own'] == trained[1]['own']
  small_run.run(tmp_path, 'eval', task_cls=AnnealedTask)
  small_run.run(tmp_path, 'continuous_eval', task_cls=AnnealedTask)
  alone = small_run.events(tmp_path, 'eval', 'events.eval.jsonl')
  beside = small_run.events(tmp_path, 'eval', 'events.continuous_eval.jsonl')
  assert [event['anneal'] for event in alone] == [12]
  assert [event['anneal'] for event in beside] == [event['step'] for event in beside] == [4, 8, 12]
  for name in ('validation_loss', *DRAWN):
    assert alone[0][name] == beside[-1][name] == trained[-1][name], name


# Inputs of training.


class PolicyTrainer(base_trainer.Trainer):
  """Requests the step and a seed when it takes inputs, and adds its draws to them."""

  def next_train_inputs(self, iterator):
    x, y = next(iterator)
    noise = step_random.uniform([], self.task.make_seed('policy')) + tf.random.uniform([])
    return x + noise + 0.01 * tf.cast(self.task.step, tf.float32) + 0.0 * self.model.trainable_variables[1][0], y


@pytest.mark.slow
def test_what_takes_the_inputs_has_steps_and_seeds_in_every_shape():
  weights = []
  for settings in (dict(enable_xla=False), dict(steps_per_execution=4), dict(steps_per_execution=1)):
    trainer = harness.make_trainer(trainer_cls=PolicyTrainer, accumulation=2, **settings)
    harness.train(trainer, 4)
    weights.append(harness.weights_of(trainer))
  for other in weights[1:]:
    harness.assert_close(other, weights[0])


def test_a_trainer_that_takes_its_own_inputs_gets_one_step_a_program_unless_it_asks_for_more():
  plans = {}
  for name, cls, steps in (('own', PolicyTrainer, 0), ('asked', PolicyTrainer, 4), ('stock', base_trainer.Trainer, 0)):
    trainer = harness.make_trainer(trainer_cls=cls, steps_per_execution=steps)
    with trainer.strategy.scope():
      trainer.prepare_training()
    plans[name] = trainer.plan
  assert plans['own'].steps_per_execution == 1 and plans['asked'].steps_per_execution == 4
  assert plans['stock'].steps_per_execution > 1
  assert 'PolicyTrainer overrides next_train_inputs' in str(plans['own'])
  assert 'overrides' not in str(plans['asked']) + str(plans['stock'])


# Values that are not finite.


class ReluTask(harness.LinearTask):
  """Its ReLU turns NaN into a number, on a CPU."""

  @staticmethod
  def model_fn():
    model = tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Dense(8, 'relu'), tf_keras.layers.Dense(3)])
    for variable in model.trainable_variables:
      variable.assign(0.1 * tf.random.stateless_normal(variable.shape, [0, len(variable.shape)]))
    return model


class StockReluTask(ReluTask):
  def validation_step(self, inputs, model, metrics=None):
    logits = model(inputs[0], training=False)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(inputs[1], logits)
    self.process_metrics(metrics, inputs[1], logits)
    return {self.loss: tf.reduce_mean(losses)}


def with_nan(rows):
  x, y = harness.make_data(NUM_EXAMPLES)
  x = x.copy()
  x[rows] = np.nan
  return x, y


@tiers.parametrize('task', [ReluTask, StockReluTask], fast=1)
@tiers.parametrize(
  'settings',
  [{}, {'replicas': 'two'}, {'trainer_config': {'eval_tf_while_loop': True, 'validation_steps': 3}}],
  ids=['one', 'two', 'while_loop'],
  fast=1,
)
def test_validation_examples_that_are_not_finite_are_counted_and_reported(task, settings, caplog):
  trainer = make_trainer(task, validation_data=with_nan([3, 9, 10]), train=False, **settings)
  with caplog.at_level(python_logging.WARNING):
    logs = harness.evaluate(trainer, 3 if 'trainer_config' in settings else -1)
  assert logs['validation_not_finite'] == 3
  assert 'at least 3 examples are not finite in the evaluation at step 0, in its batches 0, 1 (from 0)' in caplog.text
  trainer = make_trainer(task, train=False, **settings)
  assert 'validation_not_finite' not in harness.evaluate(trainer, 3 if 'trainer_config' in settings else -1)


class NanLossTask(harness.LinearTask):
  """Its inputs are finite, and its loss of the second batch is not."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return tf.math.log(tf.reduce_min(inputs[0][:, 0]) + 2) + loss, logs


def test_a_validation_loss_that_is_not_finite_stays_so_and_is_reported(caplog):
  x, y = harness.make_data(NUM_EXAMPLES)
  x = np.maximum(x, -1)
  x[9, 0] = -3
  trainer = make_trainer(NanLossTask, validation_data=(x, y), train=False)
  with caplog.at_level(python_logging.WARNING):
    logs = harness.evaluate(trainer)
  assert np.isnan(logs['validation_loss']) and logs['validation_not_finite'] == 1
  assert 'in its batches 1 (from 0)' in caplog.text


class SmallNanTask(small_run.SmallTask):
  def __init__(self, params, data):
    x, y = data
    x = x[:20].copy()
    x[13, 1] = np.inf
    super().__init__(params, data, (x, y[:20]))


@pytest.mark.slow
def test_the_example_that_is_not_finite_is_named_once_and_the_count_is_an_event(tmp_path, caplog):
  with caplog.at_level(python_logging.WARNING):
    small_run.run(tmp_path, task_cls=SmallNanTask)
  assert [event['validation_not_finite'] for event in small_run.events(tmp_path, 'eval')] == [1, 1]
  lines = [line for line in caplog.messages if 'task.validation_data' in line]
  assert len(lines) == 2
  assert 'is not finite in example 13 of ArraySource at position 13' in lines[0] and 'example 13' not in lines[1]


class WeighedTask(harness.LinearTask):
  """Inputs with more than examples; the loss of a batch is the mean of `y`, which a log repeats."""

  Y = np.array([1, 2, 3, 4, 50], np.float32)  # Two batches: of four, and of one.

  def build_inputs(self, params, input_context=None):
    size = params.global_batch_size // (input_context.num_replicas_in_sync if input_context else 1)
    dataset = tf.data.Dataset.from_tensor_slices({'x': np.ones([5, harness.NUM_FEATURES], np.float32), 'y': self.Y})
    return self.with_more(dataset.batch(size, drop_remainder=params.drop_remainder))

  def with_more(self, dataset):
    raise NotImplementedError

  def forward(self, inputs, model, training):
    y = tf.reshape(inputs['y'], [-1])
    return tf.reduce_mean(y) + 0.0 * tf.reduce_sum(model(inputs['x'])), {'mean_y': tf.reduce_mean(y)}

  def build_metrics(self, training=True):
    return []


class WithConstant(WeighedTask):
  def with_more(self, dataset):
    return dataset.map(lambda batch: {'a': tf.constant([0.2, 0.3, 0.5]), **batch})


class WithBoxes(WeighedTask):
  """The boxes of all examples of a batch are one list: two of each, but one of the last."""

  def with_more(self, dataset):
    number = lambda batch: 2 * tf.shape(batch['y'])[0] - tf.cast(tf.reduce_any(batch['y'] == 50), tf.int32)
    return dataset.map(lambda batch: {'boxes': tf.zeros([number(batch) + 1, 4]), **batch})


class Transposed(WeighedTask):
  """The examples are the last axis, the features the first one."""

  def with_more(self, dataset):
    return dataset.map(lambda batch: {'y': batch['y'][tf.newaxis], 'x': tf.transpose(batch['x'])})

  def forward(self, inputs, model, training):
    return super().forward({**inputs, 'x': tf.transpose(inputs['x'])}, model, training)


class FromLibrary(WeighedTask):
  """The library's input empties the batches of replicas without examples: what is constant stays."""

  def build_inputs(self, params, input_context=None):
    source = sources.ArraySource({'x': np.ones([5, harness.NUM_FEATURES], np.float32), 'y': self.Y})
    more = lambda batch, seeds: {'a': tf.constant([1.0, 2.0]), 'b': tf.constant(1.0), **batch}
    return step_indexed.build_dataset(source, params, input_context, more)


@tiers.parametrize('replicas', ['one', 'two'], fast=['two'])
@tiers.parametrize('task', [WithConstant, WithBoxes, Transposed, FromLibrary], fast=1)
def test_the_weight_of_a_batch_is_its_number_of_examples(task, replicas, caplog):
  trainer = make_trainer(task, replicas=replicas, validation_batch_size=4, trainer_cls=base_trainer.Trainer)
  for _ in range(2):
    logs = harness.evaluate(trainer)
    assert logs['validation_loss'] == logs['mean_y'] == np.mean(task.Y)
  assert 'not clear' not in caplog.text


def test_a_number_of_examples_that_is_not_clear_is_reported_once(caplog):
  class Task(WithConstant):
    def with_more(self, dataset):
      if self.drops:
        raise ValueError('only batches of four')
      return super().with_more(dataset)

    def build_inputs(self, params, input_context=None):
      self.drops = params.drop_remainder and not params.is_training
      return super().build_inputs(params, input_context)

  class Weighed(Task):
    def micro_batch_weight(self, inputs):
      return tf.shape(inputs['x'])[0]

  for task, is_reported in ((Task, True), (Weighed, False)):
    caplog.clear()
    trainer = make_trainer(task, validation_batch_size=4, trainer_cls=base_trainer.Trainer)
    for _ in range(2):
      logs = harness.evaluate(trainer)
      assert logs['validation_loss'] == logs['mean_y'] == np.mean(task.Y)
    lines = [record.getMessage() for record in caplog.records if 'not clear' in record.getMessage()]
    assert len(lines) == is_reported
    assert all(
      'assumed: the first dimension of x.' in line and f'{task.__name__}.micro_batch_weight' in line for line in lines
    )


@pytest.mark.slow
@tiers.parametrize('replicas', ['one', 'two'], fast=2)
def test_validation_loss_has_the_weights_of_training(replicas):
  class Task(FromLibrary):
    WEIGHTS = np.array([1, 0, 2, 5, 3], np.float32)

    def build_inputs(self, params, input_context=None):
      examples = {'x': np.ones([5, harness.NUM_FEATURES], np.float32), 'y': self.Y, 'weight': self.WEIGHTS}
      return step_indexed.build_dataset(sources.ArraySource(examples), params, input_context)

    def micro_batch_weight(self, inputs):
      return tf.reduce_sum(inputs['weight'])

    def forward(self, inputs, model, training):
      loss = tf.math.divide_no_nan(tf.reduce_sum(inputs['y'] * inputs['weight']), tf.reduce_sum(inputs['weight']))
      return loss + 0.0 * tf.reduce_sum(model(inputs['x'])), {'mean_y': tf.reduce_mean(inputs['y'])}

  for size in (2, 4, 8):
    trainer = make_trainer(Task, replicas=replicas, validation_batch_size=size, trainer_cls=base_trainer.Trainer)
    logs = harness.evaluate(trainer)
    np.testing.assert_allclose(logs['validation_loss'], np.average(Task.Y, weights=Task.WEIGHTS), rtol=1e-6)
    np.testing.assert_allclose(logs['mean_y'], np.mean(Task.Y), rtol=1e-6)
