"""docs/contributing/architecture.md and its pages of paths name existing files and functions."""

import ast
import pathlib
import re

import pytest

from tools import layers

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / 'docs/contributing/architecture.md').read_text()
PATHS = [(ROOT / f'docs/contributing/{name}.md').read_text() for name in ('run_paths', 'update')]
NAMED = sorted(set(re.findall(r'`(\w+(?:/\w+)+\.py)(?::([\w.]+))?', '\n'.join([PAGE, *PATHS]))))


def defined(path):
  """The functions and classes of a file, methods as Class.method."""
  found = set()
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      found.add(node.name)
    if isinstance(node, ast.ClassDef):
      found.update(f'{node.name}.{item.name}' for item in node.body if isinstance(item, ast.FunctionDef))
  return found


@pytest.mark.parametrize('file, name', NAMED, ids=[':'.join(filter(None, pair)) for pair in NAMED])
def test_what_the_page_names_is_there(file, name):
  path = ROOT / file if (ROOT / file).exists() else ROOT / 'official_ext' / file
  assert path.exists(), file
  assert not name or name in defined(path), f'{file} has no {name}'


def test_the_page_has_a_row_for_every_package():
  listed = set(re.findall(r'`([\w/]+)(?:/|\.py)`', PAGE))  # A part of a package may be one module.
  packages = {package for row in layers.ORDER for package in row}
  assert packages <= listed
  assert {f'{package}/{name}' for package, rows in layers.SUBPACKAGES.items() for row in rows for name in row} <= listed
