"""One number for a curve."""

import math

import pytest

from official_ext.base import errors
from official_ext.operations.curves import column_store
from official_ext.operations.curves import curve_statistics
from official_ext.operations.curves import event_columns
from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture
def store(tmp_path):
  return column_store.ColumnStore(str(tmp_path / 'cache'))


def _run(root, values, metric='loss'):
  return folders.make(root, 'run', [event('train', step, **{metric: value}) for step, value in enumerate(values, 1)])


def test_last_best_least_greatest_and_mean(store, tmp_path, monkeypatch):
  monkeypatch.setattr(event_columns, '_PART', 2)
  run = _run(tmp_path, [5.0, 1.0, 7.0, 1.0, 2.0])
  found = {name: curve_statistics.read_value(store, run, 'train/loss', name, 2) for name in curve_statistics.STATISTICS}
  assert {name: (each.value, each.step, each.count) for name, each in found.items()} == {
    'last': (2.0, 5, 1),
    'best': (1.0, 2, 5),  # Of losses the least; the first of two.
    'min': (1.0, 2, 5),
    'max': (7.0, 3, 5),
    'mean': (1.5, 5, 2),
  }
  assert curve_statistics.read_value(store, run, 'train/loss', 'mean', 100).value == pytest.approx(16 / 5)
  assert curve_statistics.read_value(store, run, 'eval/loss', 'last') is None


def test_values_that_are_not_finite_show_in_the_last_and_the_mean(store, tmp_path):
  run = _run(tmp_path, [3.0, 'Infinity', 1e308, 'NaN', 1e308])
  value = lambda statistic, count=1: curve_statistics.read_value(store, run, 'train/loss', statistic, count).value
  assert (value('last'), value('min'), value('max')) == (1e308, 3.0, 1e308)
  assert math.isnan(value('mean', 2)) and math.isnan(value('mean', 5))
  again = _run(tmp_path, [1.7e308, 1.7e308])
  assert curve_statistics.read_value(store, again, 'train/loss', 'mean', 2).value == 1.7e308  # Their sum is infinite.


def test_the_configuration_decides_which_values_are_better_or_nothing_does(store, tmp_path):
  run = _run(tmp_path, [0.2, 0.9, 0.5], 'accuracy')
  assert curve_statistics.read_value(store, run, 'train/accuracy', 'best').value == 0.9
  run = _run(tmp_path, [1.0], 'width')
  with pytest.raises(errors.UserError, match='width: unknown whether higher or lower values are better'):
    curve_statistics.read_value(store, run, 'train/width', 'best')


@pytest.mark.parametrize('arguments', [('train/loss', 'median'), ('train/loss', 'mean', 0), ('loss',)])
def test_invalid_arguments_are_errors(store, tmp_path, arguments):
  with pytest.raises(errors.UserError):
    curve_statistics.read_value(store, _run(tmp_path, [1.0]), *arguments)
