"""Tests for curves as SVG."""

import math
import re
from xml.etree import ElementTree

import pytest

from official_ext.operations.curves import report


def _draw(*lines):
  return ElementTree.fromstring(report.draw_chart('a < b', lines))


@pytest.mark.parametrize(
  ('ends', 'expected'),
  [
    ((0, 10), [0, 2, 4, 6, 8, 10]),
    ((0.0, 1.0), [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ((-3, 3), [-2, 0, 2]),
    ((97, 103), [98, 100, 102]),
    ((5, 5), [5]),
  ],
)
def test_ticks_are_round_numbers(ends, expected):
  assert report.chart_ticks(*ends) == pytest.approx(expected)


def test_a_line_spans_the_axis_and_stops_at_nan():
  tree = _draw(report.ChartLine('<run>', 'red', [0, 1, 2, 3, 4], [1.0, 2.0, math.nan, 0.0, 1.0]))
  lines = tree.findall('{*}polyline')
  places = [[tuple(map(float, pair.split(','))) for pair in each.get('points').split()] for each in lines]
  assert [len(each) for each in places] == [2, 2]
  (left, _), (quarter, _) = places[0]
  assert (places[1][-1][0] - left) == pytest.approx(4 * (quarter - left), abs=0.3)
  assert places[0][1][1] < places[0][0][1] < places[1][0][1]  # Greater values are higher.
  assert [each.findtext('{*}title') for each in lines] == ['<run>', '<run>'] and tree.findtext('{*}title') == 'a < b'


def test_one_point_is_a_circle_and_none_is_nothing():
  assert len(_draw(report.ChartLine('a', 'red', [3], [1.0])).findall('{*}circle')) == 1
  assert report.draw_chart('a', [report.ChartLine('a', 'red', [3], [math.inf])]) == ''


@pytest.mark.parametrize(
  'y', [(-1e308, 1e308), (1.7e308,), (0, 1.75e308), (5e-324,), (0, 5e-324), (1e300, -1e300), (1, 1)]
)
def test_any_numbers_are_drawn_or_left_out(y):
  text = report.draw_chart('a', [report.ChartLine('caf\udce9', 'red', range(len(y)), y)])
  assert 'nan' not in text and 'inf' not in text
  text.encode()


def test_labels_of_an_axis_differ():
  labels = report._chart_labels(report.chart_ticks(1000.1, 1000.5))
  assert labels == ['1000.1', '1000.2', '1000.3', '1000.4', '1000.5']


def test_large_numbers_have_no_exponent_on_the_axis_of_steps():
  assert re.search('>1,000,000<', report.draw_chart('a', [report.ChartLine('a', 'red', [0, 5_000_000], [0, 1])]))
