"""Logged values as events."""

import math

from official_ext.operations.imports import tensorboard_files


def events(values):
  return list(values.events(5.0))


def test_values_of_a_kind_and_step_are_one_event():
  values = tensorboard_files.LoggedValues()
  values.add('loss', 1, 10.0, 1.0, 'file')
  values.add('loss', 2, 20.0, 0.5, 'file')
  values.add('rate', 1, 10.5, 0.1, 'file')
  values.add('val/loss', 1, 11.0, 2.0, 'file')
  assert events(values) == [
    {'time': 10.0, 'event': 'train', 'step': 1, 'loss': 1.0, 'rate': 0.1},
    {'time': 11.0, 'event': 'eval', 'step': 1, 'loss': 2.0},
    {'time': 20.0, 'event': 'train', 'step': 2, 'loss': 0.5},
  ]
  assert len(values) == 4 and values.last_step() == 2 and values.ends() == (10.0, 20.0)


def test_no_two_names_become_one():
  values = tensorboard_files.LoggedValues()
  names = ('eval/loss', 'val/loss', 'validation/loss', 'test/loss', 'step', 'step_', 'train/step', 'train/', 'a/b')
  for number, name in enumerate(names):
    values.add(name, 1, 1.0, number, 'file')
  train, evaluation = events(values)
  assert evaluation == {
    **{'time': 1.0, 'event': 'eval', 'step': 1},
    **{'loss': 0, 'val/loss': 1, 'validation/loss': 2, 'test/loss': 3},
  }
  assert {name: train[name] for name in train if name not in ('time', 'event', 'step')} == {
    **{'step_': 4, 'step__': 5, 'train/step': 6, 'train/': 7, 'a/b': 8}
  }


def test_impossible_steps_and_times():
  values = tensorboard_files.LoggedValues()
  values.add('loss', 2**60, 1.0, 1.0, 'file')
  values.add('loss', -1, math.nan, 2.0, 'file')
  values.add('loss', 1, math.inf, 1.0, 'file')
  assert [(each['step'], each['time']) for each in events(values)] == [(-1, 5.0), (1, 5.0)]
  assert tensorboard_files.LoggedValues().ends() is None and not events(tensorboard_files.LoggedValues())


def test_lines_are_strict_json():
  event = {'time': 1.5, 'event': 'train', 'step': 1, 'a': math.nan, 'b': -math.inf, 'c': 1e-9}
  assert tensorboard_files.event_line(event) == (
    b'{"time": 1.5, "event": "train", "step": 1, "a": "NaN", "b": "-Infinity", "c": 1e-09}\n'
  )
