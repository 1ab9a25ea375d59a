"""Tests for metrics over groups of runs."""

import math
import statistics

import pytest

from official_ext.base import errors
from official_ext.operations.runs import run_comparison
from official_ext.operations.runs import run_index


def _run(name, tags=(), **evaluation):
  return run_index.RunSummary(name, f'/{name}', 'finished', '', evaluation=evaluation, tags=tuple(tags))


RUNS = [
  _run('sweep/1', accuracy=0.90, loss=0.3),
  _run('sweep/2', accuracy=0.94, loss=0.5),
  _run('3', accuracy=0.91),
]
PARAMS = {
  'sweep/1': {'rate': 0.1, 'a.b.rate': 0.1, 'runtime.seed': 1, 'seed': 1, 'depth': 2},
  'sweep/2': {'rate': 0.1, 'a.b.rate': 0.1, 'runtime.seed': 2, 'seed': 2, 'depth': 2},
  '3': {'rate': 0.2, 'a.b.rate': 0.2, 'runtime.seed': 1, 'seed': 1, 'depth': 2},
}


def _group(by, *metrics, runs=tuple(RUNS)):
  return run_comparison.group_runs(runs, by, list(map(run_comparison.parse_metric, metrics)), lambda: PARAMS)


def test_mean_deviation_and_the_best():
  first, second = _group(['rate'], 'accuracy', 'loss')
  assert (first.values, first.names) == ((0.1,), ('sweep/1', 'sweep/2'))
  assert (second.values, second.names) == ((0.2,), ('3',))
  accuracy, loss = first.spreads
  assert accuracy.mean == pytest.approx(0.92) and accuracy.deviation == pytest.approx(statistics.stdev([0.90, 0.94]))
  assert accuracy.is_best and not second.spreads[0].is_best and second.spreads[0].deviation is None
  assert loss.is_best and loss.mean == pytest.approx(0.4) and second.spreads[1] is None


@pytest.mark.parametrize(('metric', 'best'), [('accuracy', 0.92), ('accuracy:max', 0.92), ('accuracy:min', 0.91)])
def test_which_values_are_better(metric, best):
  found = [each.spreads[0] for each in _group(['rate'], metric)]
  assert [each.mean for each in found if each.is_best] == [pytest.approx(best)]


def test_a_name_that_implies_nothing_has_no_best():
  runs = [_run('sweep/1', thing=1.0), _run('3', thing=2.0)]
  assert not any(each.spreads[0].is_best for each in _group(['rate'], 'thing', runs=runs))


def test_a_run_that_diverged_counts():
  runs = [_run('sweep/1', loss=math.nan), _run('sweep/2', loss=1.0), _run('3', loss=2.0)]
  first, second = _group(['rate'], 'loss', runs=runs)
  assert math.isnan(first.spreads[0].mean) and first.spreads[0].count == 2 and not first.spreads[0].is_best
  assert second.spreads[0].is_best


def test_training_and_evaluation_are_not_mixed():
  trained = run_index.RunSummary('3', '/3', 'finished', '', train={'accuracy': 0.99})
  first, second = _group(['rate'], 'accuracy', runs=[RUNS[0], RUNS[1], trained])
  assert first.spreads[0].count == 2 and second.spreads[0] is None
  (alone,) = _group(['rate'], 'accuracy', runs=[trained])
  assert alone.spreads[0].mean == 0.99


@pytest.mark.parametrize('values', [(1e308, 1e308), (1.7e308, -1.7e308), (10**400, 1.0)])
def test_huge_values_are_infinite(values):
  runs = [_run('sweep/1', loss=values[0]), _run('sweep/2', loss=values[1])]
  (found,) = _group(['rate'], 'loss', runs=runs)
  assert math.isinf(found.spreads[0].mean) and found.spreads[0].count == 2


def test_groups_by_tag_and_folder():
  runs = [_run('sweep/1', 'ba', loss=1.0), _run('sweep/2', 'ab', loss=1.0), _run('3', loss=1.0)]
  assert [each.values for each in _group(['tag', 'folder'], 'loss', runs=runs)] == [('a,b', 'sweep'), ('', '')]


def test_fields_that_differ_leave_out_seeds_and_second_names():
  assert run_comparison.fields_that_differ(PARAMS) == ['rate']


def test_names_of_no_run_are_refused():
  with pytest.raises(errors.UserError, match='--metric=none: no run has it'):
    _group(['rate'], 'none')
  with pytest.raises(errors.UserError, match='--group=none: no run has'):
    _group(['none'], 'accuracy')
