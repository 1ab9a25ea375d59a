"""Pictures of the console: python -m tools.screenshots [--runs=RUNS_DIR] [--pages=runs,queue] [--out=FOLDER]

Serves a folder of runs, which it makes of small real ones if none is given, and writes PAGE-THEME-WIDTH.png of each,
in both themes, at the width of a desktop and of a phone. Requires Playwright and Chromium: see docs/how_to/console.md.
"""

import argparse
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

from PIL import Image
from playwright import sync_api

from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from official_ext.operations.sweeps import sweep_folder

ROOT = pathlib.Path(__file__).resolve().parent.parent
_SIZES = ((1280, 800), (390, 780))
_ARGUMENTS = ('--no-sandbox', '--disable-gpu', '--disable-background-networking', '--no-first-run')
_RANGES = (
  {'name': 'learning_rate', 'kind': 'log', 'low': '1e-4', 'high': '1e-1', 'count': 4},
  {'name': 'batch_size', 'values': '32, 64'},
)
_SWEEP = urllib.parse.urlencode({'sweep': json.dumps({'rows': _RANGES})})
# Pictures show the folders of a user, not of the machine on which they were taken.
_HOMES = {sys.prefix: '/home/me/digits/.venv', str(ROOT): '/home/me/digits'}
_RENAME = """(homes) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    for (const [from, to] of Object.entries(homes)) text.data = text.data.replaceAll(from, to);
  }
}"""
# Name of the picture: address. {run}, {runs} and {sweep} are filled in; a page of a sweep needs one.
PAGES = {
  'runs': '/runs',
  'run': '/run?{run}',
  'compare': '/compare?{runs}',
  'bars': '/compare?{runs}',
  'new': '/new?experiment=digits',
  'new-sweep': f'/new?experiment=digits&{_SWEEP}',
  'queue': '/queue',
  'sweeps': '/sweeps',
  'sweep': '/sweep?{sweep}',
  'models': '/models',
}

SCROLLED = {'bars': '.compare-bars', 'new-sweep': '.sweep'}  # The part at the top of a picture.


def make_runs(root: pathlib.Path) -> None:
  """Trains the digits a few times, seconds each."""
  for name, changes in {
    'digits': (),
    'digits-slow': ('learning_rate=1e-4',),
    'digits-wide/dropout': ('task.model.dropout_rate=0.5', 'learning_rate=3e-3'),
  }.items():
    flags = [f'--set={change}' for change in ('train_steps=300', *changes)]
    words = [sys.executable, 'train.py', '--experiment=digits', '--mode=train_and_eval', f'--model_dir={root / name}']
    subprocess.run([*words, *flags], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
  run_folders.change_notes(run_folders.get_run(str(root), 'digits'), add=['baseline'], note='As the demo trains it.')


def take(url: str, root: pathlib.Path, names: list[str], out: pathlib.Path) -> None:
  """Takes the pictures of some pages.

  Args:
    url: of the console.
    root: the folder that it serves.
    names: of PAGES.
    out: where they are written.
  """
  runs = [each.name for each in run_index.RunIndex(str(root)).summaries()]
  sweeps = sweep_folder.find_sweeps(str(root))
  words = {
    'run': urllib.parse.urlencode({'run': runs[0]}) if runs else '',
    'runs': urllib.parse.urlencode([('run', name) for name in runs[:4]]),
    'sweep': urllib.parse.urlencode({'sweep': sweeps[0].name}) if sweeps else '',
  }
  names = [name for name in names if name != 'sweep' or sweeps]
  out.mkdir(parents=True, exist_ok=True)
  chromium = os.environ.get('CHROMIUM') or shutil.which('chromium') or '/usr/bin/chromium'
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
    for theme in ('dark', 'light'):
      for width, height in _SIZES:
        page = browser.new_page(viewport={'width': width, 'height': height}, color_scheme=theme)
        page.on('console', lambda message: message.type == 'error' and print(f'{page.url}: {message.text}'))  # noqa: B023
        for name in names:
          page.goto(url + PAGES[name].format(**words))
          page.wait_for_timeout(1500)  # All requested parts are drawn.
          page.locator('#view .loading').wait_for(state='detached', timeout=120_000)  # TensorFlow, for a new run.
          if name in SCROLLED:
            page.locator(SCROLLED[name]).wait_for(timeout=120_000)
            page.locator(SCROLLED[name]).evaluate('(node) => node.scrollIntoView()')
          page.wait_for_timeout(500)
          page.evaluate(_RENAME, _HOMES)
          _save(page.screenshot(), out / f'{name}-{theme}-{width}.png')
        page.close()
    browser.close()


def _save(png: bytes, path: pathlib.Path) -> None:
  """Writes a picture in 128 colours, which are enough for a page, and a third of its size."""
  # Unlike the default it keeps the colours of small parts, such as the dot of a status.
  method = Image.Quantize.MAXCOVERAGE
  picture = Image.open(io.BytesIO(png)).convert('RGB').quantize(128, method, dither=Image.Dither.NONE)
  picture.save(path, optimize=True)


def main() -> int:
  """Takes all requested pictures."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--runs', type=pathlib.Path)
  parser.add_argument('--pages', default=','.join(PAGES))
  parser.add_argument('--out', type=pathlib.Path, default=ROOT / 'docs' / 'images' / 'console')
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as temporary:
    root = options.runs or pathlib.Path(temporary, 'runs')
    if options.runs is None:
      make_runs(root)
    words = [sys.executable, '-m', 'official_ext.cli.main', 'console', str(root), '--port=0']
    server = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
      assert server.stdout is not None
      found = re.search(r'http://[^ ]+', server.stdout.readline())
      assert found is not None
      take(found[0], root, options.pages.split(','), options.out)
    finally:
      server.terminate()
      server.wait()
  return 0


if __name__ == '__main__':
  sys.exit(main())
