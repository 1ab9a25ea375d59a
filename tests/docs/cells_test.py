"""A cell with a task and `ext.train` runs again: the same bits in another folder, and no complaint about its code."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.docs import notebooks_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
# As IPython runs a cell: in a `__main__` without a file, with its source for `inspect`.
KERNEL = """
import linecache
CELL = {cell!r}
for number, FOLDER in enumerate(('runs/first', 'runs/second', 'runs/first')):
  print(f'cell {{number}}')
  linecache.cache['/tmp/ipykernel_1/1.py'] = len(CELL), None, CELL.splitlines(True), '/tmp/ipykernel_1/1.py'
  exec(compile(CELL, '/tmp/ipykernel_1/1.py', 'exec'))
"""


def module_of_the_notebook():
  """The source that the first notebook writes to a file."""
  (path,) = [path for path in notebooks_test.NOTEBOOKS if path.stem == 'first_task']
  (cell,) = [cell for cell in notebooks_test.cells(path, 'code') if 'write_text(' in cell]
  return next(
    node.value for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Constant) and '@ext.' in str(node.value)
  )


@pytest.mark.tensorflow
def test_a_cell_that_runs_again_has_the_same_bits(tmp_path):
  cell = module_of_the_notebook() + "\nprint(ext.train('rings', FOLDER, train_epochs=2))\n"
  environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'XDG_CACHE_HOME': str(tmp_path / 'cache')}
  done = subprocess.run(
    [sys.executable, '-'],
    input=KERNEL.format(cell=cell),
    cwd=tmp_path,
    env=environment,
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
  first, second, again = done.stdout.replace(str(tmp_path), '').partition('cell 0\n')[2].split('cell ')
  # Times and the folder's name may differ.
  plain = lambda text: re.sub(r'[\d.]+ (steps/s|s\))|seconds [\d.]+|eta \S+', '', text).splitlines()
  assert plain(second.removeprefix('1\n').replace('runs/second', 'runs/first')) == plain(first)
  assert '\nfinished before, at step 63: nothing to do\n' in again
  assert not re.search('warning|code', done.stdout + done.stderr, re.IGNORECASE), done.stdout + done.stderr
  names = sorted(path.name for path in (tmp_path / 'runs/first').glob('ckpt-*.*-of-*'))
  assert len(names) >= 2
  for name in [*names, *(f'{name.partition(".")[0]}.index' for name in names)]:
    assert (tmp_path / 'runs/first' / name).read_bytes() == (tmp_path / 'runs/second' / name).read_bytes(), name
