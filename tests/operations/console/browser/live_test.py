"""Changes while a page is open, also if connection or server fail."""

import json
import socket
import threading
import time

import pytest

from official_ext.operations.console import security
from tests.operations.console import servers
from tests.operations.runs import folders

PASSWORD = 'correct-horse-battery-staple'


@pytest.fixture(scope='module', autouse=True)
def runs(runs_folder):
  for name in ('one', 'two'):
    folders.make(runs_folder, name, [folders.event('train', 1, loss=1.0)], step=1)


def _append(folder, *steps):
  with open(folder / 'events.jsonl', 'a') as file:
    for step in steps:
      file.write(json.dumps(folders.event('train', step, loss=1 / step)) + '\n')


def _listen(page, run):
  """Has a page collect the steps of a run's events, as the page of the run does; returns how to read them."""
  page.evaluate(
    """async (run) => {
      const {stream} = await import('/static/api.js');
      window.steps = [];
      window.messages = 0;
      stream([], [run], {events: ({events, restarted}) => {
        if (restarted) window.steps.length = 0;
        window.messages += 1;
        window.steps.push(...events.map((event) => event.step));
      }}, new AbortController().signal, [0]);
    }""",
    run,
  )
  return lambda: page.evaluate('window.steps')


def _until(read, expected, seconds=20):
  deadline = time.monotonic() + seconds
  while (found := read()) != expected:
    assert time.monotonic() < deadline, found
    time.sleep(0.02)


def test_an_event_is_on_the_screen_within_a_second(page, console, runs_folder):
  page.goto(f'{console.url}/runs')
  cell = page.locator('tr', has_text='two').locator('.progress-step')
  taken = []
  for step in (11, 12, 13):
    started = time.monotonic()
    _append(runs_folder / 'two', step)
    cell.get_by_text(str(step), exact=True).wait_for()
    taken.append(time.monotonic() - started)
  assert min(taken) < 1  # Another test may have the processor.
  new = folders.make(runs_folder, 'brand/new', [])
  page.get_by_role('link', name='brand/new').wait_for()
  assert new.exists()


@pytest.mark.slow
def test_offline_for_a_while_misses_nothing_and_doubles_nothing(page, console, runs_folder):
  page.allowed += ['ERR_INTERNET_DISCONNECTED', 'ERR_NETWORK_CHANGED']
  page.goto(f'{console.url}/runs?filter=o&selected=one&sort=-step')
  page.get_by_text('1 run selected').wait_for()
  steps = _listen(page, 'one')
  _until(steps, [1])
  page.context.set_offline(True)
  _append(runs_folder / 'one', 2, 3)
  time.sleep(1.5)
  _append(runs_folder / 'one', 4)
  page.context.set_offline(False)
  _until(steps, [1, 2, 3, 4])
  address = page.url
  page.reload()
  page.get_by_text('1 run selected').wait_for()
  assert page.url == address and page.get_by_label('Filter').input_value() == 'o'


@pytest.mark.slow
def test_a_server_that_was_killed_and_is_back_is_found(page, runs_folder):
  """Its page continues: with the same view, no event missing or doubled, and changes need no reload."""
  page.allowed += [
    'ERR_CONNECTION_REFUSED',
    'ERR_INCOMPLETE_CHUNKED',
    'ERR_CONNECTION_RESET',
    'ERR_EMPTY_RESPONSE',
    '403',
  ]
  folders.make(runs_folder, 'three', [folders.event('train', 1)], step=1)
  first = servers.Console(runs_folder)
  page.goto(f'{first.url}/runs?filter=three')
  page.locator('#view').get_by_text('three', exact=True).first.wait_for()
  steps = _listen(page, 'three')
  _until(steps, [1])
  first.close()
  _append(runs_folder / 'three', 2)
  page.locator('#banner.shown').wait_for()
  second = servers.Console(runs_folder, listener=socket.create_server(('127.0.0.1', first.context.port)))
  try:
    _until(steps, [1, 2])
    page.locator('#banner.shown').wait_for(state='detached')
    _append(runs_folder / 'three', 3)
    _until(steps, [1, 2, 3])
    page.keyboard.press('j')
    page.keyboard.press('e')
    page.keyboard.type('again')  # The page's token is of the server before.
    page.keyboard.press('Enter')
    page.locator('.tag', has_text='again').wait_for()
    assert page.get_by_label('Filter').input_value() == 'three'
  finally:
    second.close()


@pytest.mark.slow
def test_a_busy_run_is_followed_without_a_gap(page, console, runs_folder):
  folders.make(runs_folder, 'busy', [], step=1)
  page.goto(f'{console.url}/runs')
  steps = _listen(page, 'busy')

  def write():
    for step in range(1, 2001, 10):
      _append(runs_folder / 'busy', *range(step, step + 10))
      time.sleep(0.01)

  writer = threading.Thread(target=write)
  writer.start()
  _until(steps, list(range(1, 2001)), seconds=30)
  writer.join()
  assert page.evaluate('window.messages') < 60  # Many events a message, not a message an event.


@pytest.mark.slow
def test_the_token_is_asked_for_once(page, runs_folder, start_console):
  page.allowed += ['401']
  console = start_console(runs_folder, host='0.0.0.0', password=PASSWORD)
  page.goto(f'{console.url}/runs?filter=one')
  page.get_by_label('Token').fill('wrong' * 5)
  page.get_by_role('button', name='Enter').click()
  page.get_by_text(f'that is not the token in {security.PASSWORD}').wait_for()
  page.get_by_label('Token').fill(PASSWORD)
  page.keyboard.press('Enter')
  page.locator('td.name', has_text='one').wait_for()
  page.reload()
  page.locator('td.name', has_text='one').wait_for()
  assert page.evaluate('document.cookie') == ''
  assert PASSWORD not in page.content() + page.url
