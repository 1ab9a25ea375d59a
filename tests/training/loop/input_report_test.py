"""Runs over data with NaN inputs, labels out of range, broken or missing examples: their reports."""

import math

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import keyed_random
from official_ext.data import pipelines
from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.loop import training_input
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run

N, BATCH = small_run.NUM_EXAMPLES, small_run.BATCH_SIZE
BAD = 13


def position_of(index, epoch=0):
  """The position of an example in an epoch of training."""
  order = keyed_random.shuffled_indices(tf.range(epoch * N, (epoch + 1) * N, dtype=tf.int64), N, 0).numpy().tolist()
  return epoch * N + order.index(index)


class DictTask(small_run.SmallTask):
  """Examples with names, some spoilt by `spoil(arrays)`."""

  spoil = staticmethod(lambda arrays: None)
  spoils_training = True

  def build_inputs(self, params, input_context=None):
    x, y = self.data if params.is_training else self.validation_data
    arrays = {'x': x.copy(), 'y': y.copy()}
    if params.is_training == self.spoils_training:
      type(self).spoil(arrays)
    return step_indexed.build_dataset(sources.ArraySource(arrays), params, input_context)

  def forward(self, inputs, model, training):
    return super().forward((inputs['x'], inputs['y']), model, training)


def spoilt(spoil, spoils_training=True):
  return type('SpoiltTask', (DictTask,), {'spoil': staticmethod(spoil), 'spoils_training': spoils_training})


def put(name, index, value):
  def spoil(arrays):
    arrays[name][index] = value

  return spoil


def examples_of(step):
  return range((step - 1) * BATCH, step * BATCH)


@pytest.mark.slow
@pytest.mark.parametrize('replicas', harness.cases(['two'], soak=['one']))
def test_inputs_that_are_not_finite_are_named_with_the_step_that_they_spoil(replicas, tmp_path):
  small_run.run(tmp_path, 'train', spoilt(put('x', (BAD, 2), np.nan)), replicas)
  at = position_of(BAD)
  skipped = small_run.events(tmp_path, 'update_skipped')[0]
  assert at in examples_of(skipped['step'])
  assert skipped['cause'] == f'x is not finite in example {BAD} of ArraySource at position {at} of the run'


def test_divergence_names_positions_and_cause(tmp_path):
  def spoil(arrays):
    arrays['x'][[3, 4, 5, 6, 7]] = np.inf

  with pytest.raises(errors.DivergedError) as caught:
    small_run.run(tmp_path, 'train', spoilt(spoil), trainer={'nonfinite': {'max_skips': 1}})
  step = small_run.events(tmp_path, 'update_skipped')[0]['step']
  assert f'; the examples are at positions {(step - 1) * BATCH} to ' in str(caught.value)
  assert str(caught.value).startswith(f'step {step}: x is not finite in example ')
  assert '\n' not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize('replicas', harness.cases(['two'], soak=['one']))
def test_a_label_out_of_range_ends_a_run_without_xla(replicas, tmp_path):
  at = position_of(BAD)
  with pytest.raises(errors.UserError) as caught:
    small_run.run(tmp_path, 'train', spoilt(put('y', BAD, 7)), replicas)
  assert str(caught.value) == (
    f'task.train_data: y: 7 is outside of [0, {harness.NUM_CLASSES}), in example {BAD} of ArraySource at position '
    f'{at} of the run'
  )


@pytest.mark.slow
def test_a_label_out_of_range_spoils_a_step_with_xla(tmp_path):
  """XLA turns it into NaN: the update is skipped, and the event says why."""
  params = small_run.make_params({'enable_xla': True}, steps_per_execution=1)
  small_run.run(tmp_path, 'train', spoilt(put('y', BAD, -1)), params=params)
  at = position_of(BAD)
  skipped = small_run.events(tmp_path, 'update_skipped')[0]
  assert skipped['step'] == at // BATCH + 1
  assert skipped['cause'] == (
    f'y: -1 is outside of [0, {harness.NUM_CLASSES}), in example {BAD} of ArraySource at position {at} of the run'
  )


@pytest.mark.slow
def test_a_label_out_of_range_in_an_evaluation(tmp_path):
  with pytest.raises(errors.UserError) as caught:
    small_run.run(tmp_path, 'train_and_eval', spoilt(put('y', 5, 9), False))
  assert str(caught.value) == (
    f'task.validation_data: y: 9 is outside of [0, {harness.NUM_CLASSES}), in example 5 of ArraySource at position 5 '
    'of the run (in the evaluation at step 6)'
  )


@pytest.mark.slow
def test_what_cannot_be_read_again_is_not_blamed():
  """A pipeline that cannot start anywhere, and a step whose inputs are as they should be."""
  trainer = harness.make_trainer(enable_xla=False)
  harness.train(trainer, 2)
  assert trainer.examine_step(1) == ''
  trainer = harness.make_trainer(DictTask, enable_xla=False)
  harness.train(trainer, 2)
  assert trainer.examine_step(1) == ''


def test_examples_are_named_by_the_batch_that_a_rollback_moved_to():
  trainer = harness.make_trainer(spoilt(put('x', BAD, np.nan)))
  trainer.prepare_training()
  at = position_of(BAD)
  trainer.checkpoint_restored(data_offset=2)
  assert trainer.examine_step(at // BATCH + 1) == ''
  assert f'at position {at} of the run' in trainer.examine_step(at // BATCH - 1)


class LeakySource(sources.ArraySource):
  """Rows that a collator stacks in Python; some cannot be read."""

  bad = (3, BAD, 60)

  def fetch(self, indices):
    if set(indices) & set(self.bad):
      raise OSError('gone')
    return super().fetch(indices)


class LeakyTask(DictTask):
  def build_inputs(self, params, input_context=None):
    x, y = self.data
    return step_indexed.build_dataset(LeakySource({'x': x, 'y': y}), params, input_context)


def leaky_params(action, **trainer):
  data = {'collator': 'pad', 'on_bad_example': action}
  return small_run.make_params(**trainer).replace(task={'train_data': data, 'validation_data': data})


@pytest.mark.slow
@pytest.mark.parametrize('replicas', harness.cases(['two'], soak=['one']))
def test_skipped_examples_are_counted_by_loop_and_evaluation(replicas, tmp_path):
  model, _ = small_run.run(tmp_path, 'train_and_eval', LeakyTask, replicas, params=leaky_params('skip'))
  bad = sorted(position_of(index, epoch) for index in LeakySource.bad for epoch in (0, 1))
  trains = small_run.events(tmp_path, 'train')
  ends = [event['step'] for event in trains]
  starts = [0, *ends]
  expected = [sum(start * BATCH <= at < end * BATCH for at in bad) for start, end in zip(starts, ends)]
  assert [event['examples_skipped'] for event in trains] == expected and sum(expected) >= 3
  assert {event['examples_skipped'] for event in small_run.events(tmp_path, 'eval')} == {3}
  assert all(math.isfinite(event['validation_loss']) for event in small_run.events(tmp_path, 'eval'))

  other, _ = small_run.run(tmp_path / 'cut', 'train', LeakyTask, replicas, params=leaky_params('skip', train_steps=4))
  del other
  resumed, _ = small_run.run(tmp_path / 'cut', 'train_and_eval', LeakyTask, replicas, params=leaky_params('skip'))
  for one, two in zip(model.variables, resumed.variables):
    np.testing.assert_array_equal(one.numpy(), two.numpy())
  later = [event for event in small_run.events(tmp_path / 'cut', 'train') if event['step'] > 4]
  assert [event['examples_skipped'] for event in later] == [
    event['examples_skipped'] for event in trains if event['step'] > 4
  ]


@pytest.mark.slow
@pytest.mark.parametrize('replicas', harness.cases(['two'], soak=['one']))
def test_an_unreadable_example_ends_the_run_with_its_name(replicas, tmp_path):
  with pytest.raises(errors.UserError) as caught:
    small_run.run(tmp_path, 'train', LeakyTask, replicas, params=leaky_params('error'))
  bad = min(LeakySource.bad, key=position_of)
  at = position_of(bad)
  assert str(caught.value).startswith(
    f'task.train_data: example {bad} of LeakySource, at position {at} of the run, cannot be read: OSError: gone; '
    f'repair or replace it, or set task.train_data.on_bad_example=skip (near step '
  )
  assert small_run.record(tmp_path)['status'] == 'failed'


class FiniteTask(harness.LinearTask):
  """A pipeline of as many examples as `sizes` says: (training, validation)."""

  sizes = (0, 8)

  def build_inputs(self, params, input_context=None):
    num_replicas = input_context.num_replicas_in_sync if input_context else 1
    x, y = harness.make_data(self.sizes[not params.is_training])
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH // num_replicas)


@tiers.parametrize(
  'replicas, while_loop', harness.cases([('one', True), ('two', False)], soak=[('one', False), ('two', True)]), fast=1
)
def test_training_without_examples(replicas, while_loop, tmp_path):
  with pytest.raises(errors.UserError, match=r'^task\.train_data: there are no examples$'):
    small_run.run(tmp_path, 'train', FiniteTask, replicas, trainer={'train_tf_while_loop': while_loop})


@pytest.mark.parametrize('replicas', harness.cases(['one'], soak=['two']))
def test_an_evaluation_without_examples(replicas, tmp_path):
  task_cls = type('NoValidationTask', (FiniteTask,), {'sizes': (600, 0)})
  with pytest.raises(errors.UserError, match=r'^task\.validation_data: there are no examples$'):
    small_run.run(tmp_path, 'train_and_eval', task_cls, replicas)


def test_an_evaluation_in_a_graph_that_is_too_long(tmp_path):
  with pytest.raises(errors.UserError, match=r'^trainer\.validation_steps: 9 are more than task\.validation_data has'):
    small_run.run(
      tmp_path,
      'train_and_eval',
      type('T', (FiniteTask,), {'sizes': (600, 8)}),
      trainer={'eval_tf_while_loop': True, 'validation_steps': 9},
    )


def test_start_is_not_taken_by_what_is_read_again():
  with pipelines.starting_at(5) as start:
    trainer = harness.make_trainer(DictTask)
    trainer.prepare_training()
    start.honoured = False
    trainer.examine_step(1)
  assert not start.honoured


def test_what_a_former_input_reads_ahead_is_not_counted():
  params = leaky_params('skip')
  task = small_run.make_task(params, LeakyTask)
  report = training_input.InputReport('task.train_data', params.task.train_data, task)
  datasets = []
  for _ in range(2):
    with report.building():
      datasets.append(task.build_inputs(params.task.train_data))
  list(datasets[0].take(2 * N // BATCH))
  assert report.skips_up_to(None) == {'examples_skipped': 0}
  list(datasets[1].take(N // BATCH))
  assert report.skips_up_to(N) == {'examples_skipped': 3}


def test_the_record_of_a_run_has_the_balance_of_its_data(tmp_path):
  small_run.run(tmp_path, 'train', DictTask)
  (found,) = small_run.record(tmp_path)['balance']['train_data']
  assert (found['found'], found['used'], found['text']) == (N, N, f'ArraySource: {N} examples found, {N} used')


def test_the_balance_of_a_custom_pipeline_is_unknown():
  task_cls = type('T', (FiniteTask,), {'sizes': (600, 8)})
  params = small_run.make_params()
  task = small_run.make_task(params, task_cls)
  report = training_input.InputReport('task.train_data', params.task.train_data, task)
  assert report.balance() == []
  with report.building():
    task.build_inputs(params.task.train_data)
  (found,) = report.balance()
  assert found['text'] == 'task.train_data: unknown examples found, unknown used'
