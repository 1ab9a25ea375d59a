"""The page of the queue, in a real browser."""

import pytest

from official_ext.operations.queue import queue_changes
from tests.operations.queue import queues


@pytest.fixture(scope='module')
def trial(runs_folder):
  made = queues.Trial(runs_folder)
  for number in range(4):
    made.add(held=True, model_dir=str(runs_folder / f'run-{number}'))
  yield made
  made.close()


def until_order(page, expected):
  names = page.locator('[aria-label=Waiting] .job .what')
  queues.until(lambda: names.all_inner_texts() == expected)


@pytest.mark.slow
def test_jobs_are_moved_by_buttons_by_dragging_and_from_elsewhere(page, console, trial):
  page.goto(f'{console.url}/queue')
  page.get_by_text('No dispatcher is running').wait_for()
  until_order(page, ['run-0', 'run-1', 'run-2', 'run-3'])
  page.get_by_label('Up: run-2').focus()
  page.keyboard.press('Enter')
  until_order(page, ['run-0', 'run-2', 'run-1', 'run-3'])
  assert page.evaluate('document.activeElement.getAttribute("aria-label")') == 'Up: run-2'  # The focus goes along.
  page.keyboard.press('Enter')
  until_order(page, ['run-2', 'run-0', 'run-1', 'run-3'])
  assert [state.number for state in trial.queue.waiting(trial.queue.states())] == [3, 1, 2, 4]
  handle = page.locator('.job .handle').nth(3).bounding_box()
  first = page.locator('[aria-label=Waiting] .job').first.bounding_box()
  page.mouse.move(handle['x'] + 5, handle['y'] + 5)
  page.mouse.down()
  page.mouse.move(first['x'] + 30, first['y'] + 20, steps=4)
  page.mouse.move(first['x'] + 30, first['y'] + 4)
  page.mouse.up()
  until_order(page, ['run-3', 'run-2', 'run-0', 'run-1'])
  queue_changes.move(trial.queue, 1, 'first')  # Another terminal.
  until_order(page, ['run-0', 'run-3', 'run-2', 'run-1'])


def test_a_dispatcher_is_started_and_jobs_are_paused_and_cancelled(page, console, trial):
  page.goto(f'{console.url}/queue')
  page.get_by_role('button', name='Pause the queue').click()
  page.get_by_text('Paused: running jobs continue').wait_for()
  page.get_by_role('button', name='Resume the queue').click()
  page.get_by_label('Pause: run-1').click()
  page.get_by_label('Resume: run-1').wait_for()
  page.get_by_label('Cancel: run-2').click()
  page.get_by_role('button', name='Cancel the job').click()
  page.locator('[aria-label=Ended]').get_by_text('run-2').wait_for()
  process = trial.dispatch(until_empty=False)
  page.get_by_text('1 of 1 slot in use').wait_for()
  page.locator('[aria-label=Running]').get_by_text('running', exact=True).wait_for()
  process.kill()
  page.get_by_role('button', name='Start a dispatcher').wait_for()
