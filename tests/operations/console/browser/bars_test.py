"""The bars of compared runs, in a real browser."""

import csv
import json
import math
import statistics
from xml.etree import ElementTree

import pytest

from tests import tiers
from tests.operations.console.browser import axe
from tests.operations.console.browser import downloads
from tests.operations.runs import folders
from tests.operations.runs.folders import event

_ACCURACIES = {'a': (0.5, 0.7, 0.6), 'b': (0.1, 0.2, 0.4), 'seeds/0': (0.8, 0.9, 0.3), 'seeds/1': (0.2, 0.2, 0.1)}
# Of two of them an axis of logarithms has no place.
_GAPS = {'a': 100.0, 'b': 0.0, 'seeds/0': 1.0, 'seeds/1': -0.1}

_SHOWS = '(text) => document.querySelector(".bars td.number").innerText === text'


@pytest.fixture(scope='module', autouse=True)
def runs(runs_folder):
  for name, values in _ACCURACIES.items():
    events = [event('train', step, training_loss=1 / step, examples_per_second=9.0) for step in range(1, 31)]
    events += [event('eval', 10 * number, accuracy=value, gap=_GAPS[name]) for number, value in enumerate(values, 1)]
    folders.make(runs_folder, name, events, identity=folders.ended_process(), status='finished')


@pytest.fixture
def bars(page, console):
  """bars(query) opens the comparison of all runs, and returns the page and the section."""

  def open_page(query='', page=page):
    page.goto(f'{console.url}/compare?{"&".join(f"run={name}" for name in _ACCURACIES)}{query}')
    section = page.get_by_role('region', name='Bars')
    section.wait_for()
    section.scroll_into_view_if_needed()
    return section

  return open_page


def _rows(section):
  """name -> (text of the value, left and width of the bar in pixels)."""
  rows = section.locator('tbody tr').evaluate_all("""(rows) => rows.map((row) => {
    const fill = row.querySelector('.bars-fill')?.getBoundingClientRect();
    const text = row.querySelector('td.number').innerText;
    return [row.querySelector('th').innerText.trim(), [text, fill?.left, fill?.width]];
  })""")
  return dict(rows)


def _texts(section):
  return {name: text for name, (text, _, _) in _rows(section).items()}


def test_each_run_has_a_bar_of_the_chosen_value(page, bars, new_page, tmp_path):
  section = bars()
  assert section.get_by_label('Metric of the bars').input_value() == 'eval/accuracy'
  rows = _rows(section)
  assert _texts(section) == {'a': '0.6', 'b': '0.4', 'seeds/0': '0.3', 'seeds/1': '0.1'}
  assert len({left for _, left, _ in rows.values()}) == 1  # All from zero.
  assert rows['a'][2] / rows['seeds/1'][2] == pytest.approx(6, rel=0.02)
  value = section.get_by_label('Value of the bars')
  for choice, expected in (('best', max), ('min', min), ('max', max)):
    value.select_option(choice)
    page.wait_for_function(_SHOWS, arg=str(expected(_ACCURACIES['a'])))
    assert _texts(section) == {name: f'{expected(values):g}' for name, values in _ACCURACIES.items()}
  value.select_option('mean of the last')
  section.get_by_role('spinbutton', name='values').fill('2')
  page.keyboard.press('Tab')
  page.wait_for_function(_SHOWS, arg='0.65')
  section.get_by_label('Order of the bars').select_option('Smallest first')
  means = {name: sum(values[-2:]) / 2 for name, values in _ACCURACIES.items()}
  expected = {name: means[name] for name in sorted(means, key=means.get)}
  assert list(_texts(section)) == list(expected)
  with open(downloads.save(page, 'Bars as CSV', tmp_path), newline='') as file:
    found = list(csv.reader(file))
  assert found[0] == ['run', 'accuracy (validation), mean of the last 2', 'step']
  assert [(name, float(value), step) for name, value, step in found[1:]] == [
    (name, pytest.approx(value), '30') for name, value in expected.items()
  ]
  drawing = ElementTree.parse(downloads.save(page, 'Bars as SVG', tmp_path)).getroot()
  widths = [float(each.get('width')) for each in drawing.findall('{*}rect')[1:]]
  shares = [value / means['seeds/1'] for value in expected.values()]
  assert [width / widths[0] for width in widths] == pytest.approx(shares, rel=0.01)
  # The link, and so a saved view, holds it.
  section.get_by_label('From zero').uncheck()
  section.get_by_text('Bars begin at 0.1').wait_for()
  other = new_page()
  other.goto(page.url)
  again = other.get_by_role('region', name='Bars')
  again.wait_for()
  assert _texts(again) == _texts(section) and not again.get_by_label('From zero').is_checked()


@pytest.mark.slow
def test_groups_have_the_mean_the_deviation_and_a_dot_for_each_run(page, bars, tmp_path):
  section = bars('&group=folder')
  section.get_by_text('± 0.14 (2 runs)').first.wait_for()
  values = {'all': [0.6, 0.4], 'seeds': [0.3, 0.1]}
  texts = _texts(section)
  assert len(texts) == 2 and texts['seeds'] == '0.2 ± 0.14 (2 runs)'
  assert section.locator('.bars-dot').count() == 4 and section.locator('.bars-spread').count() == 2
  dots = section.locator('tr', has_text='seeds').locator('.bars-dot')
  assert dots.evaluate_all('(dots) => dots.map((dot) => dot.title)') == ['seeds/0: 0.3', 'seeds/1: 0.1']
  with open(downloads.save(page, 'Bars as CSV', tmp_path), newline='') as file:
    rows = list(csv.DictReader(file))
  for row, members in zip(rows, values.values(), strict=True):
    assert float(row['accuracy (validation), last']) == pytest.approx(statistics.fmean(members))
    assert float(row['deviation']) == pytest.approx(statistics.stdev(members)) and row['runs'] == '2'
  # A run that is hidden is left out of its group.
  page.get_by_role('button', name='seeds/1', exact=True).click()
  section.get_by_text('0.3 (1 of 2 runs)').wait_for()


@pytest.mark.slow
def test_a_logarithmic_axis_has_bars_by_ratios_and_its_numbers(page, bars, new_page, tmp_path):
  section = bars()
  section.get_by_label('Log axis').check()
  section.locator('.bars-axis').wait_for()
  assert section.get_by_label('From zero').is_disabled()
  widths = {name: width for name, (_, _, width) in _rows(section).items()}
  shares = {name: math.log(values[-1]) for name, values in _ACCURACIES.items()}
  ratio = lambda of: (of['a'] - of['b']) / (of['a'] - of['seeds/1'])
  assert ratio(widths) == pytest.approx(ratio(shares), rel=0.02)
  assert section.locator('.bars-axis span').all_inner_texts() == ['0.2', '0.4', '0.6']
  section.get_by_text('Bars begin at 0.09').wait_for()
  drawing = ElementTree.parse(downloads.save(page, 'Bars as SVG', tmp_path)).getroot()
  drawn = dict(zip(_ACCURACIES, (float(each.get('width')) for each in drawing.findall('{*}rect')[1:]), strict=True))
  assert ratio(drawn) == pytest.approx(ratio(shares), rel=0.02)
  assert {'0.2', '0.4', '0.6'} <= {each.text for each in drawing.findall('{*}text')}
  other = new_page()
  other.goto(page.url)  # The link, and so a saved view, holds it.
  again = other.get_by_role('region', name='Bars')
  again.locator('.bars-axis').wait_for()
  assert _texts(again) == _texts(section)


@pytest.mark.slow
def test_values_that_are_not_above_zero_have_no_bar_on_a_logarithmic_axis(bars):
  section = bars('&bar=eval/gap&barlog=1')
  section.locator('.bars-axis').wait_for()
  assert section.locator('.bars-fill').count() == 2 and section.get_by_text('not above 0').count() == 2
  assert section.locator('.bars-axis span').all_inner_texts() == ['1', '2', '5', '10', '20', '50', '100'][::2]
  assert _texts(section) == {name: f'{value:g}' for name, value in _GAPS.items()}


@pytest.mark.slow
def test_a_logarithmic_axis_of_groups_ends_deviations_at_its_lower_end(bars):
  section = bars('&bar=eval/gap&barlog=1&group=folder')
  row = section.locator('tr', has_text='seeds')
  row.locator('.bars-spread').wait_for()
  assert row.locator('.bars-dot').count() == 1  # Of 1 and -0.1.
  left, line = (
    row.locator(each).evaluate('(node) => node.getBoundingClientRect().left') for each in ('.bars-spread', '.bars-line')
  )
  assert left == pytest.approx(line, abs=1)


@pytest.mark.slow
def test_values_that_differ_by_a_rounding_error_have_axes(page, console, runs_folder):
  """Curves, bars and the scatter: their steps are not lost in sums, which would never end."""
  for name, value in (('near/0', 0.6), ('near/1', math.nextafter(0.6, 1))):
    folders.make(
      runs_folder, name, [event('eval', 1, accuracy=value)], identity=folders.ended_process(), status='finished'
    )
  for query in ('', '&barlog=1&logy=1'):
    page.goto(f'{console.url}/compare?run=near/0&run=near/1{query}')
    section = page.get_by_role('region', name='Bars')
    section.locator('.bars-fill').first.wait_for()
    assert _texts(section) == {'near/0': '0.6', 'near/1': '0.6'}


@pytest.mark.slow
def test_the_keyboard_keeps_its_place_when_values_of_a_live_run_come(page, bars, runs_folder):
  section = bars()
  section.get_by_label('Order of the bars').focus()
  with open(runs_folder / 'a' / 'events.jsonl', 'a') as file:
    file.write(json.dumps(event('eval', 40, accuracy=0.65)) + '\n')
  try:
    section.locator('tr', has_text='0.65').wait_for(timeout=20_000)
    assert page.evaluate('document.activeElement.getAttribute("aria-label")') == 'Order of the bars'
  finally:
    with open(runs_folder / 'a' / 'events.jsonl', 'r+') as file:
      lines = file.readlines()
      file.seek(0)
      file.writelines(lines[:-1])
      file.truncate()


@pytest.mark.slow
@tiers.parametrize('theme', ['dark', 'light'], fast=1)
def test_the_section_has_no_violation_and_fits_a_phone(new_page, bars, theme):
  page = new_page(viewport={'width': 390, 'height': 800}, color_scheme=theme, reduced_motion='reduce')
  section = bars('&group=folder&barvalue=mean', page)
  section.get_by_text('runs)').first.wait_for()
  assert not axe.violations(page)
  assert page.locator('#view').evaluate('(node) => node.scrollWidth <= node.clientWidth')
