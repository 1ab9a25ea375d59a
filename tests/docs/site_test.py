"""The site of docs/: mkdocs builds it without a warning, and would warn of a broken link or anchor."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import pytest
import yaml

from tests.operations.console.browser import conftest
from tools import site_hooks

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / 'docs'
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob('*.md'))

pytest.importorskip('mkdocs', reason="requires the extra docs: pip install 'official-ext[docs]'")


def build(folder):
  """`make docs` of a copy, in its folder."""
  return subprocess.run(
    [sys.executable, '-m', 'mkdocs', 'build', '--strict'],
    cwd=folder,
    env={**os.environ, 'NO_MKDOCS_2_WARNING': '1'},
    capture_output=True,
    text=True,
    check=False,
  )


@pytest.fixture(scope='module')
def copy(tmp_path_factory):
  folder = tmp_path_factory.mktemp('site')
  shutil.copy(ROOT / 'mkdocs.yml', folder)
  shutil.copytree(DOCS, folder / 'docs')
  (folder / 'tools').mkdir()
  shutil.copy(ROOT / 'tools/site_hooks.py', folder / 'tools')
  return folder


@pytest.mark.slow
def test_the_site_builds_and_has_every_page_and_a_search_index(copy):
  done = build(copy)
  assert done.returncode == 0, done.stderr
  built = copy / 'build/site'
  assert [page for page in PAGES if not (built / page).with_suffix('.html').exists()] == []
  assert (built / 'search/search_index.json').stat().st_size > 100_000
  text = (built / 'index.html').read_text()
  assert not re.findall(r'(?:src|href)="(?:https?:)?//(?!github\.com|squidfunk)[^"]*\.(?:js|css|woff2?)"', text)


@pytest.mark.slow
@pytest.mark.parametrize('link', ['[gone](gone.md)', '[run](concepts/run.md#gone)'])
def test_a_broken_link_or_anchor_is_an_error(copy, tmp_path, link):
  folder = tmp_path / 'copy'
  shutil.copytree(copy, folder)
  with open(folder / 'docs/index.md', 'a') as file:
    file.write(f'\n{link}\n')
  done = build(folder)
  assert done.returncode == 1 and 'gone' in done.stderr


@pytest.fixture(scope='module')
def page(copy):
  """A page of Chromium, at 1280 pixels."""
  sync_api = pytest.importorskip('playwright.sync_api', reason='needs playwright: pip install playwright')
  if not os.access(conftest.CHROMIUM, os.X_OK):
    pytest.skip(f'needs Chromium: {conftest.CHROMIUM} does not exist')
  assert build(copy).returncode == 0
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=conftest.CHROMIUM, args=['--no-sandbox', '--disable-gpu'])
    yield browser.new_page(viewport={'width': 1280, 'height': 800})
    browser.close()


@pytest.mark.slow
def test_the_search_works_in_pages_that_are_opened_as_files(copy, page):
  requests = []
  page.on('request', lambda request: requests.append(request.url))
  page.goto(f'file://{copy}/build/site/how_to/console.html')
  page.locator('.md-search__input').click()
  page.keyboard.type('preference')
  page.locator('.md-search-result__item').first.wait_for()
  found = page.locator('.md-search-result__item a').evaluate_all('(links) => links.map((link) => link.href)')
  assert any('how_to/preferences.html' in link for link in found)
  assert [url for url in requests if not url.startswith(('file:', 'data:', 'about:'))] == []


@pytest.mark.slow
def test_code_fits_1280_pixels_and_tables_scroll_inside_a_phone(copy, page):
  def longest_code(name):
    return max((len(line) for line in (DOCS / name).read_text().splitlines() if line.startswith('    ')), default=0)

  code = sorted(PAGES, key=longest_code)[-6:]
  tables = sorted(PAGES, key=lambda name: (DOCS / name).read_text().count('|'))[-4:]
  boxes = '(nodes) => nodes.map((node) => [node.scrollWidth, node.clientWidth, getComputedStyle(node).overflowX])'
  wide = {}
  for width, selector, names in (
    (1280, 'pre > code', code),
    (390, '.md-typeset__scrollwrap', [*tables, 'concepts/scaling.md']),
  ):
    page.set_viewport_size({'width': width, 'height': 800})
    for name in names:
      page.goto(f'file://{copy}/build/site/{name[:-3]}.html')
      assert page.evaluate('document.documentElement.scrollWidth - innerWidth') <= 0, (name, width)
      for inner, outer, overflow in page.locator(f'.md-content {selector}').evaluate_all(boxes):
        if inner > outer and (width == 1280 or overflow != 'auto'):
          wide[name, width] = inner - outer
  assert not wide


def themed(page, theme, width):
  """Another page, of a new context: the site keeps the theme of the first page in the browser's storage."""
  context = page.context.browser.new_context(color_scheme=theme, viewport={'width': width, 'height': 800})
  return context.new_page()


@pytest.mark.slow
@pytest.mark.parametrize('theme', ['light', 'dark'])
def test_texts_have_contrast(copy, page, theme):
  axe = pytest.importorskip('axe_playwright_python.sync_playwright').Axe()
  page = themed(page, theme, 1280)
  for name in ('index', 'getting_started/add_a_task', 'how_to/automation', 'how_to/optimization', 'concepts/batch'):
    page.goto(f'file://{copy}/build/site/{name}.html')
    found = axe.run(page, options={'runOnly': ['color-contrast']}).response['violations']
    assert [node['html'] for each in found for node in each['nodes']] == [], name


@pytest.mark.slow
@pytest.mark.parametrize('theme', ['light', 'dark'])
@pytest.mark.parametrize('width', [390, 1280])
def test_pictures_of_the_console_have_the_theme_and_the_width_of_the_page(copy, page, theme, width):
  page = themed(page, theme, width)
  page.goto(f'file://{copy}/build/site/how_to/console.html')
  shown = [each for each in page.locator('.md-content picture img').all() if each.is_visible()]
  for each in shown:
    each.scroll_into_view_if_needed()
  sources = [each.evaluate('(image) => image.decode().then(() => image.currentSrc)') for each in shown]
  assert len(sources) == 4 and all(source.endswith(f'-{theme}-{width}.png') for source in sources)


def test_every_picture_of_the_console_has_both_themes_and_widths():
  for path in (DOCS / 'images/console').glob('*.png'):
    name = path.name.rsplit('-', 2)[0]
    for theme in ('light', 'dark'):
      assert all((path.parent / f'{name}-{theme}-{width}.png').exists() for width in (390, 1280)), path


@pytest.mark.parametrize(
  'html, changed',
  [
    ('<code>trainer.steps_per_loop</code>', '<code>trainer.<wbr>steps_<wbr>per_<wbr>loop</code>'),
    ('<code>ext.ArrayRecordSource</code>', '<code>ext.<wbr>Array<wbr>Record<wbr>Source</code>'),
    ('<code>ckpt-N.manifest.json</code>', '<code>ckpt-N.<wbr>manifest.json</code>'),
    ('<code>runs.list</code>', '<code>runs.list</code>'),
    ('<code>--mode=eval</code>', '<code><span class="whole">--mode</span>=eval</code>'),
    (
      '<pre><span></span><code>a_long_name_in_code</code></pre>',
      '<pre><span></span><code>a_long_name_in_code</code></pre>',
    ),
    ('<h3 id="a">ext.Task.build_model<a', '<h3 id="a">ext.<wbr>Task.<wbr>build_<wbr>model<a'),
    ('<tr>\n<td>12</td>\n<td>12</td>', '<tr>\n<td class="number">12</td>\n<td>12</td>'),
    ('<td><code>(q\\|k)_proj</code></td>', '<td><code>(q|k)_proj</code></td>'),
  ],
)
def test_names_break_at_their_parts(html, changed):
  assert site_hooks.on_page_content(html) == changed


def test_the_navigation_has_names_below_their_class():
  member = types.SimpleNamespace(title='ext.Task.build_model', children=[])
  other = types.SimpleNamespace(title='ext.TaskConfig', children=[])
  task = types.SimpleNamespace(title='ext.Task', children=[member, other])
  site_hooks.on_page_content('', page=types.SimpleNamespace(toc=[task]))
  assert [each.title for each in (task, member, other)] == ['ext.Task', '.build_model', 'ext.TaskConfig']


def test_the_extras_of_setup_are_on_the_page():
  setup = (ROOT / 'setup.py').read_text().partition('extras_require')[2]
  extras = re.findall(r"^    '(\w+)': \[", setup, re.MULTILINE)
  rows = (DOCS / 'getting_started/index.md').read_text().partition('## Extras')[2].splitlines()
  named = [name for row in rows if row.startswith('| `') for name in re.findall(r'`(\w+)`', row.split('|')[1])]
  assert extras and sorted(extras) == sorted(named)


def test_every_page_starts_with_a_title_and_a_how_to_page_has_a_command_or_code():
  for page in PAGES:
    text = (DOCS / page).read_text().removeprefix('<!-- Generated by `python -m tools.reference`: do not edit. -->\n\n')
    assert re.match(r'# \S', text), page
  for path in sorted((DOCS / 'how_to').glob('*.md')):
    if path.name != 'index.md':
      assert re.search(r'^(?:    \S|```(?:python|yaml)$)', path.read_text(), re.MULTILINE), path


def test_pages_that_code_names_exist():
  files = [*ROOT.glob('*.md'), *ROOT.glob('*.py'), ROOT / 'Makefile']
  for folder in ('official_ext', 'experiments', 'benchmarks', 'tools', 'tests', '.github'):
    files += [
      path for path in (ROOT / folder).rglob('*') if path.suffix in ('.py', '.md', '.txt', '.yml', '.yaml', '.js')
    ]
  missing = {
    f'{path.relative_to(ROOT)}: {name}'
    for path in files
    for name in re.findall(r'\bdocs/[\w/]+\.(?:md|svg|json|ipynb)\b', path.read_text(errors='replace'))
    if 'node_modules' not in path.parts and not (ROOT / name).exists()
  }
  assert missing == set()


def test_the_themes_are_light_and_dark():
  text = (ROOT / 'mkdocs.yml').read_text()
  palette = yaml.safe_load(text)['theme']['palette']
  assert [each['scheme'] for each in palette] == ['default', 'slate'] and all(each['toggle'] for each in palette)
