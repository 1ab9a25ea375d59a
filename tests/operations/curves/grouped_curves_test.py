"""Mean and deviation of curves over groups of runs."""

import json
import statistics

import numpy as np
import pytest

from official_ext.operations.curves import curve_statistics
from official_ext.operations.curves import curves
from tests.operations.curves import decimated

_NAME = 'train/loss'
_NAN = float('nan')


def _group(lines, groups, buckets=100, **view):
  """The curves of groups, of curves as (x, y) by run."""
  view = curves.View(buckets=buckets, **view)
  places = np.concatenate([np.asarray(x, float) for x, _ in lines.values()])
  first, last = float(places.min()), float(places.max())
  found = {
    (run, _NAME): decimated.decimate(np.asarray(x, float), np.asarray(y, float), first, last, buckets, view.log)
    for run, (x, y) in lines.items()
  }
  return curve_statistics.group_curves(curves.Curves(first, last, found), groups, view)


def test_a_group_has_the_mean_and_the_sample_deviation_of_its_runs():
  values = {'a': [1.0, 2.0, 4.0], 'b': [3.0, 2.0, 8.0], 'c': [5.0, 5.0, 0.0], 'd': [7.0, 7.0, 7.0]}
  found = _group({run: ([1, 2, 3], y) for run, y in values.items()}, {'a': 'x', 'b': 'x', 'c': 'x', 'd': 'y'})
  assert list(found) == [('x', _NAME), ('y', _NAME)]
  columns = list(zip(values['a'], values['b'], values['c']))
  band = found['x', _NAME]
  assert (band.num_runs, band.x.tolist()) == (3, [1, 2, 3])
  assert band.mean.tolist() == pytest.approx(list(map(statistics.fmean, columns)))
  assert band.deviation.tolist() == pytest.approx(list(map(statistics.stdev, columns)))
  alone = found['y', _NAME].as_dict()
  assert alone['low'] == alone['y'] == alone['high'] == values['d']


def test_runs_count_where_they_are_and_between_their_points():
  lines = {'short': ([0, 10], [0.0, 10.0]), 'long': ([0, 5, 20], [4.0, 4.0, 4.0])}
  band = _group(lines, dict.fromkeys(lines, 'all'))['all', _NAME]
  assert band.x.tolist() == [0, 5, 10, 20]
  assert band.mean.tolist() == [2, 4.5, 7, 4]  # The short one is 5 at 5, and is over at 20.
  assert band.deviation[-1] == 0


def test_the_mean_of_long_lines_is_on_the_line():
  """Of runs that log y = x at different steps, in fewer buckets than points."""
  lines = {name: (steps := np.arange(first, 100_000, 10), steps.astype(float)) for name, first in (('a', 0), ('b', 5))}
  for groups in ({'a': 'x', 'b': 'x'}, {'a': 'x', 'b': 'y'}):
    for band in _group(lines, groups).values():
      assert len(band.x) > 90
      np.testing.assert_allclose(band.mean, band.x, rtol=1e-12, atol=1e-6)


def test_a_run_that_diverges_makes_a_gap_and_its_mark():
  lines = {'good': ([1, 2, 3, 4], [1.0] * 4), 'bad': ([1, 2, 3], [3.0, _NAN, _NAN])}
  band = _group(lines, dict.fromkeys(lines, 'all'))['all', _NAME]
  assert band.as_dict()['y'] == [2, None, None, None]
  assert (band.marks['NaN'].tolist(), band.num_marks) == ([2, 3], {'NaN': 2})
  # The same of more points than there are buckets: it does not become the mean of the others.
  steps = np.arange(1, 1001)
  lines = {'good': (steps, np.ones(1000)), 'bad': (steps, np.where(steps > 500, _NAN, 3.0))}
  band = _group(lines, dict.fromkeys(lines, 'all'), buckets=50)['all', _NAME]
  assert band.mean[band.x < 490].tolist() == [2] * int((band.x < 490).sum())
  assert np.isnan(band.mean[band.x > 520]).all() and (band.x > 520).sum() > 20


@pytest.mark.parametrize('log', [False, True])
def test_many_places_are_no_more_than_the_buckets(log):
  lines = {str(shift): (np.arange(1, 400) + shift / 10, np.arange(1, 400) + shift / 10) for shift in range(5)}
  band = _group(lines, dict.fromkeys(lines, 'all'), buckets=60, log=log)['all', _NAME]
  assert len(band.x) <= 60
  inside = (band.x > 1.5) & (band.x < 390)
  # All are on one line, up to the place of a bucket's mean.
  assert band.mean[inside] == pytest.approx(band.x[inside], abs=400 / 60 if not log else 42)


def test_the_greatest_numbers_are_strict_json():
  lines = {'a': ([1], [1.7e308]), 'b': ([1], [-1.7e308]), 'c': ([1], [1.7e308])}
  found = _group(lines, dict.fromkeys(lines, 'all'))['all', _NAME].as_dict()
  json.dumps(found, allow_nan=False)
  assert (found['low'], found['high']) == ([None], [None])
