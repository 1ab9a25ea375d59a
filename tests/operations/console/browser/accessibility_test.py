"""Accessibility of the pages that need no driver, by axe-core, in both themes and at two widths."""

import pathlib

import pytest

from tests import tiers
from tests.operations.console.browser import axe
from tests.operations.runs import folders
from tests.operations.runs.folders import event
from tests.operations.sweeps import folders as sweep_folders

_SIZES = {'desktop': {'width': 1280, 'height': 900}, 'phone': {'width': 390, 'height': 844}}
_TABS = ('curves', 'log', 'config', 'checkpoints', 'events', 'completions', 'images', 'about')
# Address -> an element of the drawn page.
_PAGES = {
  'runs': 'table',
  'runs?selected=a': '.bulk',
  'runs?view=trash': 'main h1, main h2, main p',
  'compare?run=a&run=b': '.compare-table',
  'queue': 'main h1, main h2',
  'sweeps': 'table',
  'sweep?sweep=search': '.parallel',
  'models': 'main h1, main h2, main p',
  'none': 'main h1, main h2, main p',
  **{f'run?run=a&tab={tab}': '.run-head' for tab in _TABS},
}


@pytest.fixture(scope='module', autouse=True)
def content(runs_folder):
  """Runs and a sweep: each part of each page has something to show."""
  runs_folder.mkdir(exist_ok=True)
  completions = {'prompts': ['What?', 'What?'], 'completions': ['That.', 'This.'], 'rewards/length': [1.0, 0.5]}
  events = [event('start', 0), event('compiled', 0, seconds=1.0)]
  events += [event('train', step, training_loss=1 / step, steps_per_second=2.0) for step in range(1, 21)]
  events += [event('eval', 20, accuracy=0.5, validation_loss=0.4), event('completions', 20, **completions)]
  ended = folders.ended_process()
  for number, name in enumerate(('a', 'b')):
    run = folders.make(runs_folder, name, events, rate=0.1 * (number + 1), status='finished', identity=ended)
    pathlib.Path(run.path, 'run.log').write_text('one\ntwo\n')
  folders.make(runs_folder, 'c', events[:2], status='failed', error='no data', identity=ended)
  sweep_folders.make(runs_folder, 'search', pruned=(5,), failed=(7,))


@pytest.mark.slow
@tiers.parametrize('theme', ['dark', 'light'], fast=1)
@tiers.parametrize('size', ['desktop', 'phone'], fast=1)
def test_no_page_has_a_serious_violation(new_page, console, theme, size):
  page = new_page(viewport=_SIZES[size], color_scheme=theme, reduced_motion='reduce')
  page.allowed.append('404')
  found = {}
  for address, drawn in _PAGES.items():
    page.goto(f'{console.url}/{address}')
    page.locator(drawn).first.wait_for()
    page.wait_for_timeout(300)
    if violations := axe.violations(page):
      found[address] = violations
  assert not found


@pytest.mark.slow
def test_dialogs_have_none(new_page, console):
  page = new_page(color_scheme='light', reduced_motion='reduce')
  page.goto(f'{console.url}/run?run=a')
  page.get_by_role('button', name='Extend', exact=True).click()
  page.get_by_role('dialog').wait_for()
  assert not axe.violations(page)
  page.keyboard.press('Escape')
  page.get_by_role('dialog').wait_for(state='detached')
  page.wait_for_function("document.activeElement.textContent === 'Extend'")  # Where it was before.
  page.keyboard.press('?')
  page.get_by_role('dialog').wait_for()
  assert not axe.violations(page)


@pytest.mark.slow
def test_a_violation_is_found(page, console):
  page.goto(f'{console.url}/runs')
  page.get_by_role('link', name='a', exact=True).wait_for()  # The page is drawn: nothing replaces what is added.
  page.evaluate("document.querySelector('main').insertAdjacentHTML('afterbegin', '<button></button>')")
  assert any('button-name' in each for each in axe.violations(page))
