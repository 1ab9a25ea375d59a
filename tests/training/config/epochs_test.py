"""Lengths and intervals in epochs become steps, each end by itself; and give way to those in steps."""

import fractions
import math
import types

import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.actions import keras_callbacks
from official_ext.training.config import epochs
from official_ext.training.config import parser
import registry_imports  # noqa: F401
from tests.training.loop import small_run


class Task(small_run.SmallTask):
  """64 examples in batches of 8: 8 steps an epoch."""


class Unknowing(small_run.SmallTask):
  def num_examples(self, params):
    return None


@pytest.mark.parametrize(
  ('pieces', 'step', 'words'),
  [
    ([(0, 0, 33)], 4, ''),  # 32 of 33 examples in a step, all along.
    (
      [(0, 0, fractions.Fraction(33, 64)), (4, fractions.Fraction(256, 33), fractions.Fraction(33, 32))],
      4,
      'after 256 ',
    ),
    (
      [(0, 0, fractions.Fraction(33, 16)), (4, fractions.Fraction(64, 33), fractions.Fraction(33, 32))],
      6,
      'after 128 ',
    ),
  ],
)
def test_where_the_input_continues_is_printed_if_it_is_another_place(pieces, step, words):
  params = small_run.make_params()
  params.task.train_data.global_batch_size = 32
  lengths = epochs.Lengths(epochs.Ends(tuple(pieces)))
  line = epochs.position_line(params, lengths, step)
  assert words in line and bool(line) == bool(words)
  assert not words or ('come again' in line) == (int(words.split()[1]) > step * 32)


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
  assert steps_of(tmp_path, 'checkpoint') == [6, 12, 16]  # 5.6 and 11.2 steps.
  out = capsys.readouterr().out
  for line in (
    'trainer.train_steps: 16, 2 epochs of 64 examples',
    'trainer.validation_interval: 4, 0.5 epochs of 64 examples',
    'trainer.checkpoint_interval: 5 or 6, 0.7 epochs of 64 examples',
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


def ends_of(num_examples, batch_size, share=1):
  whole = epochs.Ends(((0, fractions.Fraction(0), fractions.Fraction(num_examples, batch_size)),))
  return whole.shares(fractions.Fraction(share))


@pytest.mark.parametrize(
  ('num_examples', 'batch_size', 'share', 'expected'),
  [
    (33, 32, 1, [2, 3, 4, 5, 6, 7]),  # 1.03, 2.06, ..., 6.19, each rounded up.
    (64, 32, 1, [2, 4, 6, 8, 10, 12]),
    (31, 10, '1/2', [2, 4, 5, 7, 8, 10]),  # 1.55, 3.1, 4.65, 6.2, 7.75, 9.3.
    (8, 32, 1, [1, 2, 3, 4, 5, 6]),  # An epoch has at least one step.
    (30, 10, 0.1, [1, 2, 3, 4, 5, 6]),
  ],
)
def test_each_end_is_rounded_by_itself(num_examples, batch_size, share, expected):
  ends = ends_of(num_examples, batch_size, share)
  assert [step for step in range(expected[-1] + 1) if ends.is_end(step)] == expected
  assert [ends.end_of(number) for number in range(1, 7)] == expected
  assert [ends.next_after(step) for step in [0, *expected[:-1]]] == expected
  steps = tf.range(1, expected[-1] + 1, dtype=tf.int64)
  assert tf.boolean_mask(steps, ends.is_end_in_graph(steps)).numpy().tolist() == expected


@pytest.mark.parametrize('parts', [1, 3, 6, 7, 12])
@pytest.mark.parametrize('num_examples', range(30, 100, 7))
def test_an_epoch_cut_in_equal_parts_has_as_many_ends(num_examples, parts):
  """Also for parts that no binary fraction holds, as 1/3."""
  length = epochs.lengths(
    small_run.make_params(validation_interval_epochs=1 / parts).trainer,
    types.SimpleNamespace(train_data=types.SimpleNamespace(global_batch_size=2)),
    types.SimpleNamespace(num_examples=lambda data: num_examples),
  )
  ends = length.ends('validation_interval', 1)
  last = length.epochs.end_of(5)
  found = [step for step in range(last + 1) if ends.is_end(step)]
  assert found[-1] == last == math.ceil(5 * num_examples / 2) and len(found) == 5 * parts


class Counting(small_run.SmallTask):
  """33 examples; notes the epochs that begin for a Keras callback."""

  begun: list[int] = []

  def __init__(self, params, data):
    super().__init__(params, tuple(part[:33] for part in data))

  def build_actions(self, trainer):
    note = lambda epoch, rate: self.begun.append(epoch) or rate
    return [keras_callbacks.KerasCallback(tf_keras.callbacks.LearningRateScheduler(note), trainer)]


def run_epochs(folder, mode='train_and_eval', batch_size=32, train_epochs=6, **trainer):
  lengths = {'train_steps': 0, 'train_epochs': train_epochs, 'validation_interval_epochs': 1, **trainer}
  params = small_run.make_params(checkpoint_interval_epochs=1, steps_per_loop=50, **lengths)
  params.task.train_data.global_batch_size = batch_size
  Counting.begun = []
  small_run.run(folder, mode, Counting, params=params)
  return Counting.begun


def test_six_epochs_have_six_evaluations_saves_and_points_of_a_schedule(tmp_path, capsys):
  assert run_epochs(tmp_path) == [0, 1, 2, 3, 4, 5]
  assert steps_of(tmp_path, 'eval') == steps_of(tmp_path, 'checkpoint') == [2, 3, 4, 5, 6, 7]
  out = capsys.readouterr().out
  assert 'trainer.validation_interval: 1 or 2, 1 epochs of 33 examples\n' in out
  assert 'trainer.train_steps: 7, 6 epochs of 33 examples\n' in out


@pytest.mark.slow
def test_without_evaluations_too(tmp_path):
  assert run_epochs(tmp_path, 'train') == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_run_that_resumes_with_another_batch_size_takes_all_its_epochs_once(tmp_path, capsys):
  """Three epochs of 33/32 steps end at step 4, after 128/33 = 3.88 epochs; from there an epoch has 33/16 steps.

  Epoch 4 ends (4 - 128/33) 33/16 = 0.25 steps later, at step 5; then 2.31 and 4.38 steps later, at 7 and 9.
  """
  assert run_epochs(tmp_path, train_epochs=3) == [0, 1, 2]
  capsys.readouterr()
  assert run_epochs(tmp_path, train_epochs=6, batch_size=16) == [3, 4, 5]
  assert 'after 128 examples the input continues at example 64, step x batch size; 64 examples come again' in (
    capsys.readouterr().out
  )
  assert steps_of(tmp_path, 'eval') == [2, 3, 4, 5, 7, 9]
  found = [line['epoch'] for line in small_run.events(tmp_path, 'eval')]
  start = 128 / 33
  assert found == pytest.approx([64 / 33, 96 / 33, start, start + 16 / 33, start + 48 / 33, start + 80 / 33])
  # Once more: a run that has finished has nothing to do, whatever its pieces.
  assert run_epochs(tmp_path, train_epochs=6, batch_size=16) == []
  assert steps_of(tmp_path, 'eval') == [2, 3, 4, 5, 7, 9]


@pytest.mark.slow
def test_a_run_of_an_older_version_keeps_its_rounding(tmp_path, monkeypatch):
  """Its manifests do not have the epochs: it began with one rounded interval of 2 steps."""
  with monkeypatch.context() as patch:
    patch.setattr(epochs.Lengths, 'to_json', lambda self: None)
    run_epochs(tmp_path, train_epochs=1)
  run_epochs(tmp_path, train_epochs=6)
  assert steps_of(tmp_path, 'eval') == [2, 4, 6, 7]
