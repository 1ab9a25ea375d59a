"""Two inputs of one model number their classes alike, or are refused."""

import dataclasses
import types

import pytest

from official_ext.base import errors
from official_ext.data import input_files
from official_ext.training.evaluation import evaluated_data
from official_ext.training.loop import train_lib
from tests.training.loop import harness
from tests.training.loop import small_run


@dataclasses.dataclass
class Data:
  """A data configuration."""

  input_path: str
  global_batch_size: int = 4

  def replace(self, **changes):
    return dataclasses.replace(self, **changes)


def folder(path, names):
  path.mkdir()
  (path / 'labels.txt').write_text(''.join(f'{name}\n' for name in names))
  (path / 'train-0.tfrecord').write_bytes(b'x')
  return str(path / 'train-*.tfrecord')


def run(model_dir, train, validation):
  params = small_run.make_params(train_steps=2, steps_per_loop=2, validation_interval=2, checkpoint_interval=2)
  params.task.train_data.input_path, params.task.validation_data.input_path = train, validation
  task = small_run.make_task(params)
  return train_lib.run_experiment(harness.strategy('one'), task, 'train_and_eval', params, str(model_dir))


def test_training_and_validation_number_classes_alike(tmp_path):
  one, other = folder(tmp_path / 'one', ['bad', 'good']), folder(tmp_path / 'other', ['good', 'bad'])
  fewer = folder(tmp_path / 'fewer', ['good'])
  for validation in (other, fewer):
    with pytest.raises(errors.UserError, match='task.validation_data: class 0 is good, and bad in task.train_data'):
      run(tmp_path / 'run', one, validation)
  run(tmp_path / 'run', one, one)
  with pytest.raises(errors.UserError, match=r'task.train_data: class 0 is good, and bad in the data of the run \('):
    run(tmp_path / 'run', other, other)


def test_an_input_may_have_fewer_classes_and_numbers_may_have_gaps():
  def check(names, others):
    input_files.check_same_classes('a', input_files.ClassNames(names), 'b', input_files.ClassNames(others))

  check({0: 'bad'}, {0: 'bad', 1: 'good'})
  check({1: 'person', 90: 'toothbrush'}, {1: 'person', 2: 'bicycle', 90: 'toothbrush'})
  for others in ({1: 'person', 90: 'hair drier'}, {1: 'person'}):
    with pytest.raises(errors.UserError, match='a: class 90 is toothbrush, and (hair drier|90) in b; prepare it with'):
      check({1: 'person', 90: 'toothbrush'}, others)
  one, other = input_files.ClassNames({0: 'bad'}), input_files.ClassNames({0: 'good'})
  with pytest.raises(
    errors.UserError, match='a: class 0 is bad, and good in b; prepare it with --labels=b/labels.txt$'
  ):
    input_files.check_same_classes('a', one, 'b', other, 'b/labels.txt')


def test_an_evaluation_compares_with_the_training_data(tmp_path):
  one, other = folder(tmp_path / 'one', ['bad', 'good']), folder(tmp_path / 'other', ['good', 'bad'])
  task = types.SimpleNamespace(train_data=Data(one), validation_data=Data(other))
  with pytest.raises(errors.UserError, match='task.validation_data: class 0 is good, and bad in task.train_data'):
    evaluated_data.find(types.SimpleNamespace(task=task), ('text_classification',), 2)
