"""The page of a new run, in a real browser, with a real process with the driver's answers."""

import re
import statistics
import subprocess
import time

import pytest

from official_ext.operations.queue import queue_folder
from tests.operations.console import bad_values
from tests.operations.console.browser import axe
from tests.operations.runs import folders

_ROW = '.field[data-path="{}"]'


@pytest.fixture(scope='module')
def console(runs_folder, start_console, driver):
  runs_folder.mkdir()
  folders.make(runs_folder, 'first', identity=folders.ended_process(), status='finished')
  driver.experiments()  # It has started: only the page is measured.
  return start_console(runs_folder, driver=driver)


@pytest.fixture
def form(page, console):
  """form(query) opens the form of an experiment, and waits until the driver has said all."""

  def open_form(query='experiment=digits'):
    page.goto(f'{console.url}/new?{query}')
    page.locator('.group').first.wait_for()
    settle(page)
    return page

  return open_form


def settle(page):
  page.wait_for_selector('main:not(.asking) .bar-below')


def row(page, path):
  return page.locator(_ROW.format(path))


def command(page):
  return page.locator('.command-text').text_content()


@pytest.mark.slow
@pytest.mark.parametrize('theme', ['dark', 'light'])
def test_the_form_has_no_serious_violation_of_accessibility(new_page, console, theme):
  page = new_page(color_scheme=theme, reduced_motion='reduce')
  page.goto(f'{console.url}/new')
  page.get_by_label('Search experiments').wait_for()
  assert not axe.violations(page)
  page.goto(f'{console.url}/new?experiment=digits')
  page.locator('.group').first.wait_for()
  settle(page)
  assert not axe.violations(page)


def test_an_experiment_is_found_chosen_and_shown_with_its_description(page, console):
  page.goto(f'{console.url}/new')
  page.get_by_label('Search experiments').fill('handwritten perceptron memory')
  assert page.locator('.experiments li:visible').count() == 1
  page.keyboard.press('Enter')
  page.locator('.group').first.wait_for()
  assert page.url.split('/new?')[1].startswith('experiment=digits_mlp')
  about = page.locator('.about')
  assert 'python train.py --experiment=digits_mlp' in about.text_content()
  assert 'Hardware and time' in about.text_content()
  assert page.get_by_label('Name', exact=True).input_value() == 'digits_mlp'
  page.go_back()
  page.get_by_label('Search experiments').wait_for()


# Gives a field a value as a keyboard does, or the form a change by its name, and waits for the driver's line beside it.
_EDIT = """async ([path, text]) => {
  const row = () => document.querySelector(`.field[data-path="${path}"]`);
  const lines = () => [...row()?.querySelectorAll('.field-error') ?? []].map((line) => line.textContent);
  const since = performance.now(), input = row()?.querySelector('select, input, textarea');
  if (!input) {
    const form = document.querySelector('form.other');
    form.querySelector('input').value = `${path}=${text}`;
    form.requestSubmit();
  } else {
    if (input.tagName === 'SELECT') input.append(new Option(text, text)); // An invalid choice comes from a link.
    input.value = text;
    input.dispatchEvent(new Event(input.tagName === 'SELECT' ? 'change' : 'input'));
  }
  while (!lines().length) {
    if (performance.now() - since > 10000) throw new Error(`${path}=${text}: no line`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
  return [lines(), performance.now() - since];
}"""


@pytest.mark.slow
def test_every_bad_value_is_reported_at_its_field_in_under_a_second(form, run_train, runs_folder):
  page = form('experiment=digits&view=all')
  before, milliseconds = sorted(each.name for each in runs_folder.iterdir()), []
  for cases in bad_values.batches():
    texts = [f'--set={key}={text}' for key, text in cases]
    done = run_train(['--experiment=digits', '--mode=train_and_eval', f'--model_dir={runs_folder}/digits', *texts])
    lines = {line.removeprefix('error: ') for line in done.stderr.splitlines() if line.startswith('error: ')}
    for case in cases:
      found, took = page.evaluate(_EDIT, list(case))
      assert set(found) <= lines
      milliseconds.append(took)
    settle(page)
    assert set(page.locator('.field-error, .errors li').all_text_contents()) == lines
    assert all(page.locator(f'[data-do={what}]').is_disabled() for what in ('start', 'queue', 'check'))
    page.get_by_role('button', name='Undo all').click()
    page.wait_for_selector('.wrong', state='detached')
  assert len(milliseconds) >= 80
  print(f'\nfrom an edit to its line: {statistics.median(milliseconds):.0f} ms, at most {max(milliseconds):.0f} ms')
  assert statistics.median(milliseconds) < 1000
  assert sorted(each.name for each in runs_folder.iterdir()) == before


@pytest.mark.slow
def test_strings_numbers_choices_and_null_are_edited_and_taken_back(form):
  page = form()
  row(page, 'trainer.train_steps').locator('input').fill('1e3')
  page.get_by_role('button', name='All', exact=True).click()
  page.get_by_label('Search the fields').fill('task.name')
  name = row(page, 'task.name')
  name.locator('textarea').fill('it\'s "10"\n日本 $HOME')
  settle(page)
  assert 'set=train_steps=1e3' in command(page)
  words = _words(command(page))
  assert '--set=task.name="it\'s \\"10\\"\\n日本 $HOME"' in words
  page.reload()
  settle(page)
  assert row(page, 'task.name').locator('textarea').input_value() == 'it\'s "10"\n日本 $HOME'
  name.get_by_role('button', name='null').click()
  settle(page)
  assert '--set=task.name' not in command(page)  # It is null by itself.
  page.get_by_label('Search the fields').fill('')
  page.get_by_role('button', name=re.compile('Changed')).click()
  assert page.locator('.field:visible[data-path]').evaluate_all('rows => rows.map((row) => row.dataset.path)') == [
    'trainer.train_steps'
  ]
  page.get_by_role('button', name='Reset to the default: trainer.train_steps').click()
  settle(page)
  assert '--set' not in command(page)
  assert row(page, 'trainer.train_steps').locator('input').input_value() == '600'


def _words(text):
  return (
    subprocess.run(['bash', '-c', f"printf '%s\\0' {text.partition(' && ')[2]}"], capture_output=True, check=True)
    .stdout.decode()
    .split('\0')[:-1]
  )


@pytest.mark.slow
def test_another_alternative_brings_its_fields_and_keeps_what_was_typed(form):
  page = form()
  rate = 'trainer.optimizer_config.learning_rate'
  row(page, f'{rate}.cosine.initial_learning_rate').locator('input').fill('0.5')
  row(page, f'{rate}.type').locator('select').select_option('constant')
  constant = row(page, f'{rate}.constant.learning_rate')
  constant.wait_for()
  assert constant.locator('input').input_value() == '0.5'  # learning_rate=0.5 means this one now.
  assert row(page, f'{rate}.cosine.initial_learning_rate').count() == 0
  settle(page)
  assert '--set=learning_rate=0.5' in command(page)


@pytest.mark.slow
def test_a_clone_has_the_values_of_its_original(form, runs_folder):
  page = form('clone=first')
  assert page.locator('h1').text_content() == 'Clone of first'
  assert page.get_by_label('Name', exact=True).input_value() == 'first-2'
  assert row(page, 'trainer.train_steps').locator('input').input_value() == '100'
  row(page, 'trainer.train_steps').locator('input').fill('3')
  settle(page)
  assert command(page).startswith(f'mkdir -p {runs_folder}/first-2 && cp {runs_folder}/first/params.yaml ')
  assert '--mode=train_and_eval' in command(page)
  assert command(page).endswith('--set=train_steps=3')


@pytest.mark.slow
def test_a_taken_name_is_reported_and_a_run_is_queued_by_the_keyboard(form, runs_folder):
  page = form()
  name = page.get_by_label('Name', exact=True)
  name.fill('first')
  settle(page)
  assert 'exists already; choose another name' in page.locator('#new-name-text').text_content()
  name.fill('by keys')
  page.keyboard.press('Escape')
  page.keyboard.press('/')
  page.keyboard.type('train_steps')
  page.keyboard.press('Tab')
  while page.evaluate("document.activeElement.closest('.field')?.dataset.path") != 'trainer.train_steps':
    page.keyboard.press('Tab')
  page.keyboard.press('Control+a')
  page.keyboard.type('5')
  settle(page)
  page.locator('[data-do=queue]').focus()
  page.keyboard.press('Enter')
  page.get_by_text('is job 1 of the queue').wait_for()
  (state,) = queue_folder.Queue(str(runs_folder)).states()
  assert state.job.command[-1] == '--set=train_steps=5'
  settle(page)
  assert name.input_value() == 'digits'  # A free one.


@pytest.mark.slow
def test_a_form_of_hundreds_of_fields_is_ready_in_under_a_second(new_page, console):
  for width in (1280, 390):
    page = new_page(viewport={'width': width, 'height': 800})
    page.goto(f'{console.url}/new')
    page.locator('.experiments').wait_for()
    since = time.monotonic()
    page.evaluate("""() => {
      const link = [...document.querySelectorAll('.experiment')].find((each) => each.href.endsWith('=language_model'));
      link.click();
    }""")
    page.locator('.group').first.wait_for()
    seconds = time.monotonic() - since
    count = page.locator('.field[data-path]').count()
    print(f'\n{count} fields in {seconds:.2f} s')
    assert count > 200
    settle(page)
    page.get_by_role('button', name='All', exact=True).click()
    page.get_by_role('button', name='Open all').click()
    width_of = page.evaluate("document.querySelector('main').scrollWidth - document.querySelector('main').clientWidth")
    assert width_of == 0  # Nothing sticks out.
    if width == 390:
      for scroll in (0, 1e6):
        page.evaluate(f"document.querySelector('main').scrollTo(0, {scroll})")
        bar = page.locator('.bar-below .toolbar').bounding_box()
        assert bar['height'] <= 72 and bar['y'] + bar['height'] <= 800.5
      assert page.locator('.command-text').is_visible()
    # Typing moves nothing above it, and nothing at all while it is right.
    steps = row(page, 'trainer.train_steps')
    steps.scroll_into_view_if_needed()
    top = steps.evaluate('row => row.getBoundingClientRect().top')
    steps.locator('input').fill('77')
    settle(page)
    assert steps.evaluate('row => row.getBoundingClientRect().top') == top


@pytest.mark.slow
def test_a_preview_shows_its_picture_in_the_form(form, runs_folder, tmp_path):
  page = form()
  page.get_by_role('button', name='Preview').click()
  picture = page.locator('dialog img.preview')
  picture.wait_for(timeout=180_000)
  page.wait_for_function("() => document.querySelector('dialog img.preview').naturalWidth > 0")
  page.screenshot(path=tmp_path / 'preview.png')
  assert page.locator('dialog .check-state').text_content() == 'Done.'
  assert 'train examples of digits' in page.locator('dialog .check-output').text_content()
  page.get_by_role('button', name='Close').click()
  page.locator('dialog').wait_for(state='detached')
