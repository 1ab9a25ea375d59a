"""Gives the code of an experiment another name."""

import ast
import io
import re
import tokenize
from typing import Dict, Iterator, List, Mapping, Sequence, Set

_SKIPPED = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)


def camel_case(name: str) -> str:
  """'my_task' as the name of a class: 'MyTask'."""
  return ''.join(word.capitalize() for word in name.split('_'))


class Renaming:
  """From an experiment's name to a new one, in the Python files of its folder and in its test.

  Renamed are: the folder; modules, functions, variables and classes of its own that begin with the name (`digits`,
  `digits_dataset`, `DigitsTask`, `DIGITS_DIR`); what it registers by name; where comments and docstrings name any of
  these. What it imports from elsewhere stays.

  Attributes:
    registered: from the names that the code registers to the new ones.
    words: every identifier of the code.
  """

  def __init__(self, files: Mapping[str, str], old: str, new: str, others: Sequence[str] = ()):
    """Reads what there is to rename.

    Args:
      files: paths, relative to the folder, and texts.
      old: the folder's name.
      new: its new name.
      others: the names of other experiments, which stay.
    """
    self._old, self._new = old, new
    trees = [ast.parse(text, path) for path, text in files.items()]
    self.registered = self._registrations(trees)
    self.words = {word for tree in trees for word in _words(tree)}
    own = {old, *(path.rsplit('/', 1)[-1].removesuffix('.py') for path in files)}
    own.update(name for tree in trees for name in _bound(tree))
    stays = set(others) - {old} - self.registered.keys()
    names = {name: self._identifier(name) for name in own - stays}
    self._names = {name: renamed for name, renamed in names.items() if renamed != name}
    prose = re.compile('[A-Z]?[a-z0-9]*')  # A word that a sentence may hold too.
    words = sorted((word for word in self._names if not prose.fullmatch(word)), key=len, reverse=True)
    self._own_words = re.compile(rf'(?<![\w.])({"|".join(map(re.escape, words))})(?!\w)') if words else None

  def path(self, path: str) -> str:
    """The new name of a file."""
    folder, slash, name = path.rpartition('/')
    stem = name.removesuffix('.py')
    return f'{folder}{slash}{self._names.get(stem, stem)}.py' if name.endswith('.py') else path

  def text(self, text: str) -> str:
    """The new text of a file."""
    lines = text.splitlines(keepends=True)
    edits = []
    external = _external_names(text)
    for statement in _statements(text):
      own_import = any(token.string == 'experiments' for token in statement)
      is_import = statement[0].string in ('import', 'from')
      root = ''
      for index, token in enumerate(statement):
        before = statement[index - 1].string if index else ''
        replacement = token.string
        if token.type in (tokenize.STRING, tokenize.COMMENT):
          replacement = self._string(token.string, token.type == tokenize.STRING)
        elif token.type == tokenize.NAME:
          root = root if before == '.' else token.string
          stays = (is_import and not own_import) or token.string in external or (before == '.' and root in external)
          replacement = token.string if stays else self._names.get(token.string, token.string)
        elif token.string not in ('.', ')', ']'):
          root = ''
        if replacement != token.string:
          edits.append((token.start, token.end, replacement))
    for (row, column), (end_row, end_column), replacement in sorted(edits, reverse=True):
      tail = lines[end_row - 1][end_column:]
      lines[row - 1 : end_row] = [lines[row - 1][:column] + replacement + tail]
    return ''.join(lines)

  def _identifier(self, name: str) -> str:
    """The new form of an identifier of the code's own; itself where it does not begin with the old name."""
    bare = name.lstrip('_')
    for old, new in ((self._old, self._new), (self._old.upper(), self._new.upper())):
      if bare == old or bare.startswith(f'{old}_'):
        return name[: len(name) - len(bare)] + new + bare[len(old):]
    flat = self._old.replace('_', '')
    rest = bare[len(flat):]
    if bare[:1].isupper() and bare[: len(flat)].lower() == flat and (not rest or rest[0].isupper() or rest[0] == '_'):
      return name[: len(name) - len(bare)] + camel_case(self._new) + rest
    return name

  def _registrations(self, trees: Sequence[ast.AST]) -> Dict[str, str]:
    """What is handed to functions called register... as their first argument."""
    found: Dict[str, str] = {}
    experiments: List[str] = []
    for node in (node for tree in trees for node in ast.walk(tree)):
      if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        function = getattr(node.func, 'attr', getattr(node.func, 'id', ''))
        name = node.args[0].value
        if function.startswith('register') and isinstance(name, str):
          prefix = re.match(rf'{re.escape(self._old)}(?![a-z0-9])', name)
          found[name] = self._new + name[len(self._old):] if prefix else f'{self._new}_{name}'
          if function == 'register_config_factory':
            experiments.append(name)
    if experiments and self._old not in experiments:
      found[experiments[0]] = self._new
    return found

  def _string(self, text: str, is_literal: bool) -> str:
    """The new text of a string with its quotes, or of a comment."""
    if is_literal:
      prefix, quote = re.match(r'(\w*)("""|\'\'\'|"|\')', text).groups()  # type: ignore[union-attr]
      inside = text[len(prefix) + len(quote) : -len(quote)]
      whole = {self._old: self._new, **self.registered}
      if inside in whole:
        return f'{prefix}{quote}{whole[inside]}{quote}'
    for old, new in {self._old: self._new, **self.registered}.items():
      name = re.escape(old)
      text = re.sub(rf'(?<=--experiment=){name}(?!\w)|(?<=runs/){name}(?!\w)|(?<=`){name}(?=`)', new, text)
    old = re.escape(self._old)
    text = re.sub(rf'(?<=\bexperiments[./]){old}(?=\W|_test\b|$)', self._new, text)
    text = re.sub(rf'(?<=\bexperiment ){old}(?!\w)', self._new, text)
    if self._own_words is not None:
      text = self._own_words.sub(lambda match: self._names[match.group(1)], text)
    return text


def with_lines_allowed(text: str, max_length: int) -> str:
  """The code, with leave for its long lines where it has some: a longer name has made them so."""
  if all(len(line) <= max_length for line in text.splitlines()):
    return text
  lines = text.splitlines(keepends=True)
  first = ast.parse(text).body[0]
  is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
  lines.insert((first.end_lineno or 0) if is_docstring else 0, '# ruff: noqa: E501\n')
  return ''.join(lines)


def as_package(text: str, name: str) -> str:
  """The code of an experiment as that of a package: `experiments.NAME` becomes `NAME`."""
  text = re.sub(rf'\bfrom experiments import {name}\b', f'import {name}', text)
  return re.sub(rf'\bexperiments([./]){name}\b', name, text)


def _bound(tree: ast.AST) -> Iterator[str]:
  """Names that the code itself gives to something."""
  for node in ast.walk(tree):
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
      yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
      yield node.attr
    elif isinstance(node, ast.arg):
      yield node.arg
    elif isinstance(node, ast.alias) and node.asname:
      yield node.asname


def _words(tree: ast.AST) -> Iterator[str]:
  """Every identifier."""
  yield from _bound(tree)
  for node in ast.walk(tree):
    if isinstance(node, ast.Name):
      yield node.id
    elif isinstance(node, ast.alias):
      yield from node.name.split('.')


def _external_names(text: str) -> Set[str]:
  """What a file imports from outside of `experiments`, by the name it has there."""
  names: Set[str] = set()
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.Import):
      names.update((alias.asname or alias.name).split('.')[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and (node.module or '').split('.')[0] != 'experiments':
      names.update(alias.asname or alias.name for alias in node.names)
  return names - {'experiments'}


def _statements(text: str) -> Iterator[List[tokenize.TokenInfo]]:
  """The tokens of each logical line."""
  statement: List[tokenize.TokenInfo] = []
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type == tokenize.COMMENT and not statement:
      yield [token]
    elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
      if statement:
        yield statement
      statement = []
    elif token.type not in _SKIPPED or token.type == tokenize.COMMENT:
      statement.append(token)
