"""Updates that are not finite: left out, told, and not too many of them."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.cli import exit_status
from official_ext.core import errors
from tests.core import harness
from tests.core import small_run


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


@pytest.mark.parametrize('replicas', ['one', 'two'])
def test_a_skipped_update_is_told_with_its_examples(replicas, tmp_path):
  model, _ = small_run.run(tmp_path, 'train', task_with_bad_steps(3, 7), replicas)
  skipped = events(tmp_path, 'update_skipped')
  batch = small_run.BATCH_SIZE
  assert [(event['step'], event['first_example'], event['num_examples'], event['total']) for event in skipped] == [
      (3, 2 * batch, batch, 1), (7, 6 * batch, batch, 2)]
  assert all(np.isfinite(variable.numpy()).all() for variable in model.variables)
  losses = [event['training_loss'] for event in events(tmp_path, 'train')]
  assert np.isfinite(losses).all()
  last = events(tmp_path, 'train')[-1]
  assert (last['model_global_step'], last['optimizer_iterations']) == (12, 10)


def test_too_many_end_the_run(tmp_path):
  diverging = {'nonfinite': {'max_skips': 2}}
  with pytest.raises(errors.DivergedError, match=r'3 updates were left out .* at steps 1, 3, 6; .*max_skips allows 2'):
    small_run.run(tmp_path, 'train', task_with_bad_steps(1, 3, 6), trainer=diverging)
  record = small_run.record(tmp_path)
  assert record['status'] == 'diverged' and record['error'].startswith('DivergedError: 3 updates')
  last = small_run.events(tmp_path)[-1]
  assert last['event'] == 'failed' and last['error'] == record['error']
  # What was saved before is finite.
  assert [event['step'] for event in events(tmp_path, 'checkpoint')] == [4, 5][:1]


def test_divergence_has_an_exit_status_of_its_own(tmp_path, capsys):
  status = exit_status.of(
      lambda _: small_run.run(
          tmp_path, 'train', task_with_bad_steps(1), trainer={'nonfinite': {'max_skips': 0}}), [])
  assert status == 3
  line, = capsys.readouterr().err.splitlines()
  assert line.startswith('error: 1 updates were left out')


def test_a_resumed_run_tells_only_of_its_own(tmp_path):
  task_cls = task_with_bad_steps(2, 9)
  small_run.run(tmp_path, 'train', task_cls, trainer={'train_steps': 8})
  assert [event['step'] for event in events(tmp_path, 'update_skipped')] == [2]
  small_run.run(tmp_path, 'train', task_cls)
  assert [event['step'] for event in events(tmp_path, 'update_skipped')] == [2, 9]
  assert events(tmp_path, 'update_skipped')[-1]['total'] == 2  # All of the run, not of the process.


def test_the_budget_is_that_of_the_run(tmp_path):
  task_cls, budget = task_with_bad_steps(2, 9), {'max_skips': 1}
  small_run.run(tmp_path, 'train', task_cls, trainer={'train_steps': 8, 'nonfinite': budget})
  with pytest.raises(errors.DivergedError, match='at steps 2, 9'):
    small_run.run(tmp_path, 'train', task_cls, trainer={'nonfinite': budget})


def test_accumulation_counts_all_examples_of_an_update(tmp_path):
  small_run.run(tmp_path, 'train', task_with_bad_steps(3), trainer={'gradient_accumulation_steps': 4})
  event, = events(tmp_path, 'update_skipped')
  assert (event['first_example'], event['num_examples']) == (2 * 4 * small_run.BATCH_SIZE, 4 * small_run.BATCH_SIZE)


def test_the_weights_of_a_skipped_step_are_those_before(tmp_path):
  """A bad last step leaves what the run without it ends with."""
  with_bad, _ = small_run.run(tmp_path / 'a', 'train', task_with_bad_steps(12))
  without, _ = small_run.run(tmp_path / 'b', 'train', task_with_bad_steps(), trainer={'train_steps': 11})
  harness.assert_close(
      [v.numpy() for v in with_bad.trainable_variables], [v.numpy() for v in without.trainable_variables], 0, 0)
