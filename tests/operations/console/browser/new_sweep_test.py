"""A sweep from the form of a new run, in a real browser."""

import pytest
import yaml

from official_ext.operations.queue import queue_folder
from tests.operations.console.browser import axe
from tests.operations.queue import queues


@pytest.fixture(scope='module')
def console(runs_folder, start_console, driver):
  runs_folder.mkdir()
  driver.experiments()
  return start_console(runs_folder, driver=driver)


@pytest.fixture
def form(page, console):
  def open_form(query='experiment=digits', page=page):
    page.set_default_timeout(30_000)
    page.goto(f'{console.url}/new?{query}')
    page.wait_for_selector('main:not(.asking) .bar-below')
    return page

  return open_form


def _points(page, text):
  page.locator('.sweep-points', has_text=text).wait_for()


@pytest.mark.slow
def test_values_of_fields_give_a_number_of_points_by_the_keyboard(form, new_page):
  page = form()
  page.get_by_text('Sweep: several values of some fields').focus()
  page.keyboard.press('Enter')
  page.get_by_label('Name of field 1').fill('learning_rate')
  page.keyboard.press('Tab')
  page.keyboard.press('Tab')
  page.keyboard.type('1e-2, 1e-3, 1e-4')
  _points(page, '3 points')
  page.get_by_role('button', name='Add a field').focus()
  page.keyboard.press('Enter')
  page.keyboard.type('batch_size')
  page.get_by_label('Kind of the values of field 2').select_option('logarithmic range')
  page.get_by_label('Lower end of field 2').fill('16')
  page.get_by_label('Upper end of field 2').fill('64')
  _points(page, '9 points')
  assert 'values: ' not in page.locator('.sweep .errors').all_text_contents()
  # The link holds it.
  other = form(page.url.split('?')[1], new_page())
  _points(other, '9 points')
  assert other.get_by_label('Upper end of field 2').input_value() == '64'
  assert not axe.violations(other)
  other.get_by_label('Method').select_option('Random points')
  other.get_by_label('Number of points').fill('7')
  _points(other, '7 points')
  other.get_by_label('Lower end of field 2').fill('99')
  other.get_by_text('batch_size: 99 is not below 64').wait_for()
  assert other.get_by_role('button', name='Start sweep').is_disabled()
  other.get_by_role('button', name='Remove field 2 from the sweep').click()
  _points(other, '7 points')


@pytest.mark.slow
def test_a_bayesian_search_that_ends_bad_runs(form, new_page):
  page = form()
  page.get_by_text('Sweep: several values of some fields').click()
  page.get_by_label('Name of field 1').fill('learning_rate')
  page.get_by_label('Kind of the values of field 1').select_option('logarithmic range')
  page.get_by_label('Lower end of field 1').fill('1e-4')
  page.get_by_label('Upper end of field 1').fill('1e-1')
  assert page.get_by_label('Number of values of field 1').is_visible()
  assert not page.get_by_label('Number of points').is_visible()
  page.get_by_label('Method').select_option('bayes')
  page.get_by_label('Number of points').fill('20')
  page.get_by_label('Metric to optimize').fill('')
  page.get_by_text('metric: method bayes needs one').wait_for()
  page.get_by_label('Metric to optimize').fill('accuracy')
  page.get_by_label('Goal').select_option('maximize')
  page.get_by_label('Early termination').select_option('hyperband')
  page.get_by_label('Values of the metric before the first comparison').fill('5')
  _points(page, '20 points')
  page.get_by_text('sweep.yaml', exact=True).click()
  file = yaml.safe_load(page.get_by_label('The file of the sweep').inner_text())
  assert (file['method'], file['run_cap'], file['metric']) == ('bayes', 20, {'name': 'accuracy', 'goal': 'maximize'})
  assert file['early_terminate'] == {'type': 'hyperband', 'min_iter': 5}
  assert file['parameters']['learning_rate'] == {'distribution': 'log_uniform_values', 'min': 1e-4, 'max': 1e-1}
  # The link holds it.
  other = form(page.url.split('?')[1], new_page())
  _points(other, '20 points')
  assert other.get_by_label('Values of the metric before the first comparison').input_value() == '5'
  assert not axe.violations(other)


@pytest.mark.slow
def test_a_phone_has_room_for_it(form, new_page):
  page = form(page=new_page(viewport={'width': 390, 'height': 800}, color_scheme='light', reduced_motion='reduce'))
  page.get_by_text('Sweep: several values of some fields').click()
  page.get_by_label('Kind of the values of field 1').select_option('range')
  _points(page, 'Choose a field and its values.')
  page.get_by_label('Name of field 1').fill('learning_rate')
  page.get_by_text("learning_rate: from: expected a number, got ''").wait_for()
  assert page.locator('main').evaluate('(node) => node.scrollWidth <= node.clientWidth')
  assert not axe.violations(page)


@pytest.mark.slow
def test_the_page_of_the_sweep_follows_its_start(form, console, runs_folder):
  """A real `official-ext sweep`, whose points train."""
  page = form('experiment=digits&set=train_steps%3D2')
  page.get_by_text('Sweep: several values of some fields').click()
  page.get_by_label('Name of field 1').fill('learning_rate')
  page.get_by_label('Values of field 1', exact=True).fill('0.1, 0.01')
  _points(page, '2 points')
  page.set_default_timeout(240_000)
  page.get_by_role('button', name='Start sweep').click()
  page.get_by_text('official-ext sweep checks the points with TensorFlow').wait_for()
  page.wait_for_url('**/sweep?sweep=digits-sweep')
  page.get_by_role('heading', name='digits-sweep').wait_for()
  queues.until(lambda: console.get('/api/sweep', sweep='digits-sweep')['counts'].get('finished') == 2)
  queues.until(lambda: queue_folder.Queue(str(runs_folder)).dispatcher() is None)
