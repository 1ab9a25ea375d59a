"""The pages of sweeps, in a real browser."""

import pathlib

import pytest

from tests.operations.queue import queues
from tests.operations.runs import folders as run_folders
from tests.operations.sweeps import folders


@pytest.fixture(scope='module')
def sweep(runs_folder):
  return folders.make(runs_folder, 'search', pruned=(5,), failed=(7,))


def rows(page):
  return page.locator('.grid tbody tr[data-key]').count()


def test_a_sweep_shows_its_best_its_importances_and_opens_runs(page, console, sweep):
  page.goto(f'{console.url}/sweeps')
  page.get_by_role('link', name='search', exact=True).click()
  page.get_by_text('22 finished').wait_for()
  values = {number: point.value for number, point in folders.points(sweep).items() if point.status == 'finished'}
  best = max(values, key=values.get)
  assert page.locator('.best-value').inner_text().startswith(f'{values[best]:.4g}')
  page.locator('.importances .bar').first.wait_for(timeout=60_000)
  assert page.locator('.parallel path.line').count() == 24
  assert page.locator('circle.dot-point').count() == 23  # One has failed before its first evaluation.
  page.keyboard.press('b')
  page.wait_for_url('**/run?*')
  assert f'{best:03d}-' in page.url


@pytest.mark.slow
def test_a_failed_point_is_hollow_and_its_reason_is_its_last_line(page, console, runs_folder):
  folder = folders.make(runs_folder, 'failing', count=5)
  record = folders.points(folder)[3].record
  run_folders.make(
    folder.path, record.name, [run_folders.event('eval', 100, accuracy=0.5)], status='failed', error='status 1',
    identity=run_folders.ended_process(),
  )  # fmt: skip
  pathlib.Path(record.folder, 'run.log').write_text('Traceback\nValueError: bad\n')
  page.goto(f'{console.url}/sweep?sweep=failing')
  hollow = page.locator('circle.dot-point.hollow')
  hollow.wait_for()
  assert hollow.count() == 1 and page.locator('circle.dot-point').count() == 5
  assert 'Point 3: failed' in hollow.locator('title').text_content()
  fills = page.locator('circle.dot-point').evaluate_all('(dots) => dots.map((dot) => getComputedStyle(dot).fill)')
  assert sum('0)' in fill for fill in fills) == 1  # Transparent.
  page.get_by_text('status 1: ValueError: bad').wait_for()


@pytest.mark.slow
def test_a_link_that_is_pressed_while_its_list_changes_is_followed(page, console, sweep):
  held = []
  page.route('**/api/stream*', lambda route: held.append(route))
  # Counts the messages that have reached the page.
  page.add_init_script("""
    window.numHeard = 0;
    const add = EventSource.prototype.addEventListener;
    EventSource.prototype.addEventListener = function (name, handle) {
      add.call(this, name, (event) => { handle(event); if (name === 'sweeps') window.numHeard += 1; });
    };
  """)
  page.goto(f'{console.url}/sweeps')
  box = page.get_by_role('link', name='search', exact=True).bounding_box()
  page.mouse.move(box['x'] + box['width'] / 2, box['y'] + box['height'] / 2)
  page.mouse.down()
  queues.until(lambda: held or page.wait_for_timeout(20))
  held[0].continue_()
  queues.until(lambda: page.evaluate('numHeard'))
  page.mouse.up()
  page.wait_for_url('**/sweep?sweep=search')


@pytest.mark.slow
def test_a_range_of_an_axis_chooses_points_and_is_in_the_link(page, console, sweep):
  page.goto(f'{console.url}/sweep?sweep=search')
  page.locator('.parallel path.line').first.wait_for()
  axis = page.locator('[data-axis=optimizer]').bounding_box()
  x = axis['x'] + axis['width'] / 2
  page.mouse.move(x, axis['y'] + axis['height'] - 2)
  page.mouse.down()
  page.mouse.move(x, axis['y'] + axis['height'] * 0.8, steps=3)
  page.mouse.up()
  adams = [
    number for number, point in folders.points(sweep).items() if point.record.proposal.parameters['optimizer'] == 'adam'
  ]
  assert 0 < len(adams) < 24
  chosen = page.locator('.parallel path.line:not(.out)')
  queues.until(lambda: chosen.count() == len(adams))
  assert rows(page) == len(adams)
  assert 'brush=optimizer' in page.url
  page.reload()
  queues.until(lambda: chosen.count() == len(adams))
  page.locator('[data-axis=optimizer]').focus()
  page.keyboard.press('Delete')
  queues.until(lambda: chosen.count() == 24)
  assert 'brush' not in page.url


@pytest.mark.slow
def test_points_are_sorted_and_tried_again(page, console, sweep):
  page.goto(f'{console.url}/sweep?sweep=search')
  page.get_by_role('button', name='learning_rate').click()
  rates = {number: point.record.proposal.parameters['learning_rate'] for number, point in folders.points(sweep).items()}
  first = page.locator('.grid tbody tr[data-key] a').first
  assert first.inner_text() == str(min(rates, key=rates.get))
  page.get_by_role('button', name='Retry failed').click()
  page.get_by_text('1 point queued again').wait_for()
  page.get_by_text('1 queued').wait_for()
