"""Updates that are not finite or spikes: skipped, reported, and not too many of them; and rollbacks."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.cli import runs
from official_ext.cli import train
from official_ext.data import pipelines
from official_ext.training.actions import triggers
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.loop import base_trainer
from official_ext.training.loop import training_input
from official_ext.training.writers import writers
from tests import tiers
from tests.training.loop import harness
from tests.training.loop import small_run


def task_with_bad_steps(*bad_steps):
  """A task whose loss is NaN in the steps that make these global steps."""

  class BadTask(small_run.SmallTask):
    def forward(self, inputs, model, training):
      loss, logs = super().forward(inputs, model, training)
      is_bad = tf.reduce_any(tf.equal(self.step + 1, tf.constant(bad_steps or (-1,), tf.int64)))
      return tf.where(is_bad & training, np.nan, loss), logs

  return BadTask


def events(folder, event):
  return small_run.events(folder, event)


@pytest.mark.slow
@pytest.mark.parametrize('replicas', harness.cases(['two'], soak=['one']))
def test_a_skipped_update_is_reported_with_its_examples(replicas, tmp_path):
  model, _ = small_run.run(tmp_path, 'train', task_with_bad_steps(3, 7), replicas)
  skipped = events(tmp_path, 'update_skipped')
  batch = small_run.BATCH_SIZE
  assert [(event['step'], event['first_example'], event['num_examples'], event['total']) for event in skipped] == [
    (3, 2 * batch, batch, 1),
    (7, 6 * batch, batch, 2),
  ]
  assert all(np.isfinite(variable.numpy()).all() for variable in model.variables)
  losses = [event['training_loss'] for event in events(tmp_path, 'train')]
  assert np.isfinite(losses).all()
  last = events(tmp_path, 'train')[-1]
  assert (last['model_global_step'], last['optimizer_iterations']) == (12, 10)


def test_too_many_nan_steps_end_the_run(tmp_path):
  diverging = {'nonfinite': {'max_skips': 2}}
  with pytest.raises(errors.DivergedError, match=r': 3 updates were skipped, at steps 1, 3, 6; .*max_skips allows 2'):
    small_run.run(tmp_path, 'train', task_with_bad_steps(1, 3, 6), trainer=diverging)
  record = small_run.record(tmp_path)
  assert record['status'] == 'diverged' and record['error'].startswith(
    'DivergedError: the loss or its gradient was not finite at the learning rate '
  )
  last = small_run.events(tmp_path)[-1]
  assert last['event'] == 'failed' and last['error'] == record['error']
  # Earlier checkpoints are finite.
  assert [event['step'] for event in events(tmp_path, 'checkpoint')] == [4, 5][:1]


def test_divergence_has_an_exit_status_of_its_own(tmp_path, capsys):
  status = train.run_main(
    lambda _: small_run.run(tmp_path, 'train', task_with_bad_steps(1), trainer={'nonfinite': {'max_skips': 0}}), []
  )
  assert status == 3
  (line,) = capsys.readouterr().err.splitlines()
  assert re.match(
    r'error: the loss or its gradient was not finite at the learning rate \S+: 1 update was skipped, at', line
  )
  assert f'the examples are at positions 0 to {small_run.BATCH_SIZE - 1}; --debug locates it' in line


@pytest.mark.slow
def test_a_resumed_run_reports_only_its_own(tmp_path):
  task_cls = task_with_bad_steps(2, 9)
  small_run.run(tmp_path, 'train', task_cls, trainer={'train_steps': 8})
  assert [event['step'] for event in events(tmp_path, 'update_skipped')] == [2]
  small_run.run(tmp_path, 'train', task_cls)
  assert [event['step'] for event in events(tmp_path, 'update_skipped')] == [2, 9]
  assert events(tmp_path, 'update_skipped')[-1]['total'] == 2  # All of the run, not of the process.


@pytest.mark.slow
def test_the_end_of_a_run_reports_how_many_updates_were_skipped(tmp_path, capsys):
  task_cls = task_with_bad_steps(2, 9)
  _, logs = small_run.run(tmp_path, 'train', task_cls, trainer={'train_steps': 8})
  assert logs == {'skipped_updates': 1} and small_run.record(tmp_path)['skipped_updates'] == 1
  _, logs = small_run.run(tmp_path, task_cls=task_cls)  # All of the run, not of the process.
  assert logs['skipped_updates'] == 2 and small_run.record(tmp_path)['skipped_updates'] == 2
  assert [event['skipped_updates'] for event in events(tmp_path, 'finished')] == [1, 2]
  assert capsys.readouterr().out.splitlines()[-1] == 'finished 12/12  skipped_updates 2'
  runs.run(['show', str(tmp_path)])
  assert '2 updates' in capsys.readouterr().out


@pytest.mark.slow
def test_the_budget_is_that_of_the_run(tmp_path):
  task_cls, budget = task_with_bad_steps(2, 9), {'max_skips': 1}
  small_run.run(tmp_path, 'train', task_cls, trainer={'train_steps': 8, 'nonfinite': budget})
  with pytest.raises(errors.DivergedError, match='at steps 2, 9'):
    small_run.run(tmp_path, 'train', task_cls, trainer={'nonfinite': budget})


@pytest.mark.slow
def test_accumulation_counts_all_examples_of_an_update(tmp_path):
  small_run.run(tmp_path, 'train', task_with_bad_steps(3), trainer={'gradient_accumulation_steps': 4})
  (event,) = events(tmp_path, 'update_skipped')
  assert (event['first_example'], event['num_examples']) == (2 * 4 * small_run.BATCH_SIZE, 4 * small_run.BATCH_SIZE)


# Rollbacks.


def task_with_bad_batches(*bad_batches, value=np.nan):
  """A task that learns the number of every batch it sees; of some batches (from 0) every loss is `value`."""

  class BadDataTask(small_run.SmallTask):
    def build_inputs(self, params, input_context=None):
      if not params.is_training:
        return super().build_inputs(params, input_context)
      num_batches = small_run.NUM_EXAMPLES // small_run.BATCH_SIZE
      x, y = self.data
      # Unshuffled, its number beside each example.
      start = pipelines.take_start()
      num_replicas = input_context.num_replicas_in_sync if input_context else 1

      def make_batch(number):
        indices = (number % num_batches) * small_run.BATCH_SIZE + tf.range(small_run.BATCH_SIZE, dtype=tf.int64)
        return tf.gather(x, indices), tf.gather(y, indices), tf.fill([small_run.BATCH_SIZE], number)

      dataset = tf.data.Dataset.counter(start).map(make_batch)
      return dataset.unbatch().batch(small_run.BATCH_SIZE // num_replicas)

    def forward(self, inputs, model, training):
      if len(inputs) == 2:
        return super().forward(inputs, model, training)
      loss, logs = super().forward(inputs[:2], model, training)
      bad = tf.reduce_any(tf.equal(inputs[2][0], tf.constant(bad_batches or (-1,), tf.int64)))
      return tf.where(bad, value, loss), {**logs, 'batch': tf.cast(inputs[2][0], tf.float32)}

  return BadDataTask


ROLLBACK = {'steps_per_loop': 1, 'train_steps': 16, 'nonfinite': {'max_skips': 1, 'then': 'rollback'}}


def batches(folder):
  """The batch of each step, as it stands."""
  return [
    (event['step'], event['batch'])
    for event in writers.read_events(str(folder / 'events.jsonl'))
    if event['event'] == 'train' and 'batch' in event
  ]


@pytest.fixture(scope='module')
def gone_back(tmp_path_factory):
  """(variables, folder) of a run, on one replica, whose steps 7 and 9 are bad: back to 4, giving up 8."""
  folder = tmp_path_factory.mktemp('gone_back')
  model, _ = small_run.run(folder, 'train', task_with_bad_batches(6, 8), trainer=ROLLBACK)
  return [variable.numpy() for variable in model.variables], folder


@tiers.parametrize('replicas', ['one', 'two'], fast=['two'])
def test_a_rollback_continues_with_the_batches_that_follow(replicas, tmp_path, request):
  """Steps 7 and 9 are bad: back to 4, whose next batch is that of step 10."""
  if replicas == 'one':
    weights, folder = request.getfixturevalue('gone_back')
  else:
    folder = tmp_path
    model, _ = small_run.run(folder, 'train', task_with_bad_batches(6, 8), replicas, trainer=ROLLBACK)
    weights = [variable.numpy() for variable in model.variables]
  (event,) = events(folder, 'rollback')
  assert (event['step'], event['from_step'], event['data_offset'], event['rollbacks']) == (4, 9, 5, 1)
  assert 'at steps 7, 9' in event['reason'] and event['checkpoint'].endswith('/ckpt-4')
  assert batches(folder) == [(s, s - 1) for s in range(1, 5)] + [(s, s + 4) for s in range(5, 17)]
  assert [e['step'] for e in events(folder, 'checkpoint')] == [0, 4, 8, 8, 12, 16]
  assert small_run.record(folder)['skipped_updates'] == 2  # In the future that was given up, too.
  # The same weights as a run whose batches 4 to 8 do not exist.
  expected = harness.Reference(tf_keras.optimizers.SGD(0.1, momentum=0.9), harness.make_data(64), 8)
  data = expected.data
  expected.data = tuple(np.concatenate([part[:32], part[8:], part[:40]]) for part in data)
  expected.train(16)
  harness.assert_close(weights, expected.weights, 1e-5, 1e-6)


@pytest.mark.slow
def test_a_rollback_leads_the_actions_back_too(tmp_path):

  class Noting(triggers.Trigger):
    def __init__(self):
      super().__init__(('train', 'rollback'), lambda logs: self.noted.append([logs['event'], logs['step']]))
      self.noted = []

    def state(self):
      return {'noted': list(self.noted)}

    def restore(self, state):
      self.noted = list(state.get('noted', []))

  noting = Noting()
  bad = type('Bad', (task_with_bad_batches(6, 8),), {'build_actions': lambda self, trainer: [noting]})
  small_run.run(tmp_path, 'train', bad, trainer=ROLLBACK)
  assert noting.noted == [
    *(['train', step] for step in range(1, 5)),
    ['rollback', 4],
    *(['train', step] for step in range(5, 17)),
  ]


@pytest.mark.slow
def test_a_rollback_before_the_first_checkpoint_starts_again(tmp_path):
  small_run.run(tmp_path, 'train', task_with_bad_batches(0, 2), trainer=ROLLBACK)
  (event,) = events(tmp_path, 'rollback')
  assert (event['step'], event['data_offset']) == (0, 3)
  assert batches(tmp_path) == [(step, step + 2) for step in range(1, 17)]


def test_after_so_many_rollbacks_the_run_has_diverged(tmp_path):
  nonfinite = {'max_skips': 0, 'then': 'rollback', 'max_rollbacks': 2}
  with pytest.raises(errors.DivergedError, match='at step 5; .*max_rollbacks allows 2 rollbacks, which'):
    small_run.run(tmp_path, 'train', task_with_bad_batches(5, 6, 7), trainer={**ROLLBACK, 'nonfinite': nonfinite})
  assert [(e['step'], e['from_step'], e['data_offset']) for e in events(tmp_path, 'rollback')] == [(4, 6, 2), (4, 5, 3)]
  assert small_run.record(tmp_path)['status'] == 'diverged'


@pytest.mark.slow
def test_evaluations_are_done_again_and_the_future_is_deleted(tmp_path):
  bad = task_with_bad_batches(9, 10)
  trainer = {**ROLLBACK, 'checkpoint_interval': 3, 'validation_interval': 3, 'max_to_keep': 10}
  small_run.run(tmp_path, 'train_and_eval', task_cls=bad, trainer=trainer)
  (event,) = events(tmp_path, 'rollback')
  assert (event['step'], event['from_step'], event['data_offset']) == (9, 11, 2)
  assert [e['step'] for e in events(tmp_path, 'eval')] == [3, 6, 9, 12, 15, 16]
  assert [e['step'] for e in events(tmp_path, 'checkpoint')] == [0, 3, 6, 9, 12, 15, 16]


@pytest.mark.slow
def test_what_lies_long_ago_is_left_alone(tmp_path):
  """Steps 3 and 14 are bad, and all was well from 4 to 12."""
  small_run.run(tmp_path, 'train', task_with_bad_batches(2, 13), trainer=ROLLBACK)
  (event,) = events(tmp_path, 'rollback')
  assert (event['step'], event['from_step'], event['data_offset']) == (12, 14, 2)


@pytest.mark.slow
def test_a_run_that_cannot_roll_back_does_not_save_where_it_went_astray(tmp_path):
  # Before: it was saved on the way out, and the next start resumed from there.
  def block(output):
    if int(output['model_global_step']) == 5:
      (tmp_path / 'rollbacks.json').mkdir()

  # A step that saves nothing else: 7. Steps 6 and 7 are bad.
  with pytest.raises(errors.CheckpointError, match='ckpt-4: the run cannot go back to it: .*rollbacks.json: cannot be'):
    small_run.run(tmp_path, 'train', task_with_bad_batches(5, 6), trainer=ROLLBACK, train_actions=[block])
  assert [manifests.step_of(path) for path in manifests.complete_paths(str(tmp_path))] == [0, 4]
  (tmp_path / 'rollbacks.json').rmdir()
  small_run.run(tmp_path, 'train', task_with_bad_batches(5, 6), trainer=ROLLBACK)
  (event,) = events(tmp_path, 'rollback')
  assert (event['step'], event['from_step'], event['data_offset']) == (4, 7, 3)


class KilledError(BaseException):
  pass


@pytest.mark.slow
@tiers.parametrize('moment', harness.cases(['noted', 'next step'], soak=['deleted', 'restored']), fast=1)
def test_a_rollback_that_is_cut_off_is_finished_by_the_next_start(moment, gone_back, tmp_path, monkeypatch):
  trainer = {**ROLLBACK, 'max_to_keep': 10}
  bad = task_with_bad_batches(6, 8)
  straight, straight_folder = gone_back
  folder = tmp_path

  def die(*args, **kwargs):
    raise KilledError

  with monkeypatch.context() as patch:
    manager = manager_lib.CheckpointManager
    if moment == 'noted':
      patch.setattr(manager, '_delete_rolled_back', lambda self: die() if len(self.rollbacks) else None)
    elif moment == 'deleted':
      restore = manager.restore
      patch.setattr(manager, 'restore', lambda self, path: die() if len(self.rollbacks) else restore(self, path))
    elif moment == 'restored':
      patch.setattr(base_trainer.Trainer, 'checkpoint_restored', die)
    else:
      after = training_input.TrainingInput.after
      patch.setattr(
        training_input.TrainingInput, 'after', lambda self, *args: die() if self.data_offset else after(self, *args)
      )
    with pytest.raises(KilledError):
      small_run.run(folder, 'train', bad, trainer=trainer)
  assert (folder / 'ckpt-8.index').exists() == (moment == 'noted')
  resumed, _ = small_run.run(folder, 'train', bad, trainer=trainer)
  (restored,) = events(folder, 'restored')
  assert restored['step'] == 4
  assert batches(folder) == batches(straight_folder)
  for one, other in zip(straight, resumed.variables, strict=True):
    np.testing.assert_array_equal(one, other.numpy())
  record = small_run.record(folder)
  assert (record['status'], record['skipped_updates']) == ('finished', 2)


@pytest.mark.slow
def test_a_run_that_went_back_resumes_where_it_was(gone_back, tmp_path):
  bad = task_with_bad_batches(6, 8)
  straight, straight_folder = gone_back
  small_run.run(tmp_path, 'train', bad, trainer={**ROLLBACK, 'train_steps': 11})
  resumed, _ = small_run.run(tmp_path, 'train', bad, trainer=ROLLBACK)
  assert batches(tmp_path) == batches(straight_folder)
  for one, other in zip(straight, resumed.variables, strict=True):
    np.testing.assert_array_equal(one, other.numpy())


# A bound on the loss.


@pytest.mark.slow
def test_a_loss_above_the_bound_ends_the_run(tmp_path):
  bad = task_with_bad_batches(5, value=1000.0)
  with pytest.raises(errors.DivergedError, match='training_loss up to step 6 is 1000; trainer.loss_upper_bound is 900'):
    small_run.run(tmp_path / 'a', 'train', bad, trainer={'steps_per_loop': 1, 'loss_upper_bound': 900.0})
  unwatched = {'steps_per_loop': 1, 'loss_upper_bound': 900.0, 'recovery_begin_steps': 7, 'train_steps': 8}
  small_run.run(tmp_path / 'b', 'train', bad, trainer=unwatched)
  unwatched = {'steps_per_loop': 1, 'loss_upper_bound': 900.0, 'recovery_max_trials': -1, 'train_steps': 7}
  small_run.run(tmp_path / 'c', 'train', bad, trainer=unwatched)


@pytest.mark.slow
def test_a_loss_above_the_bound_leads_back(tmp_path):
  trainer = {'steps_per_loop': 1, 'loss_upper_bound': 900.0, 'recovery_max_trials': 1}
  small_run.run(tmp_path, 'train', task_with_bad_batches(5, value=1000.0), trainer=trainer)
  (event,) = events(tmp_path, 'rollback')
  assert (event['step'], event['from_step'], event['data_offset']) == (4, 6, 2)
  assert batches(tmp_path)[3:6] == [(4, 3), (5, 6), (6, 7)]


# Spikes.


@pytest.mark.slow
@pytest.mark.parametrize('replicas', harness.cases(['two'], soak=['one']))
def test_a_loss_spike_is_skipped(replicas, tmp_path):
  """The loss of batches 3 (too early) and 7 is 1000; the others are below 10 times the median of four."""
  trainer = {'loss_spike': {'factor': 10.0, 'window': 4}}
  small_run.run(tmp_path, 'train', task_with_bad_batches(3, 7, value=1000.0), replicas, trainer=trainer)
  assert [event['step'] for event in events(tmp_path, 'update_skipped')] == [8]
  small_run.run(tmp_path / 'off', 'train', task_with_bad_batches(3, 7, value=1000.0), replicas)
  assert not events(tmp_path / 'off', 'update_skipped')


@pytest.mark.slow
def test_spikes_are_counted_and_lead_back(tmp_path):
  trainer = {**ROLLBACK, 'loss_spike': {'factor': 10.0, 'window': 4}}
  small_run.run(tmp_path, 'train', task_with_bad_batches(6, 8, value=1000.0), trainer=trainer)
  assert [event['step'] for event in events(tmp_path, 'rollback')] == [4]
  assert batches(tmp_path)[4:] == [(step, step + 4) for step in range(5, 17)]


@pytest.mark.slow
def test_the_median_survives_a_resume(tmp_path):
  bad = task_with_bad_batches(7, value=1000.0)
  trainer = {'loss_spike': {'factor': 10.0, 'window': 4}}
  small_run.run(tmp_path, 'train', bad, trainer={**trainer, 'train_steps': 7})
  small_run.run(tmp_path, 'train', bad, trainer=trainer)
  assert [event['step'] for event in events(tmp_path, 'update_skipped')] == [8]


@pytest.mark.slow
def test_the_weights_of_a_skipped_step_are_those_before(tmp_path):
  """A bad last step leaves the same end as the run without it."""
  with_bad, _ = small_run.run(tmp_path / 'a', 'train', task_with_bad_steps(12))
  without, _ = small_run.run(tmp_path / 'b', 'train', task_with_bad_steps(), trainer={'train_steps': 11})
  harness.assert_close(
    [v.numpy() for v in with_bad.trainable_variables], [v.numpy() for v in without.trainable_variables], 0, 0
  )
