"""A metric as the axis of curves, in a real browser."""

import csv
from xml.etree import ElementTree

import pytest

from tests.operations.console.browser import axe
from tests.operations.console.browser import downloads
from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture(scope='module', autouse=True)
def runs(runs_folder):
  """Two runs that see 100 and 200 tokens a step; they evaluate at steps that have no loop, too."""
  for number in (1, 2):
    events = [
      event('train', step, training_loss=number / step, tokens=100 * number * step, epoch=step // 10)
      for step in range(1, 41)
    ]
    events += [event('eval', step, accuracy=step / 100) for step in (20, 40, 50)]
    folders.make(runs_folder, f'run{number}', events, identity=folders.ended_process(), status='finished')


def _chart(page, name):
  chart = page.get_by_role('region', name=name, exact=True)
  chart.scroll_into_view_if_needed()
  page.locator(f'.plot[aria-label="{name}"][data-ready]').wait_for()
  return chart


def _places(page, name):
  return page.evaluate('(name) => document.querySelector(`.plot[aria-label="${name}"]`).plot.data[0]', name)


@pytest.mark.slow
def test_a_metric_is_the_axis_of_the_curves_of_a_run(page, console, new_page, tmp_path):
  page.goto(f'{console.url}/run?run=run2')
  _chart(page, 'loss')
  page.get_by_label('Axis', exact=True).select_option('tokens')
  page.get_by_text('each is at the value of tokens at its step').wait_for()
  page.wait_for_function('() => document.querySelector(".plot").plot.data[0].at(-1) === 8000')
  assert _places(page, 'loss') == [200 * step for step in range(1, 41)]
  chart = _chart(page, 'accuracy')
  chart.get_by_text('1 point is left out: no tokens at its step').wait_for()
  assert _places(page, 'accuracy') == [4000, 8000]
  with open(downloads.save(page, 'loss as CSV', tmp_path), newline='') as file:
    rows = list(csv.DictReader(file))
  assert [float(row['train/tokens']) for row in rows] == [200 * step for step in range(1, 41)]
  drawing = ElementTree.parse(downloads.save(page, 'loss as SVG', tmp_path))
  assert 'tokens' in {each.text for each in drawing.iter()}
  # The cursor tells the value, and the link holds the axis with smoothing, logarithms and a zoom.
  page.locator('.plot[aria-label="loss"] .plot-canvas').focus()
  page.keyboard.press('ArrowRight')
  assert page.locator('.plot-tip-x').first.text_content().startswith('tokens ')
  page.get_by_label('Log x').check()
  page.get_by_label('Smoothing').fill('0.5')
  page.keyboard.press('Escape')
  page.locator('.plot[aria-label="loss"] .plot-canvas').focus()
  page.keyboard.press('+')
  page.get_by_role('button', name='Reset zoom').wait_for()
  page.wait_for_function('() => document.querySelector(".plot").plot.scales.x.min > 200')
  other = new_page()
  other.goto(page.url)
  _chart(other, 'loss')
  assert other.get_by_label('Axis', exact=True).input_value() == 'train/tokens'
  scales = '() => ["min", "max", "distr"].map((name) => document.querySelector(".plot").plot.scales.x[name])'
  assert other.evaluate(scales) == page.evaluate(scales) and other.evaluate(scales)[2] == 3
  assert not axe.violations(other)


@pytest.mark.slow
def test_several_steps_at_one_value_are_all_drawn(page, console):
  page.goto(f'{console.url}/run?run=run1&x=train/epoch')
  _chart(page, 'loss')
  places = _places(page, 'loss')
  assert len(places) == 40 and [round(place) for place in places] == [step // 10 for step in range(1, 41)]


@pytest.mark.slow
def test_runs_are_compared_by_a_metric_and_one_that_falls_has_no_lines(page, console, runs_folder, tmp_path):
  folders.make(runs_folder, 'without', [event('train', 1, training_loss=1.0)], identity=folders.ended_process())
  page.goto(f'{console.url}/compare?run=run1&run=run2&run=without&x=train/tokens')
  _chart(page, 'loss')
  assert _places(page, 'loss') == sorted({*range(100, 4001, 100), *range(200, 8001, 200)})
  page.get_by_text('without: does not log tokens, and has no place on this axis').wait_for()
  page.get_by_label('Axis', exact=True).select_option('train/training_loss')
  page.get_by_text('training_loss falls between steps of run1, run2: points without lines').wait_for()
  chart = _chart(page, 'accuracy')
  chart.get_by_text('2 points are left out: no training_loss at their steps').wait_for()
  drawing = ElementTree.parse(downloads.save(page, 'accuracy as SVG', tmp_path))
  assert not drawing.findall('.//{*}polyline') and len(drawing.findall('.//{*}circle')) == 4
  # A group of the runs, and a name that no run has.
  page.goto(f'{console.url}/compare?run=run1&run=run2&x=train/tokens&group=folder')
  _chart(page, 'loss')
  assert page.evaluate('document.querySelector(".plot").plot.bands.length') == 1
  page.goto(f'{console.url}/compare?run=run1&x=train/none')
  page.get_by_text('run1: does not log none, and has no place on this axis').wait_for()
