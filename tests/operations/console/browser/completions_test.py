"""The completions of a run in a real browser: a table by step, those of another run beside them, texts as texts."""

from urllib import parse

import pytest

from tests.operations.runs import folders
from tests.operations.runs.folders import event

_PROMPTS = ['What is <b>1</b>?', 'two?', 'two?']


def _log(step, name, **columns):
  return event('completions', step, prompts=_PROMPTS, completions=[f'{name} {step} {n}' for n in range(3)], **columns)


@pytest.fixture(scope='module', autouse=True)
def runs(runs_folder):
  rewards = {'answers': ['<i>x</i>', 'y', 'y'], 'rewards/exact': [1.0, 0.5, 'NaN'], 'advantages': [0.25, -0.5, 0.25]}
  ended = dict(identity=folders.ended_process(), status='finished')
  folders.make(runs_folder, 'one', [_log(step, 'one', **rewards) for step in (0, 10, 20)], **ended)
  folders.make(runs_folder, 'other', [_log(step, 'other') for step in (0, 15)], **ended)
  folders.make(runs_folder, 'none', [event('train', 1, training_loss=1.0)], **ended)


def _open(page, console, run, **query):
  page.goto(f'{console.url}/run?{parse.urlencode({"run": run, "tab": "completions", **query})}')


def _rows(page):
  return [row.locator('th, td').all_inner_texts() for row in page.locator('.completions tr').all()]


def test_the_last_step_is_shown_and_a_slider_selects_others(page, console):
  _open(page, console, 'one')
  page.get_by_role('status').filter(has_text='step 20').wait_for()
  assert _rows(page) == [
    ['Prompt', 'Answer in the data', 'Completion', 'exact', 'Advantage'],
    ['What is <b>1</b>?', '<i>x</i>', 'one 20 0', '1', '0.25'],
    ['two?', 'y', 'one 20 1', '0.5', '-0.5'],
    ['two?', 'y', 'one 20 2', 'NaN', '0.25'],
  ]
  slider = page.get_by_role('slider', name='Step')
  slider.focus()
  page.keyboard.press('Home')
  assert _rows(page)[1][2] == 'one 0 0'


@pytest.mark.slow
def test_another_run_is_shown_beside_with_its_own_completions_of_each_prompt(page, console):
  _open(page, console, 'one')
  page.get_by_label('Compare with').select_option('other')
  page.get_by_role('status').filter(has_text='other: step 15').wait_for()
  rows = _rows(page)
  assert rows[0][2:4] == ['one', 'other'] and [row[2:4] for row in rows[1:]] == [
    [f'one 20 {n}', f'other 15 {n}'] for n in range(3)
  ]
  assert 'beside=other' in page.url
  page.reload()
  page.get_by_role('status').filter(has_text='other: step 15').wait_for()


@pytest.mark.slow
def test_a_run_without_completions_states_how_to_get_some(page, console):
  _open(page, console, 'none')
  page.get_by_text('task.completions.interval').wait_for()
