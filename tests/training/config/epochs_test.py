"""Intervals in epochs become steps, once; and give way to intervals in steps."""

import types

import pytest

from official_ext.base import errors
from official_ext.training.config import epochs
from official_ext.training.config import parser
import registry_imports  # noqa: F401
from tests.training.loop import small_run


class Task(small_run.SmallTask):
  """64 examples in batches of 8: 8 steps an epoch."""


class Unknowing(small_run.SmallTask):
  def num_examples(self, params):
    return None


def steps_of(folder, event):
  return [line['step'] for line in small_run.events(folder, event)]


@pytest.mark.slow
def test_a_run_evaluates_and_saves_by_epochs(tmp_path, capsys):
  small_run.run(
    tmp_path,
    task_cls=Task,
    trainer={
      'train_steps': 0,
      'train_epochs': 2,
      'validation_interval_epochs': 0.5,
      'checkpoint_interval_epochs': 0.7,
      'summary_interval_epochs': 1,
    },
  )
  assert steps_of(tmp_path, 'eval') == [4, 8, 12, 16]
  assert steps_of(tmp_path, 'checkpoint') == [6, 12, 16]  # 5.6 steps are 6.
  out = capsys.readouterr().out
  for line in (
    'trainer.train_steps: 16, 2 epochs of 64 examples',
    'trainer.validation_interval: 4, 0.5 epochs of 64 examples',
    'trainer.checkpoint_interval: 6, 0.7 epochs of 64 examples',
  ):
    assert out.count(f'{line}\n') == 1
  text = (tmp_path / 'params.yaml').read_text()
  assert 'validation_interval: 4\n' in text and 'validation_interval_epochs: 0.0\n' in text


@pytest.mark.parametrize(
  'given, num_examples, batch_size, steps', [(1, 30, 4, 8), (0.1, 30, 1, 3), (0.001, 30, 4, 1), (10, 30, 3, 100)]
)
def test_steps_are_whole_and_at_least_one(given, num_examples, batch_size, steps):
  params = small_run.make_params(validation_interval_epochs=float(given))
  params.task.train_data.global_batch_size = batch_size
  task = types.SimpleNamespace(num_examples=lambda data: num_examples)
  assert epochs.in_steps(params.trainer, params.task, task) == {
    'validation_interval': steps,
    'validation_interval_epochs': 0.0,
  }


def test_an_unknown_number_of_examples_is_one_line(tmp_path):
  with pytest.raises(errors.UserError) as caught:
    small_run.run(tmp_path / 'a', task_cls=Unknowing, trainer={'checkpoint_interval_epochs': 1.0})
  assert str(caught.value) == (
    'trainer.checkpoint_interval_epochs: Unknowing does not know the number of its training examples; set '
    'trainer.checkpoint_interval instead'
  )
  assert not (tmp_path / 'a').exists()


def parse(**flags):
  return parser.parse_configuration(types.SimpleNamespace(experiment='digits_mlp', **flags)).trainer


def test_the_later_of_steps_and_epochs_wins(tmp_path):
  by_epochs = tmp_path / 'epochs.yaml'
  by_epochs.write_text('trainer: {validation_interval_epochs: 2}\n')
  assert parse(config_file=[str(by_epochs)]).validation_interval_epochs == 2.0
  trainer = parse(config_file=[str(by_epochs)], set=['validation_interval=50'])
  assert (trainer.validation_interval, trainer.validation_interval_epochs) == (50, 0.0)
  assert parse(set=['validation_interval_epochs=0.5']).validation_interval_epochs == 0.5
  with pytest.raises(errors.UserError, match='^trainer.validation_interval_epochs: set either trainer.validation_int'):
    parse(set=['trainer.validation_interval=50', 'trainer.validation_interval_epochs=2'])
  with pytest.raises(errors.UserError, match='^trainer.summary_interval_epochs: expected at least 0, got -1'):
    parse(set=['trainer.summary_interval_epochs=-1'])
