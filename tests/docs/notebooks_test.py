"""docs/notebooks: their cells run from the first to the last in one process, as in a fresh kernel."""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests import tiers

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / 'docs/notebooks').glob('*.ipynb'))
PAGE = (ROOT / 'docs/getting_started/notebooks.md').read_text()
COLAB = 'https://colab.research.google.com/github/official-ext/official-ext/blob/main/docs/notebooks/'


def cells(path, kind):
  """The sources of the cells of one kind, in order."""
  found = json.loads(path.read_text())['cells']
  return [''.join(cell['source']) for cell in found if cell['cell_type'] == kind]


@pytest.mark.slow
@pytest.mark.tensorflow
@tiers.parametrize(
  'path', NOTEBOOKS, fast=[path for path in NOTEBOOKS if path.stem == 'first_task'], ids=lambda p: p.stem
)
def test_its_cells_run(path, tmp_path):
  folder = tmp_path / 'docs/notebooks'  # As in a clone, where ../../train.py is the driver.
  folder.mkdir(parents=True)
  (tmp_path / 'train.py').symlink_to(ROOT / 'train.py')
  (folder / 'cells.py').write_text('\n\n'.join(cells(path, 'code')))
  environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'XDG_CACHE_HOME': str(tmp_path / 'cache')}
  done = subprocess.run(
    [sys.executable, 'cells.py'], cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
  )
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_both_are_linked_with_colab():
  assert [path.stem for path in NOTEBOOKS] == ['fine_tuning', 'first_task']
  assert re.findall(r'\]\(\.\./notebooks/(\w+)\.ipynb\)', PAGE) == ['first_task', 'fine_tuning']
  for path in NOTEBOOKS:
    link = f'{COLAB}{path.name}'
    assert f'({link})' in PAGE and f'({link})' in cells(path, 'markdown')[0]


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_output(path):
  notebook = json.loads(path.read_text())
  assert notebook['nbformat'] == 4 and len({cell['id'] for cell in notebook['cells']}) == len(notebook['cells'])
  for cell in notebook['cells']:
    assert not cell.get('outputs') and cell.get('execution_count') is None
  for source in cells(path, 'code'):
    ast.parse(source)
