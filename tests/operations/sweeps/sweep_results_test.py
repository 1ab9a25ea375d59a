"""Tests of a sweep's results."""

import math
import statistics

import pytest

from official_ext.operations.sweeps import sweep_file
from official_ext.operations.sweeps import sweep_points
from tests.operations.runs import folders as run_folders
from tests.operations.sweeps import folders

_GRID = {
  'method': 'grid',
  'parameters': {
    'learning_rate': {'values': [1e-4, 1e-3, 1e-2]},
    'task.model.dropout_rate': {'value': 0.0},
    'optimizer': {'values': ['adam', 'sgd']},
    'seed': {'values': [1, 2, 3]},
  },
}


def test_points_that_differ_in_their_seed_alone_are_taken_together(tmp_path):
  folder = folders.make(tmp_path, count=18, failed=(1,), **_GRID)
  sweep, found = folder.load(), list(folders.points(folder).values())
  groups = sweep_points.seed_groups(found, sweep)
  assert len(groups) == 6
  assert [len(group.points) for group in groups].count(2) == 1  # One has failed.
  best = groups[0]
  assert best.parameters['optimizer'] == 'adam'
  values = [point.value for point in found if point.number in best.points]
  assert (best.mean, best.deviation) == (statistics.fmean(values), statistics.stdev(values))
  assert best.mean == max(group.mean for group in groups)


def test_the_importance_of_the_parameters_of_a_grid_is_known(tmp_path):
  folder = folders.make(tmp_path, count=18, **_GRID)
  found = sweep_points.importance_of_parameters(list(folders.points(folder).values()), folder.load())
  assert list(found)[0] == 'learning_rate'  # accuracy() depends on it by up to 0.06, on the optimizer by 0.05.
  assert found['seed'] < 0.05 < found['optimizer']


def test_the_best_come_first_and_what_has_no_value_last(tmp_path):
  folder = folders.make(tmp_path, count=6, pruned=(2,), failed=(4,))
  found = list(folders.points(folder).values())
  order = sweep_points.best_first(found, folder.load())
  assert [point.number for point in order[-2:]] == [2, 4]
  values = [point.value for point in order[:4]]
  assert values == sorted(values, reverse=True)
  assert sweep_points.best_point(found, folder.load()) is order[0]


@pytest.mark.parametrize(
  ('values', 'last', 'best'),
  [([3.0, 1.0, 2.0], 2.0, 1.0), ([3.0, math.nan], None, 3.0), ([math.inf], None, None), ([], None, None)],
)
def test_the_value_of_a_run_is_that_of_its_last_evaluation_or_of_its_best(values, last, best):
  assert sweep_points.summarise(values, sweep_file.Metric('loss')) == last
  assert sweep_points.summarise(values, sweep_file.Metric('loss', summary='best')) == best


def test_a_metric_is_that_of_evaluations_or_else_of_training(tmp_path):
  events = [
    run_folders.event('train', 10, training_loss=3.0, accuracy=0.1),
    run_folders.event('eval', 10, accuracy=0.2, loss='NaN'),
    run_folders.event('eval', 20, accuracy=0.9),
    run_folders.event('restored', 10),
    run_folders.event('train', 20, training_loss=2.0, accuracy=0.3),
    run_folders.event('eval', 20, accuracy=0.4, loss=1.0),
  ]
  path = run_folders.make(tmp_path, 'a', events).file('events.jsonl')
  read = lambda name: sweep_points.read_history(path, name)
  assert read('accuracy').values == read('validation_accuracy').values == (0.2, 0.4)  # Reverted steps do not count.
  assert (read('accuracy').steps, read('accuracy').last_step) == ((10, 20), 20)
  assert read('training_loss').values == (3.0, 2.0)
  assert math.isnan(read('loss').values[0])
  assert read('loss').finite() == (1.0,)
  assert (read('acc').values, set(read('acc').names)) == ((), {'accuracy', 'loss', 'training_loss'})


def test_what_has_not_changed_is_not_read_twice_and_what_has_is(tmp_path):
  folder = folders.make(tmp_path, count=2)
  reader, sweep = sweep_points.PointReader(folder), folder.load()
  first = reader.read(sweep)
  assert [point.history for point in reader.read(sweep)] == [point.history for point in first]
  assert reader.read(sweep)[0].history is first[0].history
  path = f'{first[0].record.folder}/events.jsonl'
  with open(path, 'a') as file:
    file.write('{"time": 1, "event": "eval", "step": 600, "accuracy": 0.25}\n')
  run_folders.make(folder.path, first[1].record.name, status='diverged', identity=run_folders.ended_process())
  found = reader.read(sweep)
  assert found[0].value == 0.25
  assert (found[1].status, found[1].value) == ('diverged', None)
