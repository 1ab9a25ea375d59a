"""Functions stay short enough to be read on a screen."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_LINES = 60  # With signature and docstring.


def _lengths(text):
  """(name, lines) of each function of a module."""
  functions = (ast.FunctionDef, ast.AsyncFunctionDef)
  return [
    (node.name, node.end_lineno - node.lineno + 1) for node in ast.walk(ast.parse(text)) if isinstance(node, functions)
  ]


def test_no_function_is_longer_than_a_screen():
  paths = [path for folder in ('official_ext', 'experiments', 'tools') for path in (ROOT / folder).rglob('*.py')]
  long = {
    f'{path.relative_to(ROOT)}:{name}': lines
    for path in paths
    for name, lines in _lengths(path.read_text())
    if lines > MOST_LINES
  }
  assert len(paths) > 500 and long == {}


def test_lengths_have_all_lines():
  assert _lengths('def f(\n  a,\n):\n  def g():\n    pass\n  return g\n') == [('f', 6), ('g', 2)]
