"""The public face: one list, in code and in docs/reference/api.md, which importing costs nothing."""

import ast
import importlib
import pathlib
import re
import subprocess
import sys

import pytest

import official_ext as ext

ROOT = pathlib.Path(__file__).resolve().parent.parent


def test_the_page_lists_the_face_in_its_order():
  listed = re.findall(r'^\| `ext\.(\w+)` \| .+ \|$', (ROOT / 'docs/reference/api.md').read_text(), re.MULTILINE)
  assert listed == list(ext.FACE)
  assert set(ext.FACE) <= set(dir(ext))


@pytest.mark.parametrize('name', ext.FACE)
def test_each_name_is_there_and_has_a_docstring(name):
  found = getattr(ext, name)
  module, _, attribute = ext.FACE[name].partition(':')
  assert found is (
    getattr(importlib.import_module(f'official_ext.{module}'), attribute)
    if attribute
    else importlib.import_module(f'official_ext.{module}')
  )
  assert (found.__doc__ or '').strip()


def test_type_checkers_see_the_same_names_and_targets():
  tree = ast.parse((ROOT / 'official_ext/__init__.py').read_text())
  (block,) = (node for node in tree.body if isinstance(node, ast.If))
  assert ast.unparse(block.test) == 'TYPE_CHECKING'
  declared: dict = {}
  exec(compile(ast.Module(block.body, []), 'official_ext/__init__.py', 'exec'), declared)
  public = {name: value for name, value in declared.items() if not name.startswith('_')}
  assert set(public) == set(ext.FACE)
  assert [name for name, value in public.items() if value is not getattr(ext, name)] == []


def test_another_name_is_missing():
  with pytest.raises(AttributeError, match="module 'official_ext' has no attribute 'Tsk'"):
    ext.Tsk  # noqa: B018


def test_importing_it_imports_no_tensorflow():
  code = 'import sys, official_ext; sys.exit(any(name in sys.modules for name in ("tensorflow", "numpy", "official")))'
  assert subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=False).returncode == 0


def test_what_authors_copy_uses_the_face_and_nothing_below_it():
  """README, docs and the scaffold's templates; experiments are held by import_direction_test.py."""
  found = []
  pages = [*ROOT.glob('docs/**/*.md'), ROOT / 'README.md', *(ROOT / 'official_ext/cli/templates').rglob('*.txt')]
  for path in pages:
    for number, line in enumerate(path.read_text().splitlines(), 1):
      if re.match(r'\s*(from official_ext[. ].*import |import official_ext\.)', line):
        found.append(f'{path.relative_to(ROOT)}:{number}: {line.strip()}')
  assert found == []
