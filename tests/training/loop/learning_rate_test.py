"""Runs whose learning rate is 0 at every step are refused; the rates of resumed runs are the schedule's."""

import json
import math

import numpy as np
import pytest

from official_ext.base import errors
from tests.training.loop import small_run

PEAK = 0.1


def optimizer_config(decay_steps, warmup_steps=0):
  return {
    'optimizer': {'type': 'sgd'},
    'learning_rate': {'type': 'cosine', 'cosine': {'initial_learning_rate': PEAK, 'decay_steps': decay_steps}},
    'warmup': {'type': 'linear', 'linear': {'warmup_steps': warmup_steps}},
  }


def run(folder, train_steps, decay_steps, warmup_steps=0, **options):
  lengths = dict(train_steps=train_steps, steps_per_loop=1, summary_interval=1, checkpoint_interval=2)
  config = optimizer_config(decay_steps, warmup_steps)
  small_run.run(folder, 'train', trainer={**lengths, 'optimizer_config': config}, **options)


def logged_rates(folder):
  events = map(json.loads, (folder / 'events.jsonl').read_text().splitlines())
  return {event['step']: event['learning_rate'] for event in events if event['event'] == 'train'}


def rate(step, decay_steps, warmup_steps):
  """Model Garden's: a warm-up rises to the schedule's value at its end."""
  after = lambda step: PEAK * (1 + math.cos(math.pi * min(step, decay_steps) / decay_steps)) / 2
  return step / warmup_steps * after(warmup_steps) if step < warmup_steps else after(step)


def test_a_warm_up_as_long_as_the_decay_is_refused_before_anything_is_written(tmp_path):
  with pytest.raises(errors.UserError, match=r'^trainer\.optimizer_config: the learning rate is 0 at each .* 0 to 3, '):
    run(tmp_path / 'run', 4, decay_steps=4, warmup_steps=6)
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_steps_after_the_end_of_a_schedule_are_refused_and_a_longer_schedule_is_not(tmp_path):
  run(tmp_path, 4, decay_steps=4, warmup_steps=2)
  with pytest.raises(errors.UserError, match='is 0 at each of the steps 4 to 7, so nothing would be learned; '):
    run(tmp_path, 8, decay_steps=4, warmup_steps=2)
  assert json.loads((tmp_path / 'run.json').read_text())['status'] == 'finished'
  run(tmp_path, 8, decay_steps=8, warmup_steps=2)
  # The rate that is logged after n steps is that of the last one, number n - 1.
  expected = {step: rate(step - 1, 4 if step <= 4 else 8, 2) for step in range(1, 9)}
  assert logged_rates(tmp_path) == pytest.approx(expected, abs=1e-7)


@pytest.mark.slow
def test_the_end_of_an_interrupted_run_may_have_a_rate_of_0(tmp_path):
  class StopError(Exception):
    pass

  def stop_at_6(logs):
    if logs['model_global_step'] >= 6:
      raise StopError

  with pytest.raises(StopError):
    run(tmp_path, 8, decay_steps=4, train_actions=[stop_at_6])
  run(tmp_path, 8, decay_steps=4)
  assert logged_rates(tmp_path)[8] == 0.0


@pytest.mark.slow
def test_another_line_of_training_starts_where_its_checkpoint_was(tmp_path):
  run(tmp_path / 'first', 4, decay_steps=4)
  with pytest.raises(errors.UserError, match='is 0 at each of the steps 4 to 5'):
    run(tmp_path / 'second', 6, decay_steps=4, checkpoint=str(tmp_path / 'first/ckpt-4'))
  run(tmp_path / 'second', 6, decay_steps=4, checkpoint=str(tmp_path / 'first/ckpt-2'))


@pytest.mark.slow
def test_a_constant_of_0_is_reported(tmp_path, capsys):
  config = {'optimizer': {'type': 'sgd'}, 'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.0}}}
  small_run.run(tmp_path, 'train', trainer=dict(train_steps=2, optimizer_config=config))
  line = 'warning: trainer.optimizer_config.learning_rate.constant.learning_rate is 0.0'
  assert line in capsys.readouterr().err
  assert np.all([value == 0 for value in logged_rates(tmp_path).values()])
