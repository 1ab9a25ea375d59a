"""Phrases of docs/contributing/style.md that are to be rare: where they are, and how frequent.

python -m tools.prose                    # a table: occurrences per 1,000 words, by kind of text, and the limits
python -m tools.prose --beside=PATH      # the same, beside the Python files of another library
python -m tools.prose official_ext/cli   # every place in these paths: FILE:LINE: PHRASE: the text around it

tests/docs/prose_test.py holds the limits.
"""

import argparse
import ast
import collections
from collections.abc import Iterator
import pathlib
import re
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = (
  'official_ext',
  'experiments',
  'tests',
  'tools',
  'benchmarks',
  'train.py',
  'registry_imports.py',
  'setup.py',
  'Makefile',
)
DOCS = ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', 'RELEASE.md', 'docs')
_SKIPPED = ('__pycache__', '.venv', 'node_modules', 'vendor', 'data')
# These quote the phrases.
_QUOTING = ('tools/prose.py', 'tests/docs/prose_test.py', 'docs/contributing/style.md')


class Phrase(typing.NamedTuple):
  """A phrase that is to be rare."""

  pattern: str  # Case is ignored, unless the pattern says otherwise; a line end counts as a space.
  say: str  # Plain words in its place.
  peer: float = 0.0  # Occurrences per 1,000 words in the docstrings, comments and strings of TRL 1.16.0.

  @property
  def limit(self) -> float:
    """The most occurrences per 1,000 words that are allowed."""
    return self.peer + MARGIN


# Allowed above the frequency in TRL, per 1,000 words.
MARGIN = 0.1

PHRASES = {
  'go on': Phrase(r'\b(?:go(?:es)?|going|went|gone) on\b', 'resume, continue, run'),
  'what': Phrase(r'\bwhat(?:ever)?\b(?!\s*\?)', 'a noun: "results", not "what came out"', 0.44),
  'of its own': Phrase(r"\bof (?:its|their|your|our|his|my|one's) own\b", 'custom, separate, its X'),
  'of ours': Phrase(r'\bof (?:ours|yours|theirs)\b', 'our X'),
  'as it is': Phrase(
    r'\bas (?:it is|it was|they are|they were)\b(?! [a-z]+(?:ed|en)\b)', 'unchanged, unconverted, by default', 0.01
  ),
  'is told': Phrase(r'\b(?:is|are|was|were|be|been|being) told\b', 'gets, reads, is reported'),
  'tell': Phrase(r'\b(?:tells?|telling|told)\b', 'print, list, report, show', 0.04),
  'is no': Phrase(
    r'\b(?<!there )(?:is|are|was|were|be) (?:no|(?-i:none))\b(?! (?:longer|more|less|such|need|one))',
    'is not a, invalid, missing',
    0.01,
  ),
  'asked for': Phrase(r'\b(?:ask(?:s|ed|ing)? for|asked to)\b', 'requested, required', 0.05),
  'try again': Phrase(r'\b(?:try|tries|tried|trying) (?:it |them )?again\b', 'retry', 0.01),
  'stand still': Phrase(r'\b(?:stands?|stood|standing) still\b', 'hang, hung'),
  'say otherwise': Phrase(r'\b(?:says?|said|saying) (?:otherwise|nothing|so)\b', 'override, default, report it', 0.01),
  'is there': Phrase(
    r'\b(?:is|are|was|were|be) (?:not )?there\b(?! (?:a|an|any|no)\b)', 'exists, is missing, supported'
  ),
  'want': Phrase(r'\b(?:wants?|wanted|wishes|wished|wish)\b', 'require, need, request', 0.17),
  'come to': Phrase(r'\b(?:comes?|came|coming) (?:to|out|about|of)\b', 'reach, result in'),
  'nothing of': Phrase(r'\b(?:of which|which|in which) nothing\b|\bnothing of\b', 'no, not, none'),
  'at hand': Phrase(r'\bat hand\b', 'installed, available, current'),
  'stand in': Phrase(r'\b(?:stands?|stood) (?:in|on|at|for|there|beside|before|with)\b', 'is, means, needs, replaces'),
  'Where for If': Phrase(r'(?:^|[.;] )where\b', 'If, When; or a noun: "The place of"', 0.01),
  'and the like': Phrase(r'\band (?:its|their|the) like\b', 'and similar, such as'),
}
_COMPILED = {name: re.compile(phrase.pattern, re.IGNORECASE) for name, phrase in PHRASES.items()}
# One of these is in every match: a search for them is much faster than the pattern.
_KEYS = {
  'go on': (' on',),
  'what': ('what',),
  'of its own': (' own',),
  'of ours': ('s',),
  'as it is': ('as ',),
  'is told': ('told',),
  'tell': (
    'tell',
    'told',
  ),
  'is no': (' no',),
  'asked for': ('ask',),
  'try again': ('again',),
  'stand still': ('still',),
  'say otherwise': ('sa',),
  'is there': ('there',),
  'want': (
    'want',
    'wish',
  ),
  'come to': (
    'com',
    'came',
  ),
  'nothing of': ('nothing',),
  'at hand': ('hand',),
  'stand in': (
    'stand',
    'stood',
  ),
  'Where for If': ('where',),
  'and the like': ('like',),
}
_WORD = re.compile(r'[A-Za-z][A-Za-z\'-]*')

KINDS = ('docs', 'docstrings', 'comments', 'strings', 'console')


class Text(typing.NamedTuple):
  """One piece of prose: a paragraph, a docstring, a block of comments, a string."""

  path: pathlib.Path
  line: int  # The first one.
  kind: str  # One of KINDS.
  text: str  # Line ends as in the file, so that a place in it is a line.


class Place(typing.NamedTuple):
  """A phrase in a text."""

  path: pathlib.Path
  line: int
  phrase: str
  around: str


def _is_prose(text: str) -> bool:
  """Whether a string is a sentence, a message or a label rather than a key, a path, a pattern or code."""
  return len(_WORD.findall(text)) >= 2 and ' ' in text.strip()


def _python(path: pathlib.Path) -> Iterator[Text]:
  """Docstrings, comments and strings of a Python file. An f-string is one string, its values are left out."""
  source = path.read_text('utf-8')
  skipped: set[int] = set()  # Docstrings, and the parts of f-strings.
  strings: dict[int, list[tuple[float, float]]] = {}  # The columns of each line that strings take, in bytes.
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
      first = node.body[0] if node.body else None
      if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        skipped.add(id(first.value))
        yield Text(path, first.lineno, 'docstrings', first.value.value)
    elif isinstance(node, ast.JoinedStr):
      pieces = [part for part in node.values if isinstance(part, ast.Constant)]
      skipped.update(id(part) for part in pieces)
      _note_columns(node, strings)
      text = ' _ '.join(str(part.value) for part in pieces)
      if _is_prose(text):
        yield Text(path, node.lineno, 'strings', text)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
      _note_columns(node, strings)
      if isinstance(node.value, str) and id(node) not in skipped and _is_prose(node.value):
        yield Text(path, node.lineno, 'strings', node.value)
  yield from _comments(path, source, strings)


def _note_columns(node: ast.expr, strings: dict[int, list[tuple[float, float]]]) -> None:
  """Adds the columns of a string, line by line."""
  assert node.end_lineno is not None and node.end_col_offset is not None
  for line in range(node.lineno, node.end_lineno + 1):
    first = node.col_offset if line == node.lineno else 0
    last = node.end_col_offset if line == node.end_lineno else float('inf')
    strings.setdefault(line, []).append((first, last))


def _comments(path: pathlib.Path, source: str, strings: dict[int, list[tuple[float, float]]]) -> Iterator[Text]:
  """Blocks of comments: full lines that follow each other are one text, as is the end of a line of code."""
  block: list[str] = []
  begin = 0
  for number, line in enumerate([*source.split('\n'), ''], start=1):
    code = line.encode()
    at = code.find(b'#')
    while at >= 0 and any(first <= at < last for first, last in strings.get(number, ())):
      at = code.find(b'#', at + 1)
    is_whole = at >= 0 and not code[:at].strip()
    if block and not is_whole:
      yield Text(path, begin, 'comments', '\n'.join(block))
      block = []
    if is_whole:
      begin = begin if block else number
      block.append(code[at:].decode().lstrip('#').strip())
    elif at >= 0:
      yield Text(path, number, 'comments', code[at:].decode().lstrip('#').strip())


def _markdown(path: pathlib.Path) -> Iterator[Text]:
  """Paragraphs without code: fenced and indented blocks, and `code` within lines, are left out."""
  fenced = False
  lines = []
  for line in path.read_text('utf-8').split('\n'):
    if line.lstrip().startswith('```'):
      fenced, line = not fenced, ''
    code = fenced or re.match(r'    +(?![-*]|\d+\.)', line)
    lines.append('' if code else re.sub(r'`[^`]*`|\]\([^)]*\)', '_', line))
  yield from _paragraphs(path, lines, 'docs')


def _paragraphs(path: pathlib.Path, lines: list[str], kind: str) -> Iterator[Text]:
  first, block = 1, []
  for number, line in enumerate([*lines, ''], start=1):
    if line.strip():
      if not block:
        first = number
      block.append(line)
    elif block:
      yield Text(path, first, kind, '\n'.join(block))
      block = []


def _console(path: pathlib.Path) -> Iterator[Text]:
  """Comments and strings of JavaScript; an HTML page as a whole."""
  source = path.read_text('utf-8')
  if path.suffix != '.js':
    yield from _paragraphs(path, re.sub(r'\s*<[^>\n]*>\s*?', ' ', source).split('\n'), 'console')
    return
  pattern = r"//[^\n]*|/\*.*?\*/|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`|\"(?:[^\"\\\n]|\\.)*\""
  block: list[str] = []
  first = 0
  for match in re.finditer(pattern, source, re.DOTALL):
    line = source.count('\n', 0, match.start()) + 1
    text = match.group()
    if block and not (text.startswith('//') and line == first + len(block)):
      yield Text(path, first, 'console', '\n'.join(block))
      block = []
    if text.startswith('//'):
      if not block:
        first = line
      block.append(text.lstrip('/').strip())
    elif text.startswith('/*') or _is_prose(text):
      yield Text(path, line, 'console', re.sub(r'\$\{[^}]*\}', '_', text))
  if block:
    yield Text(path, first, 'console', '\n'.join(block))


def _hash_comments(path: pathlib.Path) -> Iterator[Text]:
  """Comments of a Makefile."""
  lines = path.read_text('utf-8').split('\n')
  yield from _paragraphs(path, [line[1:] if line.startswith('#') else '' for line in lines], 'comments')


def texts(path: pathlib.Path) -> Iterator[Text]:
  """The prose of a file, by its suffix; none if the suffix is another."""
  if path.suffix == '.py' or path.name.endswith('.py.txt'):
    yield from _python(path)
  elif path.suffix == '.md':
    yield from _markdown(path)
  elif path.suffix in ('.js', '.html'):
    yield from _console(path)
  elif path.name == 'Makefile':
    yield from _hash_comments(path)


def files(paths: typing.Iterable[str | pathlib.Path]) -> Iterator[pathlib.Path]:
  """The files with prose in some paths of the project, or elsewhere."""
  for name in paths:
    path = ROOT / name
    for file in [path] if path.is_file() else sorted(path.rglob('*')):
      relative = file.relative_to(path).parts if file != path else ()
      if file.is_file() and not any(part in _SKIPPED for part in relative):
        if not (file.is_relative_to(ROOT) and file.relative_to(ROOT).as_posix() in _QUOTING):
          yield file


def places(text: Text) -> Iterator[Place]:
  """The phrases in a text."""
  flat = text.text.replace('\n', ' ')
  small = flat.lower()
  for name, pattern in _COMPILED.items():
    if not any(key in small for key in _KEYS[name]):
      continue
    for match in pattern.finditer(flat):
      line = text.line + text.text.count('\n', 0, match.start())
      around = ' '.join(text.text[max(0, match.start() - 60) : match.end() + 60].split())
      yield Place(text.path, line, name, around)


def words(text: str) -> int:
  """The number of words."""
  return len(_WORD.findall(text))


def count(paths: typing.Iterable[str | pathlib.Path]) -> tuple[collections.Counter, collections.Counter]:
  """Words by kind, and occurrences by (kind, phrase)."""
  number, found = collections.Counter(), collections.Counter()
  for path in files(paths):
    for text in texts(path):
      number[text.kind] += words(text.text)
      found.update((text.kind, place.phrase) for place in places(text))
  return number, found


def _table(paths: list[str], beside: list[str]) -> Iterator[str]:
  number, found = count(paths)
  other, other_found = count(beside)
  columns = [kind for kind in KINDS if number[kind]]
  yield '| per 1,000 words | ' + ' | '.join(columns) + ' | all | limit |' + (' beside |' if beside else '')
  yield '|---' * (len(columns) + 3 + bool(beside)) + '|'

  def rate(amount: int, of: int) -> str:
    return f'{1000 * amount / of:.2f}' if of else ''

  for name, phrase in PHRASES.items():
    row = [rate(found[kind, name], number[kind]) for kind in columns]
    row.append(rate(sum(found[kind, name] for kind in columns), sum(number.values())))
    row.append(f'{phrase.limit:.2f}')
    if beside:
      row.append(rate(sum(other_found[kind, name] for kind in KINDS), sum(other.values())))
    yield f'| {name} | ' + ' | '.join(row) + ' |'
  totals = [*(str(number[kind]) for kind in columns), str(sum(number.values())), '']
  yield '| words | ' + ' | '.join(totals) + ' |' + (f' {sum(other.values())} |' if beside else '')


def main() -> None:
  """Prints the table, or the places."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('paths', nargs='*', help='print the places in these files and folders')
  parser.add_argument('--phrase', action='append', default=[], help='these phrases alone; may be given several times')
  parser.add_argument('--beside', action='append', default=[], help='files or folders to compare the table with')
  arguments = parser.parse_args()
  if not arguments.paths:
    print('\n'.join(_table([*DOCS, *CODE], arguments.beside)))
    return
  for path in files(arguments.paths):
    for text in texts(path):
      for place in places(text):
        if not arguments.phrase or place.phrase in arguments.phrase:
          name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
          print(f'{name}:{place.line}: {place.phrase}: {place.around}')


if __name__ == '__main__':
  main()
