"""Pages of docs are short, and those for users begin with a result and a command or code."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / 'docs'
SECTIONS = ('getting_started', 'how_to', 'concepts')
MOST_WORDS = 1500


def pages(sections):
  return sorted(path for section in sections for path in (DOCS / section).glob('*.md'))


def words(page):
  """The words of a page, without its code in fences, which tests run."""
  return len(re.sub(r'^```.*?^```', '', page, flags=re.DOTALL | re.MULTILINE).split())


def begins_with_a_result_and_a_command(page):
  """Whether a paragraph of at most two sentences and a block of code follow the title."""
  title, first, second, *_ = re.split(r'\n\s*\n', page)
  sentences = re.findall(r'[.:](?=\s|$)', first.replace('Result:', ''))
  return (
    title.startswith('# ')
    and re.match(r'\w', first) is not None
    and len(sentences) <= 2
    and second.startswith(('    ', '```'))
  )


@pytest.mark.parametrize('path', pages(SECTIONS), ids=lambda path: f'{path.parent.name}/{path.name}')
def test_a_page_begins_with_its_result_and_a_command(path):
  assert begins_with_a_result_and_a_command(path.read_text())


@pytest.mark.parametrize(
  'page',
  ['# A\n\n    train\n\nIt trains.', '# A\n\nIt is. It has. So.\n\n    train', '# A\n\nIt.\n\n## B\n\n    train'],
)
def test_other_beginnings_are_found(page):
  assert not begins_with_a_result_and_a_command(page)


def test_pages_are_short():
  long = {str(path): words(path.read_text()) for path in pages([*SECTIONS, 'contributing'])}
  assert {path: words for path, words in long.items() if words > MOST_WORDS} == {}


def test_the_list_of_decisions_counts_their_sections():
  listed = dict(re.findall(r'\(decisions/(\w+\.md)\) \| (\d+) \|', (DOCS / 'contributing/decisions.md').read_text()))
  found = {path.name: path.read_text().count('\n## ') for path in (DOCS / 'contributing/decisions').glob('*.md')}
  assert {name: int(count) for name, count in listed.items()} == {name: found[name] for name in listed}
  assert set(found) - set(listed) == {'by_file.md'}
