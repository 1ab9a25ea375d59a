"""A real browser, and pages that must not complain.

    def test_something(page, console): page.goto(f'{console.url}/runs')

`runs_folder` is a module's folder of runs, empty at first; `console` serves it. A test fails if its page reports an
error, logs one, or meets the policy of the content; a test allows expected ones:
page.allowed.append(part of the message). That a request was answered with 400 is not a complaint: mistakes are.
"""

import os
import shutil

import pytest

CHROMIUM = os.environ.get('CHROMIUM') or shutil.which('chromium') or '/usr/bin/chromium'
_ARGUMENTS = (
  '--no-sandbox',
  '--disable-gpu',
  '--disable-background-networking',
  '--disable-component-update',
  '--no-first-run',
)


@pytest.fixture(scope='module')
def browser():
  """Chromium; without one, tests that need it are skipped."""
  sync_api = pytest.importorskip('playwright.sync_api', reason='needs playwright: pip install playwright')
  if not os.access(CHROMIUM, os.X_OK):
    pytest.skip(f'needs Chromium: {CHROMIUM} is not there (apt install chromium, or name one in $CHROMIUM)')
  with sync_api.sync_playwright() as playwright:
    started = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
    yield started
    started.close()


@pytest.fixture(scope='module')
def runs_folder(tmp_path_factory):
  """A folder for the runs of a module."""
  return tmp_path_factory.mktemp('console', numbered=True) / 'runs'


@pytest.fixture(scope='module')
def console(runs_folder, start_console):
  """A console of that folder."""
  runs_folder.mkdir(exist_ok=True)
  return start_console(runs_folder)


@pytest.fixture
def new_page(browser):
  """`new_page(**options)` opens a page in a separate window; options as of Playwright's `new_context`."""
  opened = []

  def make(**options):
    context = browser.new_context(**{'viewport': {'width': 1280, 'height': 800}, **options})
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.complaints, page.allowed = [], ['the server responded with a status of 400']
    page.on('pageerror', lambda error: page.complaints.append(f'error: {error}'))
    page.on('console', lambda message: message.type == 'error' and page.complaints.append(_text_of(message)))
    # The refusals of the policy, even if not logged.
    page.add_init_script(
      "addEventListener('securitypolicyviolation', (event) => console.error('policy: ' + event.violatedDirective))"
    )
    opened.append((context, page))
    return page

  yield make
  complaints = []
  for context, page in opened:
    complaints += [text for text in page.complaints if not any(part in text for part in page.allowed)]
    context.close()
  assert not complaints


@pytest.fixture
def page(new_page):
  """A page at the size of a desktop."""
  return new_page()


def _text_of(message):
  return f'{message.text} ({message.location.get("url", "")})'
