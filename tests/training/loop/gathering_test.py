"""Programs that gather their batches from memory do the same as programs that are fed, however a loop is cut."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.data import batch_reader
from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.config import definitions
from official_ext.training.loop import base_trainer
from tests import tiers
from tests.training.loop import harness


class GatheredTask(harness.LinearTask):
  """On arrays in memory, shuffled."""

  def build_inputs(self, params, input_context=None):
    x, y = self.data
    params = definitions.DataConfig(global_batch_size=params.global_batch_size, is_training=params.is_training, seed=3)
    return step_indexed.build_dataset(sources.ArraySource({'x': x, 'y': y}), params, input_context)

  def forward(self, inputs, model, training):
    return super().forward((inputs['x'], inputs['y']), model, training)


class FedTask(GatheredTask):
  """The same examples, after something that only a pipeline can do."""

  def build_inputs(self, params, input_context=None):
    return super().build_inputs(params, input_context).map(lambda batch: batch)


def make(task, steps_per_execution=4, data=None, **settings):
  data = harness.make_data(29) if data is None else data
  return harness.make_trainer(task, data, steps_per_execution=steps_per_execution, steps_per_loop=11, **settings)


def state_of(trainer):
  return [variable.numpy() for variable in (*trainer.model.variables, *trainer.optimizer.variables())]


def assert_same(first, second):
  for left, right in zip(state_of(first), state_of(second), strict=True):
    np.testing.assert_array_equal(left, right)


@pytest.mark.slow
@tiers.parametrize('accumulation', [1, 2], fast=1)
def test_they_compute_what_fed_programs_compute(accumulation):
  gathered, fed = make(GatheredTask, accumulation=accumulation), make(FedTask, accumulation=accumulation)
  logs = [[harness.train(trainer, steps) for steps in (11, 3)] for trainer in (gathered, fed)]
  assert gathered.plan.gathers and not fed.plan.gathers
  assert_same(gathered, fed)
  for of_gathered, of_fed in zip(*logs, strict=True):
    assert of_gathered.keys() == of_fed.keys()
    for name, value in of_gathered.items():
      np.testing.assert_array_equal(value, of_fed[name], name)


@pytest.mark.slow
def test_they_do_not_depend_on_where_loops_and_programs_end():
  whole = make(GatheredTask, steps_per_execution=16)
  harness.train(whole, 14)
  for loops in ([14], [1, 2, 11], [5, 5, 4]):
    trainer = make(GatheredTask)
    for steps in loops:
      harness.train(trainer, steps)
    assert_same(trainer, whole)


def test_the_first_program_compiles_for_one_step_and_serves_all_lengths(monkeypatch):
  trainer, runs = make(GatheredTask), []
  run = trainer.run_steps
  monkeypatch.setattr(trainer, 'run_steps', lambda steps, **kwargs: runs.append(steps) or run(steps, **kwargs))
  harness.train(trainer, 11)
  assert runs == [1, 10] and trainer.speed.steps == 10
  harness.train(trainer, 3)
  assert runs == [1, 10, 3] and trainer.speed.steps == 3 and trainer.num_compilations == 1


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_skipped_inside_a_program():
  x, y = harness.make_data(29)
  x[7] = np.nan
  gathered, fed = make(GatheredTask, data=(x, y)), make(FedTask, steps_per_execution=1, data=(x, y))
  for trainer in (gathered, fed):
    harness.train(trainer, 11)
  assert gathered.num_skips == fed.num_skips > 0
  for left, right in zip(harness.weights_of(gathered), harness.weights_of(fed), strict=True):
    np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_after_a_rollback_steps_find_their_batches_further_on():
  """As where the same steps are reached without one: a step's batch is that of its number and the offset."""
  offset, straight = make(GatheredTask), make(GatheredTask)
  offset.checkpoint_restored(data_offset=5)
  with straight.strategy.scope():
    straight.global_step.assign(5)
  harness.train(offset, 6)
  harness.train(straight, 6)
  for left, right in zip(harness.weights_of(offset), harness.weights_of(straight), strict=True):
    np.testing.assert_array_equal(left, right)


@pytest.mark.slow
def test_the_next_batches_are_those_of_the_next_step_and_are_not_used_up():
  trainer = make(GatheredTask)
  harness.train(trainer, 6)
  *_, expected = trainer.task.build_inputs(trainer.config.task.train_data).take(7)
  for _ in range(2):
    (batch,) = trainer.take_batches()
    np.testing.assert_array_equal(batch['x'], expected['x'])


@pytest.mark.slow
def test_an_inspected_run_ends_with_the_same_weights(tmp_path):
  inspected = make(GatheredTask, trainer_config=dict(inspect=dict(every=3)))
  plain = make(GatheredTask)
  with tf.summary.create_file_writer(str(tmp_path)).as_default():
    harness.train(inspected, 11)
  harness.train(plain, 11)
  assert inspected.plan.gathers
  assert_same(inspected, plain)


class OwnInputs(base_trainer.Trainer):
  """Takes its inputs by itself."""

  def next_train_inputs(self, iterator):
    return next(iterator)


class OwnStep(base_trainer.Trainer):
  """Owns its steps."""

  def train_step(self, iterator):
    super().train_step(iterator)


@pytest.mark.slow
@pytest.mark.parametrize(
  'settings',
  [
    dict(trainer_cls=OwnInputs),
    dict(trainer_cls=OwnStep),
    dict(steps_per_execution=1),
    dict(replicas='two'),
    dict(enable_xla=False),
  ],
  ids=str,
)
def test_whoever_takes_batches_by_himself_finds_them_in_the_iterator(settings):
  trainer = make(GatheredTask, **settings)
  harness.train(trainer, 3)
  assert not trainer.plan.gathers and trainer.step_inputs.in_memory is None


def params_of(**fields):
  return definitions.DataConfig(**{'global_batch_size': 6, 'is_training': True, 'seed': 3, **fields})


def test_batches_by_number_are_the_elements_of_the_dataset():
  rows = np.arange(29)
  dataset = step_indexed.build_dataset(sources.ArraySource({'row': rows, 'square': rows**2}), params_of())
  batches = batch_reader.in_memory_batches_of(dataset)
  compiled = tf.function(batches.batch, jit_compile=True)
  for number, element in enumerate(dataset.take(12)):
    for computed in (batches.batch(tf.constant(number, tf.int64)), compiled(tf.constant(number, tf.int64))):
      tf.nest.map_structure(np.testing.assert_array_equal, computed, element)


@pytest.mark.parametrize(
  'build',
  [
    lambda source: step_indexed.build_dataset(source, params_of()).map(lambda batch: batch),
    lambda source: step_indexed.build_dataset(source, params_of(), transform=lambda batch, seeds: batch),
    lambda source: step_indexed.build_dataset(source, params_of(is_training=False)),
    lambda source: step_indexed.build_dataset(source, params_of(), tf.distribute.InputContext(1, 0, 2)),
  ],
  ids=['mapped', 'transformed', 'evaluation', 'shared'],
)
def test_other_datasets_have_no_such_batches(build):
  assert batch_reader.in_memory_batches_of(build(sources.ArraySource({'row': np.arange(29)}))) is None
