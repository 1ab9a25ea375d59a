"""The page of a run, in a real browser."""

import json
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from official_ext.base import processes
from tests import tiers
from tests.operations.imports import run_images_test
from tests.operations.runs import folders
from tests.operations.runs import run_checkpoints_test
from tests.operations.runs.folders import event

_NAME = 'a <b> & "c"'
_POINTS = 50_000


def _events():
  """As a training writes them: one spike and one NaN among many points, and an evaluation every 10,000 steps."""
  lines = [json.dumps(event('start', 0, effective_batch_size=8))]
  for step in range(1, _POINTS + 1):
    loss = '"NaN"' if step == 20_000 else '1000000.0' if step == 33_333 else f'{1 + 1 / step!r}'
    lines.append(
      f'{{"time": {1.7e9 + step}, "event": "train", "step": {step}, "training_loss": {loss}, "percent": 1.0}}'
    )
    if step % 10_000 == 0:
      lines.append(json.dumps(event('eval', step, validation_loss=1.5, accuracy=step / 100_000)))
  return '\n'.join(lines) + '\n'


@pytest.fixture(scope='module', autouse=True)
def runs(runs_folder):
  run = folders.make(runs_folder, _NAME, identity=folders.ended_process(), status='preempted', step=_POINTS)
  folder = pathlib.Path(run.path)
  (folder / 'events.jsonl').write_text(_events())
  (folder / 'run.log').write_text(
    '<img src=x onerror=alert(1)>\n\x1b[31mred\x1b[0m \x1b]0;title\x07\n' + 'x' * 200_000 + '\n'
  )
  run_checkpoints_test._save(folder, 'ckpt-10000')
  run_images_test._write(
    run, 'validation/events.out.tfevents.1', run_images_test.record('digits', 4, [run_images_test.png(8, 8, 99)])
  )
  return run


def _open(page, console, **query):
  from urllib import parse

  page.goto(f'{console.url}/run?{parse.urlencode({"run": _NAME, **query})}')


def _ready(page, title):
  """Waits for a chart and returns it."""
  chart = page.locator(f'.plot[aria-label="{title}"][data-ready]')
  chart.scroll_into_view_if_needed()
  chart.wait_for()
  return chart


@pytest.mark.slow
def test_the_spike_and_the_nan_among_50000_points_are_seen(page, console):
  _open(page, console)
  chart = _ready(page, 'loss')
  assert page.get_by_role('heading', name=_NAME).is_visible()
  assert '1 NaN' in chart.locator('.plot-legend').inner_text()
  assert chart.evaluate('(node) => node.plot.scales.y.max') > 1e6
  drawn = chart.evaluate('(node) => node.plot.data.map((column) => column.filter((y) => y !== undefined).length)')
  assert 300 < drawn[0] < 4000  # Not fifty thousand.
  # Without outliers the spike does not decide the height.
  page.get_by_label('Outliers').uncheck()
  page.wait_for_function('() => document.querySelector(".plot").plot.scales.y.max < 3')
  assert 'outliers=0' in page.url


@pytest.mark.slow
def test_zoom_asks_again_and_the_link_holds_the_view(page, console, new_page):
  _open(page, console)
  chart = _ready(page, 'loss')
  over = chart.locator('.u-over').bounding_box()
  y = over['y'] + over['height'] / 2
  page.mouse.move(over['x'] + 0.62 * over['width'], y)
  page.mouse.down()
  page.mouse.move(over['x'] + 0.7 * over['width'], y, steps=4)
  page.mouse.up()
  page.wait_for_function('() => document.querySelector(".plot").plot.scales.x.min > 30000')
  # The spike of one step is one of a few places now, and the height is still that of it.
  assert chart.evaluate('(node) => node.plot.scales.y.max') > 1e6
  first, last = chart.evaluate('(node) => [node.plot.scales.x.min, node.plot.scales.x.max]')
  assert 30_000 < first < 33_333 < last < 36_000
  other = new_page()
  other.goto(page.url)
  found = _ready(other, 'loss').evaluate('(node) => [node.plot.scales.x.min, node.plot.scales.x.max]')
  assert found == pytest.approx([first, last])
  # By the keyboard: all again.
  chart.locator('.plot-canvas').focus()
  page.keyboard.press('0')
  page.wait_for_function(f'() => document.querySelector(".plot").plot.scales.x.max >= {_POINTS}')
  page.keyboard.press('ArrowRight')
  assert chart.locator('.plot-tip').is_visible()
  page.get_by_label('Axis').select_option('examples')
  page.wait_for_function(f'() => document.querySelector(".plot").plot.scales.x.max >= {8 * _POINTS}')


@pytest.mark.slow
def test_an_event_is_on_the_screen_within_a_second(page, console, runs_folder):
  going = folders.make(runs_folder, 'going', [event('train', step, training_loss=1.0) for step in range(1, 20)])
  page.goto(f'{console.url}/run?run=going')
  _ready(page, 'loss')
  taken = []
  for step in (21, 22, 23):
    with open(going.file('events.jsonl'), 'a') as file:
      file.write(json.dumps(event('train', step, training_loss=2.0)) + '\n')
    start = time.perf_counter()
    page.wait_for_function('(step) => document.querySelector(".plot").plot.scales.x.max >= step', arg=step)
    taken.append(time.perf_counter() - start)
  assert min(taken) < 1.0  # The machine may be busy for a moment.
  # A metric that is new becomes a chart.
  with open(going.file('events.jsonl'), 'a') as file:
    file.write(json.dumps(event('eval', 24, accuracy=0.5)) + '\n')
  _ready(page, 'accuracy')


def test_a_run_is_stopped_and_only_then_at_once(page, console, runs_folder):
  """A real process, which notes the signals that it gets."""
  code = (
    'import signal, time, sys\n'
    'signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))\n'
    'print("ready", flush=True)\nwhile True: time.sleep(0.1)'
  )
  process = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True)
  try:
    assert process.stdout.readline() == 'ready\n'
    own = processes.own_identity()
    identity = type(own)(**{**vars(own), 'pid': process.pid, 'pid_start': processes.start_of(process.pid)})
    folders.make(runs_folder, 'alive', [event('train', 1, loss=1.0)], identity=identity)
    page.goto(f'{console.url}/run?run=alive')
    status = page.locator('.run-head .status')
    page.get_by_role('button', name='Stop', exact=True).click()
    page.locator('.run-head .status[data-status="stopping"]').wait_for()
    assert process.stdout.readline() == 'asked\n'
    assert page.get_by_role('button', name='Delete').is_disabled()
    page.get_by_role('button', name='Stop now').click()
    page.get_by_role('dialog').get_by_role('button', name='Wait for the save').click()
    assert process.poll() is None
    page.get_by_role('button', name='Stop now').click()
    page.get_by_role('dialog').get_by_role('button', name='Kill').click()
    assert process.wait(20) == -signal.SIGKILL
    page.locator('.run-head .status[data-status="dead"]').wait_for()
    assert status.is_visible()
    # The page was opened while the run was alive, and could not be resumed.
    page.locator('.run-buttons button:enabled', has_text='Resume').wait_for()
  finally:
    process.kill()
    process.wait()


@tiers.parametrize('change', ['deleted', 'renamed', 'deleted while the page was offline'], fast=1)
def test_the_page_of_a_run_that_is_gone_reports_it(page, console, runs_folder, change):
  page.allowed += ['ERR_INTERNET_DISCONNECTED', 'ERR_NETWORK_CHANGED']
  values = {'identity': folders.ended_process(), 'status': 'preempted', 'started': '2026-01-01T00:00:00+00:00'}
  run = folders.make(runs_folder, 'leaving', [event('train', 1, loss=1.0)], **values)
  page.goto(f'{console.url}/run?run=leaving')
  _ready(page, 'loss')
  if 'offline' in change:
    page.context.set_offline(True)
  if change == 'renamed':
    pathlib.Path(run.path).rename(runs_folder / 'renamed')
  else:
    (deleted,) = console.post('/api/runs/delete', runs=['leaving'])['done']
  page.context.set_offline(False)
  notice = page.locator('.run-gone')
  notice.get_by_text('leaving: is no longer in this folder').wait_for()
  assert page.locator('.run-buttons').is_hidden()
  if change == 'renamed':
    notice.get_by_role('link', name='Open renamed').click()
    page.get_by_role('heading', name='renamed').wait_for()
    console.post('/api/runs/delete', runs=['renamed'])
    return
  assert notice.get_by_role('link', name='Trash').is_visible()
  console.post('/api/runs/restore', keys=[deleted['key']])
  page.locator('.run-buttons').wait_for()
  assert not notice.inner_text()
  console.post('/api/runs/delete', runs=['leaving'])


@pytest.mark.slow
def test_an_empty_name_of_a_metric_leaves_the_other_charts(page, console, runs_folder):
  names = ['', ' ', '/', 'a/b', 'train/', '"', 'é', 'loss']
  lines = [event('train', step, **dict.fromkeys(names, step / 10)) for step in range(1, 20)]
  folders.make(runs_folder, 'odd names', lines, identity=folders.ended_process(), status='finished')
  page.goto(f'{console.url}/run?run=odd names')
  _ready(page, 'loss')
  assert page.locator('.plot').count() == len(names)
  for name in names:
    chart = _ready(page, name.replace('"', '\\"') or '(no name)')
    drawn = chart.evaluate('(node) => node.plot.data[1].filter((y) => y !== undefined).length')
    assert drawn == 19, name


def test_every_part_shows_what_is_there_as_text(page, console):
  _open(page, console, tab='log')
  log = page.locator('pre.log')
  log.get_by_text('<img src=x onerror=alert(1)>').wait_for()
  text = log.inner_text()
  assert '\x1b' not in text and '\\x1b]0;title' in text and 'red' in text and len(text) < 50_000
  page.get_by_role('tab', name='Configuration').click()
  page.get_by_label('Search fields').fill('learning_rate')
  assert page.locator('table.config tbody tr').count() == 2
  page.get_by_role('tab', name='Checkpoints').click()
  page.get_by_role('cell', name='ckpt-10000').wait_for()
  page.get_by_role('tab', name='Events').click()
  page.locator('.event-list li').first.wait_for()
  assert page.locator('.event-list li').count() == 6
  page.get_by_role('tab', name='Images').click()
  page.wait_for_function('() => document.querySelector(".image-frame img")?.naturalWidth === 8')
  page.keyboard.press('ArrowRight')  # Not on a tab: nothing.
  page.get_by_role('tab', name='Images').focus()
  page.keyboard.press('ArrowRight')
  page.get_by_text('train.py --experiment=digits').wait_for()
  assert 'tab=about' in page.url


def test_the_size_of_the_model_and_the_estimate_of_the_memory(page, console, runs_folder):
  size = {'parameters': 1_234_567, 'trained_parameters': 0, 'weight_bytes': 5 * 10**9, 'gradient_bytes': 0}
  memory = {'activations': 2_500_000_000, 'peak': 7_600_000_000, 'available': 8 * 10**9}
  folders.make(runs_folder, 'sized', identity=folders.ended_process(), model={**size, 'slot_bytes': 0}, memory=memory)
  page.goto(f'{console.url}/run?run=sized&tab=about')
  card = page.locator('section.card', has=page.get_by_role('heading', name='Model and memory'))
  card.wait_for()
  assert card.locator('dt').all_inner_texts() == [
    'Parameters',
    'Weights',
    'Activations',
    'Peak of a step, estimated',
    'Available',
  ]
  assert card.locator('dd').all_inner_texts() == ['1,234,567', '4.66 GiB', '2.33 GiB', '7.08 GiB', '7.45 GiB']


def _tabs(page):
  page.locator('.run-panel > *').first.wait_for()
  return page.get_by_role('tab').all_inner_texts()


def test_a_run_that_failed_by_a_mistake_begins_with_its_log_and_clone(page, console, runs_folder):
  folder = runs_folder / 'mistaken'
  folder.mkdir()
  line = 'error: learning_rat: no such field; did you mean `learning_rate`?'
  words = f'python train.py --experiment=digits --mode=train --model_dir={folder} --set=learning_rat=1'
  started = {**folders.ended_process().as_dict(), 'command': words, 'exit_status': 2, 'last_line': line}
  (folder / 'started.json').write_text(json.dumps({**started, 'started': '2026-01-01T00:00:00+00:00'}))
  (folder / 'run.log').write_text(f'a warning\n{line}\n')
  page.goto(f'{console.url}/run?run=mistaken')
  assert _tabs(page) == ['Log', 'About']
  assert page.get_by_role('tab', selected=True).inner_text() == 'Log'
  page.locator('pre.log', has_text='no such field').wait_for()
  assert page.locator('.run-buttons .primary:visible').all_inner_texts() == ['Clone with changes']
  assert page.locator('.run-reason').inner_text().endswith(line.replace('`', ''))
  page.get_by_role('link', name='Clone with changes').click()
  page.wait_for_url('**/new?experiment=digits&mode=train&set=learning_rat%3D1&name=mistaken-2&from=mistaken')
  # The list has the mistake too, and the list without it as a column.
  page.goto(f'{console.url}/runs')
  page.locator('tr.note', has_text='learning_rat: no such field').wait_for()
  assert page.locator('tr.note code').all_inner_texts() == ['learning_rate']
  page.goto(f'{console.url}/runs?columns=status,reason')
  page.get_by_role('link', name='mistaken').wait_for()
  assert page.locator('tr.note').count() == 0


def test_tabs_without_contents_are_hidden_unless_they_may_get_some(page, console, runs_folder):
  folders.make(
    runs_folder,
    'ended',
    [event('start', 0), event('train', 1, loss=1.0)],
    status='finished',
    identity=folders.ended_process(),
  )
  page.goto(f'{console.url}/run?run=ended')
  assert _tabs(page) == ['Curves', 'Configuration', 'Events', 'About']
  page.keyboard.press('3')
  page.locator('.event-list li').first.wait_for()
  page.goto(f'{console.url}/run?run=ended&tab=images')  # A link to one of them.
  page.get_by_text('No images').wait_for()
  assert _tabs(page) == ['Curves', 'Configuration', 'Events', 'Images', 'About']
  page.get_by_role('tab', name='Curves').click()
  assert _tabs(page) == ['Curves', 'Configuration', 'Events', 'About']
  living = folders.make(runs_folder, 'living')
  page.goto(f'{console.url}/run?run=living')
  assert _tabs(page) == ['Curves', 'Log', 'Configuration', 'Checkpoints', 'Events', 'About']
  with open(living.file('events.jsonl'), 'a') as file:
    file.write(json.dumps(event('completions', 1, prompts=['a'], completions=['b'])) + '\n')
  page.get_by_role('tab', name='Completions').wait_for()


def test_times_have_one_format_and_text_between_backticks_is_code(new_page, console, runs_folder):
  """Of the record, in ISO 8601, of a checkpoint, in seconds, and within the reason."""
  times = {'started': '2026-01-02T10:20:30.123Z', 'finished': '2026-01-02T11:20:30+00:00'}
  error = 'no `data` since 2026-01-02T11:00:00Z'
  folders.make(runs_folder, 'timed', identity=folders.ended_process(), status='failed', error=error, **times)
  page = new_page(timezone_id='Asia/Tokyo')
  page.goto(f'{console.url}/run?run=timed&tab=about')
  card = page.locator('section.card', has=page.get_by_role('heading', name='Run', exact=True))
  card.wait_for()
  facts = dict(zip(card.locator('dt').all_inner_texts(), card.locator('dd').all_inner_texts()))
  assert (facts['Started'], facts['Finished']) == ('2026-01-02 19:20:30', '2026-01-02 20:20:30')
  reason = page.locator('.run-reason')
  assert reason.inner_text() == 'no data since 2026-01-02 20:00:00'
  assert reason.locator('code').all_inner_texts() == ['data']


@pytest.mark.slow
@pytest.mark.parametrize(
  ('size', 'expected'),
  [(0, '0 B'), (1023, '1023 B'), (4096, '4 KiB'), (605_224, '0.577 MiB'), (5 * 2**30, '5 GiB'), ('NaN', '')],
)
def test_the_unit_of_a_size_follows_the_size(page, console, size, expected):
  page.goto(f'{console.url}/runs')
  assert page.evaluate('async (size) => (await import("/static/format.js")).bytes(size)', size) == expected


def test_a_finished_run_is_extended_in_a_dialog(page, console, runs_folder):
  folders.make(
    runs_folder,
    'done',
    [event('start', 0), event('train', 100, steps_per_second=2.0)],
    status='finished',
    step=100,
    identity=folders.ended_process(),
  )
  page.goto(f'{console.url}/run?run=done&tab=about')
  page.get_by_role('heading', name='Goodput').wait_for()
  assert page.locator('.goodput-bar [data-part="training"]').evaluate('(bar) => bar.getBoundingClientRect().width') > 50
  page.get_by_role('button', name='Extend', exact=True).click()
  box = page.get_by_role('dialog').get_by_label('Train to step')
  assert box.input_value() == '200'
  box.fill('100')
  page.get_by_role('dialog').get_by_role('button', name='Extend').click()
  page.get_by_text('done has done 100 steps; name a larger number').wait_for()
