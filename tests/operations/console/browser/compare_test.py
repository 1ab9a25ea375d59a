"""The page of several runs, in a real browser."""

import csv
from xml.etree import ElementTree

import pytest

from tests.operations.console.browser import downloads
from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture(scope='module', autouse=True)
def runs(runs_folder):
  for number in range(3):
    events = [event('start', 0, effective_batch_size=8)]
    events += [event('train', step, training_loss=(number + 1) / step) for step in range(1, 60)]
    events += [event('eval', step, accuracy=0.5 + number / 10) for step in (20, 40)]
    commit = 'ab'[number % 2] * 40
    folders.make(
      runs_folder,
      f'sweep/{number}',
      events,
      rate=10.0**-number,
      identity=folders.ended_process(),
      status='finished',
      git_commit=commit,
    )


def _colours(page):
  return dict(
    page.locator('.compare-chip').evaluate_all(
      '(chips) => chips.map((chip) => [chip.dataset.run, chip.querySelector("line").style.stroke])'
    )
  )


def _curves(page):
  page.locator('.plot[aria-label="loss"][data-ready]').wait_for()
  return page.evaluate('document.querySelector(".plot").plot.series.length - 1')


def test_runs_side_by_side_in_a_link(page, console, new_page):
  page.goto(f'{console.url}/compare?run=sweep/0&run=sweep/2')
  assert _curves(page) == 2
  row = page.get_by_role('row', name='trainer.optimizer_config.learning_rate.cosine.initial_learning_rate')
  row.wait_for()  # The table is drawn after the curves.
  assert row.get_by_role('cell').all_inner_texts() == ['1', '0.01']
  assert page.get_by_role('row', name='trainer.train_steps').count() == 0
  page.get_by_label('Only differences').uncheck()
  page.get_by_role('row', name='trainer.train_steps').wait_for()
  before = _colours(page)
  # Another run: the earlier ones keep their colours, also when one of them goes.
  page.get_by_label('Add a run').fill('sweep/1')
  page.keyboard.press('Enter')
  page.wait_for_function('() => document.querySelector(".plot")?.plot?.series.length === 4')
  page.get_by_label('Remove sweep/0').click()
  page.wait_for_function('() => document.querySelector(".plot")?.plot?.series.length === 3')
  after = _colours(page)
  assert list(after) == ['sweep/2', 'sweep/1'] and after['sweep/2'] == before['sweep/2']
  assert len(set(after.values())) == 2
  page.get_by_role('row', name='git_commit').wait_for()
  # Whoever gets the link sees the same.
  page.get_by_label('Log y').check()
  page.get_by_label('Smoothing').fill('0.5')
  page.wait_for_function('() => document.querySelector(".plot").plot.series.length === 5')  # Raw and smooth.
  other = new_page()
  other.goto(page.url)
  assert _curves(other) == 4
  assert other.get_by_label('Log y').is_checked()
  assert other.evaluate('document.querySelector(".plot").plot.scales.y.distr') == 3
  other.get_by_role('row', name='trainer.train_steps').wait_for()


@pytest.mark.parametrize('theme', ['dark', 'light'])
def test_a_legend_names_every_run_and_tells_training_from_validation(new_page, tmp_path, start_console, theme):
  for name in ('one', 'two', 'three'):
    events = [event(kind, step, **{f'{kind}ing_loss' if kind == 'train' else 'validation_loss': 1 / step})
              for step in range(1, 6) for kind in ('train', 'eval')]  # fmt: skip
    folders.make(tmp_path, name, events, identity=folders.ended_process(), status='finished')
  page = new_page(color_scheme=theme)
  page.goto(f'{start_console(tmp_path).url}/compare?run=one&run=two&run=three')
  assert _curves(page) == 6
  legend = page.locator('.plot[aria-label="loss"] .plot-legend')
  texts = legend.locator('.plot-entry').all_inner_texts()
  assert [text.split() for text in texts] == [
    *([name, '0.2', '/', '0.2'] for name in ('one', 'two', 'three')),
    ['training'],
    ['validation'],
  ]
  signs = legend.locator('.plot-kinds line').evaluate_all(
    "(lines) => lines.map((line) => line.getAttribute('stroke-dasharray'))"
  )
  drawn = page.evaluate("""() => document.querySelector('.plot').plot.series.slice(1).map((each, index) =>
    [each.label, each.dash?.join(' ') ?? null, each.points.show(null, index) === true, each.stroke(),
     each.points.fill()])""")
  for label, dash, has_points, colour, fill in drawn:
    is_validation = label.endswith('validation')
    assert dash == signs[is_validation] and has_points == is_validation, label
    assert fill == colour  # Not white, which is a hole in the dark theme.
  assert len({colour for _, _, _, colour, _ in drawn}) == 3 and signs[0] != signs[1]


@pytest.mark.slow
def test_a_phone_has_room_for_all(new_page, console):
  page = new_page(viewport={'width': 390, 'height': 800})
  page.goto(f'{console.url}/compare?run=sweep/0&run=sweep/1&run=sweep/2&run=none')
  assert _curves(page) == 3
  page.get_by_text('none: no run of that name').wait_for()
  view = page.locator('#view')
  assert view.evaluate('(node) => node.scrollWidth <= node.clientWidth')
  assert page.evaluate('document.documentElement.scrollWidth') == 390


@pytest.mark.slow
def test_smoothing_is_that_of_tensorboard(page, console):
  """An EMA without bias: with weight w the n-th is the mean of all before, each weighed w to the power of its age."""
  page.goto(f'{console.url}/compare')
  values, weight = [3.0, 1.0, None, 4.0, 1.0, 5.0], 0.6
  found = page.evaluate(
    'async ([values, weight]) => (await import("/static/plot.js")).smooth(values, weight)', [values, weight]
  )
  seen = []
  for value, smoothed in zip(values, found):
    if value is None:
      assert smoothed is None
      continue
    seen.append(value)
    weights = [weight**age for age in reversed(range(len(seen)))]
    assert smoothed == pytest.approx(sum(w * v for w, v in zip(weights, seen)) / sum(weights))
  page.get_by_text('No runs selected').wait_for()


@pytest.mark.slow
def test_a_chart_is_saved_as_its_points_and_as_its_picture(page, console, tmp_path):
  page.goto(f'{console.url}/compare?run=sweep/0&run=sweep/2&first=2&last=50&logy=1')
  assert _curves(page) == 2
  with open(downloads.save(page, 'loss as CSV', tmp_path), newline='') as file:
    rows = list(csv.reader(file))
  assert rows[0] == ['curve', 'step', 'value', 'low', 'high']
  expected = [[f'sweep/{run}', str(step), (run + 1) / step, '', ''] for run in (0, 2) for step in range(2, 51)]
  assert [[name, step, float(value), *rest] for name, step, value, *rest in rows[1:]] == expected
  path = downloads.save(page, 'loss as SVG', tmp_path)
  assert path.name == 'loss.svg'
  drawing = ElementTree.parse(path).getroot()
  lines = drawing.findall('.//{*}polyline')
  assert len(lines) == 2
  # Logarithmic: the curves of (run + 1) / step are the same, shifted by log 3.
  down = [[float(point.split(',')[1]) for point in line.get('points').split()] for line in lines]
  shifts = [first - second for first, second in zip(*down, strict=True)]
  assert min(shifts) > 10 and max(shifts) - min(shifts) < 0.21  # Places have one decimal.
  assert {'sweep/0', 'sweep/2', 'loss', '0.1', '20'} <= {each.text for each in drawing.iter()}


@pytest.mark.slow
def test_runs_of_a_group_are_a_mean_and_a_band(page, console, new_page, tmp_path):
  page.goto(f'{console.url}/compare?run=sweep/0&run=sweep/1&run=sweep/2')
  assert _curves(page) == 3
  by = page.get_by_label('Group by')
  by.locator('option[value=learning_rate]').wait_for(state='attached')
  by.focus()
  by.select_option('Group by folder or sweep')
  page.get_by_role('group', name='Groups').get_by_text('3 runs').wait_for()
  page.wait_for_function('() => document.querySelector(".plot")?.plot?.bands.length === 1')
  assert by.evaluate('(node) => node === document.activeElement')
  assert len(set(_colours(page).values())) == 1
  with open(downloads.save(page, 'loss as CSV', tmp_path), newline='') as file:
    rows = list(csv.DictReader(file))
  # Of 1, 2 and 3 over the step: the deviation is 1 over the step.
  assert {row['curve'] for row in rows} == {'sweep'}
  for row, step in zip(rows, range(1, 60), strict=True):
    found = [float(row[name]) for name in ('step', 'value', 'low', 'high')]
    assert found == pytest.approx([step, 2 / step, 1 / step, 3 / step])
  drawing = ElementTree.parse(downloads.save(page, 'loss as SVG', tmp_path))
  assert len(drawing.findall('.//{*}polygon')) == len(drawing.findall('.//{*}polyline')) == 1
  # One run is left out of the mean; the link holds the groups.
  page.get_by_role('button', name='sweep/2', exact=True).click()
  other = new_page()
  other.goto(page.url)
  _curves(other)
  assert other.evaluate(
    'document.querySelector(".plot").plot.data.slice(1).map((values) => values[0])'
  ) == pytest.approx([1.5, 1.5 - 0.5**0.5, 1.5 + 0.5**0.5])
  other.get_by_label('Group by').select_option('Group by learning_rate')
  other.get_by_text('learning_rate=0.1').first.wait_for()
  other.wait_for_function('() => document.querySelector(".plot")?.plot?.bands.length === 2')


@pytest.mark.slow
def test_saved_points_have_the_columns_of_pixels_the_marks_and_quotes(page, console):
  page.goto(f'{console.url}/compare')
  curve = {
    'x': [1, 4, 9],
    'mean': [2, 3, 4],
    'low': [1, 1, 1],
    'high': [3, 5, 7],
    'marks': {'NaN': [3], 'Infinity': [8]},
  }
  model = {'x': 'step', 'first': 2, 'last': 8, 'series': [{'label': '=a "b", c', 'curve': curve}]}
  found = page.evaluate('async (model) => (await import("/static/chart_export.js")).csvOf(model)', model)
  assert list(csv.reader(found.splitlines()))[1:] == [
    ['\'=a "b", c', '3', 'NaN', '', ''],
    ['\'=a "b", c', '4', '3', '1', '5'],
    ['\'=a "b", c', '8', 'Infinity', '', ''],
  ]
  page.get_by_text('No runs selected').wait_for()


@pytest.mark.slow
def test_a_scatter_of_fields_and_metrics(page, console, new_page):
  page.goto(f'{console.url}/compare?run=sweep/0&run=sweep/1&run=sweep/2')
  scatter = page.get_by_role('region', name='Scatter')
  scatter.wait_for()
  assert scatter.get_by_label('Up').input_value() == 'accuracy'
  field = 'trainer.optimizer_config.learning_rate.cosine.initial_learning_rate'
  scatter.get_by_label('Across').select_option(field)

  def places():
    dots = scatter.locator('circle')
    found = dots.evaluate_all(
      '(dots) => dots.map((dot) => [dot.textContent.split("\\n")[0], dot.cx.baseVal.value, dot.cy.baseVal.value])'
    )
    return {name: (x, y) for name, x, y in found}

  by_rate = places()
  assert list(by_rate) == ['sweep/0', 'sweep/1', 'sweep/2']  # Rates 1, 0.1, 0.01; accuracies 0.5, 0.6, 0.7.
  (x0, y0), (x1, y1), (x2, y2) = by_rate.values()
  assert x0 > x1 > x2 and y0 > y1 > y2
  assert x0 - x1 == pytest.approx(x1 - x2, abs=0.2) and y0 - y1 == pytest.approx(y1 - y2, abs=0.2)  # Logarithms.
  colours = scatter.locator('circle').evaluate_all('(dots) => dots.map((dot) => getComputedStyle(dot).fill)')
  assert len(set(colours)) == 3
  # The link holds the axes.
  scatter.get_by_label('Across').select_option('accuracy')
  other = new_page()
  other.goto(page.url)
  assert other.get_by_role('region', name='Scatter').get_by_label('Across').input_value() == 'accuracy'
  scatter.locator('circle').nth(1).click()
  page.wait_for_url('**/run?run=sweep%2F1')


@pytest.mark.slow
def test_a_view_of_compared_runs_is_saved(page, console):
  page.goto(f'{console.url}/compare?run=sweep/0&run=sweep/2&logy=1')
  assert _curves(page) == 2
  page.get_by_role('button', name='Views').click()
  page.get_by_label('Name', exact=True).fill('two rates')
  page.keyboard.press('Enter')
  page.get_by_text('Saved the view two rates').wait_for()
  page.goto(f'{console.url}/compare')
  page.get_by_role('button', name='Views').click()
  page.get_by_role('button', name='two rates', exact=True).click()
  assert _curves(page) == 2 and page.get_by_label('Log y').is_checked()


@pytest.mark.slow
def test_choices_of_numbers_are_in_the_order_of_their_sizes(page, console):
  page.goto(f'{console.url}/compare')
  ticks = """async (values) => {
    const {axisOf} = await import('/static/axes.js');
    return axisOf('x', values, 'categorical').ticks.map((tick) => tick.text);
  }"""
  assert page.evaluate(ticks, [0.5, 0.25]) == ['0.25', '0.5']
  assert page.evaluate(ticks, ['run 10', 'run 9', 'a']) == ['a', 'run 9', 'run 10']
  page.get_by_text('No runs selected').wait_for()
