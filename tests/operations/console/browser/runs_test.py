"""The page of runs, in a real browser."""

import json
import pathlib
import re
import shlex

import pytest

from official_ext.operations.runs import run_folders
from tests import tiers
from tests.operations.runs import folders
from tests.operations.runs.folders import event

HTML = '<img src=x onerror=alert(1)>'


@pytest.fixture(scope='module', autouse=True)
def runs(runs_folder):
  """Twelve runs that have ended, one that lives (this process), and one with HTML wherever a name or a text can be."""
  ended = folders.ended_process()
  for number in range(12):
    events = [event('eval', 10 * number, accuracy=number / 20, validation_loss=1.0)]
    status = 'failed' if number % 3 else 'finished'
    rate = 10 ** -(1 + number % 3)
    folders.make(runs_folder, f'sweep/run{number}', events, rate=rate, identity=ended, status=status, step=10 * number)
  train = event('train', 50, accuracy=0.99, steps_per_second=12.5, eta_seconds=1e9)
  folders.make(runs_folder, 'lively', [train], step=50)
  odd = folders.make(runs_folder, HTML.replace('/', ''), [], identity=ended, status='failed', error=f'{HTML}<script>')
  run_folders.change_notes(odd, add=[HTML], note=f'{HTML}\n<script>alert(2)</script>')


def _names(page):
  return page.locator('td.name').all_inner_texts()


def _open(page, console, query=''):
  page.goto(f'{console.url}/runs{query}')
  page.locator('td.name').first.wait_for()


def _foot(page, text):
  page.locator('.foot', has_text=re.compile(f'^{text}$')).wait_for()


def test_runs_are_listed_with_what_they_came_to(page, console):
  _open(page, console)
  assert len(_names(page)) == 14
  row = page.locator('tr', has_text='lively')
  assert row.locator('.status').inner_text() == 'running'
  assert row.locator('[data-column=accuracy]').inner_text() == '0.99'
  assert '50 %' in row.locator('[data-column=step]').inner_text()
  assert page.locator('tr', has_text='run10').locator('[data-column=accuracy]').inner_text() == '0.5'


@pytest.mark.slow
def test_the_run_that_was_started_last_comes_first_with_experiment_and_duration(page, tmp_path, start_console):
  begun = {'b': '10:00', 'c': '12:30', 'a': '11:00'}
  for name, time in begun.items():
    folders.make(
      tmp_path,
      name,
      [],
      identity=folders.ended_process(),
      status='finished',
      experiment=f'of_{name}',
      started=f'2026-01-02T{time}:00+00:00',
      updated='2026-01-02T12:40:05+00:00',
    )
  folders.make(tmp_path, 'submitted', [], record_values=False)
  page.goto(start_console(tmp_path).url)
  page.locator('td.name').first.wait_for()
  assert _names(page) == ['c', 'a', 'b', 'submitted']
  column = lambda name: page.locator(f'td[data-column={name}]').all_inner_texts()
  assert column('experiment')[:3] == ['of_c', 'of_a', 'of_b']
  assert column('duration') == ['10 min', '1 h 40 min', '2 h 40 min', '']
  page.get_by_role('button', name='Duration').click()
  assert _names(page) == ['c', 'a', 'b', 'submitted'] and 'sort=duration' in page.url
  page.get_by_role('button', name='Duration').click()
  assert _names(page) == ['b', 'a', 'c', 'submitted']
  page.goto(page.url.partition('?')[0] + '?sort=acuracy')
  _foot(page, '4 runs; not sorted: no run has a metric or a field acuracy')


@pytest.mark.slow
def test_differences_from_a_baseline(page, new_page, console):
  _open(page, console, '?filter=sweep&columns=accuracy,validation_loss,learning_rate&sort=name')
  page.get_by_role('checkbox', name='Select sweep/run4').check()
  page.get_by_role('button', name='Baseline').click()
  page.get_by_text('baseline sweep/run4').wait_for()
  # It is the first, also of those that a filter does not choose.
  page.get_by_label('Filter').fill('run11')
  _foot(page, '1 of 14 runs')
  assert _names(page) == ['sweep/run4 baseline', 'sweep/run11']
  other = new_page()
  other.goto(page.url)
  cell = lambda run, column: other.locator(f'tr[data-key="sweep/{run}"] td[data-column={column}]')
  cell('run11', 'learning_rate').locator('b').wait_for()
  assert cell('run4', 'accuracy').inner_text().strip() == '0.2'
  assert cell('run11', 'accuracy').inner_text().split() == ['0.55', '+0.35']
  cell('run11', 'accuracy').locator('.difference.good').wait_for()
  assert cell('run11', 'validation_loss').inner_text().split() == ['1', '=']
  assert cell('run11', 'learning_rate').locator('b').inner_text() == '0.001'
  assert cell('run11', 'learning_rate').locator('b').get_attribute('title') == 'of the baseline: 0.01'
  other.get_by_label('Filter').fill('run1')
  _foot(other, '3 of 14 runs')
  assert cell('run1', 'accuracy').inner_text().split() == ['0.05', '−0.15']
  cell('run1', 'accuracy').locator('.difference.bad').wait_for()
  assert not cell('run1', 'learning_rate').locator('b').count()  # The same.
  other.get_by_text('baseline sweep/run4').click()
  assert _names(other) == ['sweep/run1', 'sweep/run10', 'sweep/run11']
  assert cell('run1', 'accuracy').inner_text() == '0.05' and 'baseline' not in other.url


def test_html_in_names_tags_and_notes_is_text(page, console):
  page.on('dialog', lambda dialog: page.complaints.append(f'dialog: {dialog.message}'))
  _open(page, console, '?columns=status,reason,tags,note')
  row = page.locator('tr', has_text='onerror').first
  assert row.locator('td.name').inner_text() == HTML.replace('/', '')
  assert row.locator('.tag').inner_text() == HTML
  assert page.locator('main img, main script').count() == 0
  page.locator('tr', has_text='onerror').first.get_by_role('button', name='Edit the note').click()
  page.keyboard.press('Escape')
  row.get_by_role('checkbox').check()
  page.get_by_role('button', name='Delete').click()
  assert page.get_by_role('dialog').locator('img').count() == 0
  page.keyboard.press('Escape')


@pytest.mark.slow
def test_filters_sorts_and_the_selection_are_in_the_link(page, new_page, console):
  _open(page, console)
  page.keyboard.press('/')
  page.keyboard.type('sweep accuracy>0.3')
  _foot(page, '5 of 14 runs')
  page.get_by_role('button', name='failed').click()
  _foot(page, '4 of 14 runs')
  page.get_by_role('button', name='accuracy').click()
  assert _names(page) == ['sweep/run11', 'sweep/run10', 'sweep/run8', 'sweep/run7']  # The best first.
  page.get_by_role('button', name='accuracy').click()
  assert _names(page) == ['sweep/run7', 'sweep/run8', 'sweep/run10', 'sweep/run11']
  page.get_by_role('checkbox', name='Select sweep/run10').check()
  again = new_page()
  again.goto(page.url)
  again.get_by_text('4 of 14 runs').wait_for()
  assert _names(again) == ['sweep/run7', 'sweep/run8', 'sweep/run10', 'sweep/run11']
  assert again.get_by_role('checkbox', name='Select sweep/run10').is_checked()
  assert again.get_by_label('Filter').input_value() == 'sweep accuracy>0.3'
  page.reload()
  page.get_by_text('4 of 14 runs').wait_for()
  assert _names(page) == _names(again)


@pytest.mark.slow
def test_a_filter_means_what_it_means_on_the_command_line(page, console):
  _open(page, console, '?filter=learning_rate%3D1e-3')
  _foot(page, '6 of 14 runs')
  page.get_by_label('Filter').fill('no_such_field=1')
  page.locator('.filter-error', has_text='--filter=no_such_field: no run has').wait_for()
  page.get_by_label('Filter').fill('none of these')
  page.get_by_role('heading', name='No matching runs').wait_for()
  page.get_by_role('button', name='Show all').click()
  _foot(page, '14 runs')


@pytest.mark.slow
def test_columns_are_chosen_among_metrics_and_fields(page, console):
  _open(page, console)
  page.get_by_role('button', name='Columns').click()
  page.get_by_label('Search').fill('seed')
  page.get_by_label('runtime.seed').check()
  page.get_by_role('button', name='Show', exact=True).click()
  page.locator('td[data-column="runtime.seed"]', has_text='0').first.wait_for()
  assert 'runtime.seed' in page.url


@pytest.mark.slow
def test_tags_and_notes_are_edited_in_place(page, console, runs_folder):
  _open(page, console, '?columns=tags,note&filter=run7')
  run = run_folders.Run(str(runs_folder / 'sweep' / 'run7'), 'sweep/run7')
  page.keyboard.press('j')
  page.keyboard.press('e')
  page.keyboard.type('one, two')
  page.keyboard.press('Enter')
  page.locator('.tag', has_text='two').wait_for()
  assert run_folders.read_notes(run).tags == ('one', 'two')
  page.get_by_role('button', name='Edit the note').click()
  page.keyboard.type('left alone')
  page.keyboard.press('Escape')
  assert run_folders.read_notes(run).note == ''
  page.get_by_role('button', name='Edit the note').click()
  page.keyboard.type('better')
  page.keyboard.press('Enter')
  page.locator('td.note', has_text='better').wait_for()
  assert run_folders.read_notes(run).note == 'better'
  page.locator('.tag', has_text='one').click()  # Only runs with it.
  page.get_by_role('button', name='#one').wait_for()
  run_folders.change_notes(run, remove=['one', 'two'], note='')


@pytest.mark.slow
def test_runs_are_deleted_restored_and_archived(page, console, runs_folder):
  for name in ('doomed1', 'doomed2'):
    folders.make(runs_folder, name, [], identity=folders.ended_process(), status='failed')
  _open(page, console, '?filter=doomed')
  _foot(page, '2 of 16 runs')
  page.get_by_role('checkbox', name='Select all').check()
  page.get_by_role('button', name='Delete').click()
  page.get_by_role('dialog').get_by_role('button', name='Delete').click()
  page.get_by_role('heading', name='No matching runs').wait_for()
  assert not (runs_folder / 'doomed1').exists()
  page.get_by_role('button', name='Undo').click()
  _foot(page, '2 of 16 runs')
  page.get_by_role('checkbox', name='Select doomed1').check()
  page.get_by_role('button', name='Archive', exact=True).nth(1).click()
  _foot(page, '1 of 15 runs')
  page.get_by_role('button', name='Archive', exact=True).first.click()
  _foot(page, '1 run')
  assert _names(page) == ['doomed1']
  page.get_by_role('checkbox', name='Select doomed1').check()
  page.get_by_role('button', name='Delete').click()
  page.get_by_role('dialog').get_by_role('button', name='Delete').click()
  page.get_by_role('heading', name='Nothing is archived').wait_for()
  page.get_by_role('button', name='Trash').click()
  page.get_by_role('checkbox', name='Select all').check()
  page.get_by_role('button', name='Delete permanently').click()
  page.get_by_role('dialog').get_by_role('button', name='Delete permanently').click()
  page.get_by_role('heading', name='The trash is empty').wait_for()
  assert not (runs_folder / 'doomed1').exists() and (runs_folder / 'doomed2').exists()
  console.post('/api/runs/delete', runs=['doomed2'])


@pytest.mark.slow
def test_the_keyboard_walks_selects_opens_and_explains(page, console):
  _open(page, console, '?filter=sweep&sort=name')
  for key in ('j', 'j', 'ArrowDown', 'k', 'x', 'j', 'j', 'X'):
    page.keyboard.press(key)
  assert page.locator('tr.active td.name').inner_text() == 'sweep/run3'
  assert page.locator('tr.selected').count() == 3  # 1 to 3.
  page.get_by_text('3 runs selected').wait_for()
  page.keyboard.press('?')
  assert 'Select up to here' in page.get_by_role('dialog').inner_text()
  assert 'One row for each run' in page.get_by_role('dialog').inner_text()
  documentation = page.get_by_role('dialog').locator('.hint code').inner_text()
  assert (pathlib.Path(__file__).parents[4] / documentation).is_file()
  page.keyboard.press('Escape')
  page.keyboard.press('Escape')
  assert page.locator('tr.selected').count() == 0
  page.keyboard.press('Enter')
  page.wait_for_url(re.compile(r'/run\?run=sweep%2Frun3'))
  page.go_back()
  page.locator('tr.active td.name', has_text='run3').wait_for()  # The place at which it was left.
  page.keyboard.press('g')
  page.keyboard.press('q')
  page.wait_for_url(re.compile('/queue'))


@pytest.mark.slow
def test_home_and_end_lead_to_the_first_and_the_last_run_of_a_fresh_list(page, console):
  for key, place in (('Home', 0), ('End', -1), ('Home', 0)):
    _open(page, console, '?filter=sweep')
    names = _names(page)
    page.keyboard.press(key)
    assert page.locator('tr.active td.name').inner_text() == names[place]


@tiers.parametrize('address', ['/nowhere', '/runs/', '/run/x', '/index.html'], fast=1)
def test_an_unknown_page_is_reported_and_leads_back(page, console, address):
  page.allowed.append('404')
  assert page.goto(console.url + address).status == 404
  page.get_by_role('heading', name='No such page').wait_for()
  page.get_by_role('link', name='All runs').click()
  page.wait_for_url(re.compile('/runs$'))
  assert console.request('GET', address)[2] == b'{"errors":["no such page"]}'  # To a program.


def test_percentages_are_from_0_to_100(page, console):
  _open(page, console)
  code = "async () => (await import('/static/format.js')).percent"
  found = page.evaluate(f'async (values) => {{ const percent = await ({code})(); return values.map(percent); }}',
                        [-5, -0.01, 0, 0.19, 9.99, 10, 99.9, 100, 250, 'NaN', 'Infinity', None])  # fmt: skip
  assert found == ['0 %', '0 %', '0 %', '0.1 %', '9.9 %', '10 %', '99 %', '100 %', '100 %', '', '100 %', '']


@tiers.parametrize('name', ['runs', 'queue', 'sweeps', 'models'], fast=1)
def test_the_command_of_an_empty_page_names_the_folder_of_the_console(page, tmp_path, start_console, name):
  root = tmp_path / 'my runs'
  root.mkdir()
  page.goto(f'{start_console(root).url}/{name}')
  command = page.locator('.empty .command code').inner_text()
  assert shlex.quote(str(root)) in command or shlex.quote(f'{root}/digits') in command


def test_enter_stops_a_run_by_saving_it_and_never_at_once(page, console):
  _open(page, console, '?selected=lively')
  page.get_by_role('button', name='Stop', exact=True).click()
  buttons = page.get_by_role('dialog').locator('button[type=submit]').all_inner_texts()
  assert buttons == ['Save and stop']
  page.keyboard.press('Escape')
  assert page.get_by_role('dialog').count() == 0


@pytest.mark.slow
def test_several_runs_are_compared(page, console):
  _open(page, console, '?selected=sweep/run1&selected=sweep/run2')
  page.get_by_role('button', name='Compare').click()
  page.wait_for_url(re.compile(r'/compare\?run=sweep%2Frun1&run=sweep%2Frun2'))


@pytest.mark.slow
@pytest.mark.parametrize('scheme', ['dark', 'light'])
@pytest.mark.parametrize('width', [1280, 390])
def test_nothing_runs_off_the_screen(new_page, console, width, scheme):
  page = new_page(viewport={'width': width, 'height': 700}, color_scheme=scheme)
  _open(page, console, '?selected=lively')
  for selector in ('html', '#view', '#top', '.runs-head'):
    inner, outer = page.eval_on_selector(selector, 'node => [node.scrollWidth, node.clientWidth]')
    assert inner <= outer, selector
  if width == 390:
    assert page.locator('tr', has_text='lively').locator('.status').is_visible()
    assert page.locator('#top').bounding_box()['height'] <= 72
    assert page.get_by_role('link', name='Models', exact=True).bounding_box()['x'] < 330
  ground = page.evaluate('getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)')
  assert (max(ground) < 60) == (scheme == 'dark')
  page.get_by_role('button', name='Dark or light').click()
  other = page.evaluate('getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)')
  assert (max(other) < 60) != (scheme == 'dark')
  page.reload()
  assert page.evaluate('getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)') == other


@pytest.mark.slow
def test_rows_with_and_without_an_error_are_scrolled_to_the_end(page, tmp_path, start_console):
  ended = folders.ended_process()
  for number in range(120):
    values = {'status': 'failed', 'error': f'mistake {number}'} if number % 2 else {'status': 'finished'}
    folders.make(tmp_path, f'run{number:03}', identity=ended, **values)
  page.goto(f'{start_console(tmp_path).url}/runs?sort=name')
  page.locator('tr.note', has_text='mistake 1').first.wait_for()
  assert page.locator('tr[data-key="run001"] + tr.note').inner_text().strip() == 'mistake 1'
  assert page.locator('tr.note:has-text("mistake 119")').count() == 0  # Only visible ones exist.
  page.keyboard.press('End')
  last = page.locator('tr.note', has_text='mistake 119')
  last.wait_for()
  box, node = last.bounding_box(), page.locator('.grid-scroll').bounding_box()
  assert box['y'] + box['height'] <= node['y'] + node['height'] + 1
  # The rows are as high as they are expected to be.
  inner, expected = page.locator('.grid-scroll').evaluate(
    "(node) => [node.scrollHeight, node.querySelector('thead').offsetHeight]"
  )
  assert abs(inner - expected - 120 * 34 - 60 * 24) <= 2


def test_the_default_columns_fit_1280_pixels_beside_a_scroll_bar(page, tmp_path, start_console):
  events = [event('eval', 10, validation_accuracy_of_words=0.5, validation_loss_of_words=1.0)]
  folders.make(tmp_path, 'run', events, identity=folders.ended_process(), status='finished')
  page.goto(start_console(tmp_path).url)
  page.locator('td.metric', has_text='0.5').wait_for()
  # Headless browsers have no scroll bars. Elsewhere they take 15 pixels.
  node, table = page.locator('.grid-scroll'), page.locator('table.grid')
  assert table.evaluate('(node) => parseFloat(node.style.minWidth)') <= node.evaluate('(node) => node.clientWidth') - 15


@pytest.mark.slow
@pytest.mark.parametrize('address', ['runs', 'run?run=lively', 'compare?run=lively', 'models'])
def test_content_is_in_the_middle_of_a_wide_screen(new_page, console, address):
  page = new_page(viewport={'width': 2400, 'height': 900})
  page.goto(f'{console.url}/{address}')
  part = page.locator('#view > :not(.loading, [hidden], :empty)').first
  part.wait_for()
  box = part.bounding_box()
  left, right = box['x'], 2400 - box['x'] - box['width']
  assert left > 200 and abs(left - right) < 20  # The width of a scroll bar.


@pytest.mark.slow
def test_text_is_readable_in_both_themes(new_page, console):
  """WCAG 2.1, 1.4.3: a contrast of 4.5 for text on its ground."""
  pairs = [
    (text, ground) for text in ('text', 'text-soft', 'text-faint', 'accent', 'bad') for ground in ('bg', 'surface')
  ]
  for scheme in ('dark', 'light'):
    page = new_page(color_scheme=scheme)
    _open(page, console)
    colours = page.evaluate(
      'names => names.map(name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim())',
      [name for pair in pairs for name in pair],
    )
    for pair, text, ground in zip(pairs, colours[::2], colours[1::2]):
      assert _contrast(text, ground) >= 4.5, (scheme, pair, _contrast(text, ground))


def _contrast(one, other):
  lights = sorted((_luminance(one), _luminance(other)))
  return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(colour):
  parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
  linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_an_empty_folder_names_the_next_step(page, tmp_path, start_console):
  page.goto(start_console(tmp_path).url)
  page.get_by_role('heading', name='No runs yet').wait_for()
  assert f'--model_dir={tmp_path}/digits' in page.locator('.command code').inner_text()


@pytest.mark.slow
def test_the_first_runs_of_an_empty_folder_get_their_columns(page, tmp_path, start_console):
  page.goto(start_console(tmp_path).url)
  page.get_by_role('heading', name='No runs yet').wait_for()
  head = page.locator('thead')
  heads = lambda: [each for each in head.inner_text().split() if each in ('loss', 'accuracy', 'Status')]
  folders.make(tmp_path, 'first', [])
  page.get_by_role('link', name='first').wait_for()
  assert heads() == ['Status']
  for events, expected in (
    ([event('train', 1, loss=0.5)], ['Status', 'loss']),
    ([event('train', 2, loss=0.4), event('eval', 2, accuracy=0.75)], ['Status', 'accuracy', 'loss']),
  ):
    folders.make(tmp_path, 'first', events)
    page.locator('thead', has_text=expected[1]).wait_for()
    assert heads() == expected
  page.locator('tbody tr', has_text='0.75').wait_for()


@pytest.mark.slow
def test_a_thousand_runs_are_filtered_and_sorted_at_once(page, tmp_path, start_console):
  """From the key to the rows; benchmarks/console.py holds the figure of 100 ms for the server's judgement, alone."""
  root = tmp_path / 'runs'
  record = json.dumps(folders.record(folders.ended_process(), status='finished'))
  for number in range(1000):
    folder = root / f'run{number}'
    folder.mkdir(parents=True)
    (folder / 'run.json').write_text(record)
    (folder / 'params.yaml').write_text(folders.PARAMS.format(rate=10 ** -(1 + number % 4), seed=number))
    (folder / 'events.jsonl').write_text(json.dumps(event('eval', 10, accuracy=number / 1000)) + '\n')
  console = start_console(root)
  _open(page, console)
  _foot(page, '1,000 runs')
  assert page.locator('tbody tr').count() < 100  # Only visible ones exist.
  page.evaluate("""() => {
    window.taken = (change, expected) => new Promise((resolve) => {
      const began = performance.now();
      const look = () => document.querySelector('.foot').textContent.startsWith(expected) ?
        requestAnimationFrame(() => resolve(performance.now() - began)) : setTimeout(look, 1);
      change();
      look();
    });
    window.type = (text) => {
      const input = document.querySelector('.filter');
      input.value = text;
      input.dispatchEvent(new Event('input'));
    };
  }""")

  def least(change, expected):
    return min(page.evaluate(f'async () => [await taken(() => {change}, "{expected}"), type("")][0]') for _ in range(5))

  times = {
    'words': least('type("run99")', '11 of'),
    'a metric': least('type("accuracy>=0.9")', '100 of'),
    'a field': least('type("learning_rate=1e-3")', '250 of'),
    'sort': least('document.querySelector("[data-column=accuracy] button").click()', '1,000'),
  }
  assert max(times['words'], times['sort']) < 100, times
  assert max(times.values()) < 300, times  # The server shares this process, and other tests the processor.
  page.locator('.grid-scroll').evaluate('node => node.scrollTop = 1e9')
  page.locator('[aria-rowindex="1001"]').wait_for()


@pytest.mark.slow
def test_views_are_saved_by_name(page, console, new_page):
  _open(page, console, '?filter=accuracy>0.3&status=failed&sort=accuracy&columns=status,accuracy,initial_learning_rate')
  page.wait_for_function('() => document.querySelectorAll("td.name").length === 4')
  names = _names(page)
  page.get_by_label('Select sweep/run8').check()
  page.get_by_role('button', name='Clear selection').click()

  def views():
    page.get_by_role('button', name='Views').click()

  views()
  page.get_by_text('No view is saved yet.').wait_for()
  page.get_by_label('Name', exact=True).fill(HTML)
  page.keyboard.press('Enter')
  page.get_by_text(f'Saved the view {HTML}').wait_for()
  page.goto(f'{console.url}/runs')
  page.wait_for_function('() => document.querySelectorAll("td.name").length > 4')
  views()
  page.get_by_role('dialog').get_by_role('button', name=HTML, exact=True).click()
  page.wait_for_function('() => document.querySelectorAll("td.name").length === 4')
  assert _names(page) == names and page.get_by_label('Filter').input_value() == 'accuracy>0.3'
  assert page.locator('th.field').all_inner_texts() == ['initial_learning_rate']
  # Another page has none of its views, and a deleted one is gone after a reload.
  page.goto(f'{console.url}/compare')
  views()
  page.get_by_text('No view is saved yet.').wait_for()
  page.goto(f'{console.url}/runs')
  views()
  page.get_by_label(f'Delete the view {HTML}').click()
  page.get_by_text('No view is saved yet.').wait_for()
  page.reload()
  views()
  page.get_by_text('No view is saved yet.').wait_for()
