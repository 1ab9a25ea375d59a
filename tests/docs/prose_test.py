"""Phrases that docs/contributing/style.md lists: at most as frequent as allowed, found with file and line."""

import collections
import functools
import gc
import pathlib
import sys

import pytest

from tools import prose

ROOT = pathlib.Path(prose.ROOT)
HISTORY = ('CHANGELOG.md', 'docs/contributing/decisions')
# Texts that are measured together: the limits are per 1,000 words of an area. The history is an area, and no part of
# the pages: a page may have no more of a phrase because the history has few.
AREAS = {
  'pages': ({'docs'}, prose.DOCS, HISTORY),
  'history': ({'docs'}, HISTORY),
  'docstrings and comments': ({'docstrings', 'comments'}, prose.CODE),
  'messages, help and console': (
    {'strings', 'console'},
    ['official_ext', 'experiments', 'train.py', 'registry_imports.py', 'setup.py'],
  ),
}
# They have no legitimate use in code and in the history: none is allowed there.
BANNED = ('go on', 'is told', 'of its own', 'try again', 'stand still', 'at hand', 'and the like')


@functools.cache
def texts(path):
  """The texts of a file, read once."""
  gc.disable()  # It would look at every node of every syntax tree: a third of the time.
  try:
    return list(prose.texts(path))
  finally:
    gc.enable()


def found(kinds, paths, excluded=()):
  """(words, phrase -> places) of the texts of some kinds, without those below the excluded paths."""
  words, places = 0, collections.defaultdict(list)
  for path in prose.files(paths):
    if any(path.is_relative_to(ROOT / name) for name in excluded):
      continue
    for text in texts(path):
      if text.kind in kinds:
        words += prose.words(text.text)
        for place in prose.places(text):
          places[place.phrase].append(place)
  return words, places


def too_many(area, words, places):
  """Lines about phrases that are more frequent than allowed, with their places."""
  for name, phrase in prose.PHRASES.items():
    allowed = 0 if name in BANNED and area != 'pages' else round(phrase.limit * words / 1000)
    if len(places[name]) > allowed:
      yield f'{area}: "{name}" occurs {len(places[name])} times, {allowed} are allowed; use: {phrase.say}'
      for place in places[name]:
        path = place.path.relative_to(ROOT) if place.path.is_relative_to(ROOT) else place.path
        yield f'  {path}:{place.line}: {place.around}'


@pytest.mark.parametrize('area', AREAS)
def test_phrases_are_rare(area):
  words, places = found(*AREAS[area])
  assert words > 5000
  lines = list(too_many(area, words, places))
  assert not lines, '\n'.join(lines)


# (name of the file, its text, the phrase, its line): a phrase planted in each kind of text.
PLANTED = {
  'page': ('a.md', '# Title\n\nThe run\ngoes on.\n\n    go on\n\n`go on`\n', 'go on', 4),
  'docstring': ('a.py', '"""A module."""\n\n\ndef f():\n  """Stops.\n\n  It\n  is told.\n  """\n', 'is told', 8),
  'comment': ('a.py', "x = '#hand'  # A value\n# that is\n# at hand.\n", 'at hand', 3),
  'trailing comment': ('a.py', "x = 1\ny = '#'  # It stands still.\n", 'stand still', 2),
  'error': ('a.py', "raise ValueError(f'{x}: is no '\n                 'list')\n", 'is no', 1),
  'help': ('a.py', "add('--x', help='the folder of its own')\n", 'of its own', 1),
  'console': ('a.js', 'const a = 1;\nbutton(`${a}: try again`); // It works.\n', 'try again', 2),
  'comment of the console': ('a.js', '// It\n// goes on.\n', 'go on', 2),
  'page of the console': ('a.html', '<p>\nGo <b>on</b></p>\n', 'go on', 2),
  'Makefile': ('Makefile', 'all:\n# Tools at hand.\n', 'at hand', 2),
}


@pytest.mark.parametrize('where', PLANTED)
def test_a_planted_phrase_is_found_with_its_line(where, tmp_path):
  name, content, phrase, line = PLANTED[where]
  (tmp_path / name).write_text(content)
  kinds = {'docs'} if name.endswith('.md') else set(prose.KINDS) - {'docs'}
  words, places = found(kinds, [tmp_path])
  assert [(place.path.name, place.line) for place in places[phrase]] == [(name, line)]
  assert any(f'{name}:{line}: ' in text for text in too_many('planted', words, places))


def test_the_style_page_lists_the_phrases():
  page = (ROOT / 'docs/contributing/style.md').read_text()
  for phrase in prose.PHRASES:
    assert f'| {phrase} |' in page, phrase


def test_the_measure_needs_no_tensorflow():
  assert 'tensorflow' not in vars(prose) and 'tensorflow' not in vars(sys.modules[__name__])
