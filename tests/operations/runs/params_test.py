"""Tests for params."""

import glob
import pathlib

import pytest

from official_ext.base import config_text
from official_ext.operations.runs import run_folders

ROOT = pathlib.Path(__file__).resolve().parents[3]

_STRANGE = {
  'a': {'yes': 'no', 'text': 'on', 'number': '1e3', 'octal': '010', 'time': '12:30:45', 'under': '1_000', 'none': None},
  'floats': [1e-5, 1e22, float('inf'), -0.0, 1.5e300],
  'small': 1e-5,
  'nested': [[1, 2], [3]],
  'objects': [{'a': 1}, {'b': [1]}],
  'empty': {},
  'lines': 'a\nb: c',
  'signs': "it's # no: {x} & *y !z",
  'date': '2026-01-31',
}


def _same(text):
  expected = config_text.load(text, 'params')
  return repr(config_text.flatten(run_folders._parse_params(text))) == repr(config_text.flatten(expected))


def test_both_readers_read_the_same():
  assert _same(config_text.dump(_STRANGE))
  for key, value in _STRANGE.items():
    assert _same(config_text.dump({key: value})), key
  golden = sorted(glob.glob(str(ROOT / 'tests/golden/*.yaml')))
  for path in golden[::10]:
    assert _same(pathlib.Path(path).read_text()), path
  assert len(golden) > 5


@pytest.mark.parametrize(
  'text',
  [
    'a: yes',
    'a: 1e3',
    'a: 12:30:45',
    'a: 1_000',
    'a: 0o17',
    'a: off',
    'a: !!python/tuple [1]',
    '- 1',
    'a: n',
  ],
)
def test_what_yaml_1_1_would_read_otherwise_is_read_by_the_project(text):
  assert _same(text)


def test_an_integer_that_versions_of_yaml_read_differently_makes_a_file_unreadable(tmp_path):
  (tmp_path / 'params.yaml').write_text('a: 010')
  assert run_folders.read_params(run_folders.Run(str(tmp_path), 'a')) is None


def test_no_file_fills_memory_or_the_stack(tmp_path):
  run = run_folders.Run(str(tmp_path), 'a')
  laughs = 'a: &a [1,1,1,1,1,1,1,1,1,1]\n' + ''.join(
    f'{chr(98 + i)}: &{chr(98 + i)} [{",".join(["*" + chr(97 + i)] * 10)}]\n' for i in range(9)
  )
  for text in (laughs, 'a: ' + '[' * 100_000, 'a: ' + '{a: ' * 100_000, '- ' * 100_000, '? ' * 100_000, '\0', 'a: [1'):
    (tmp_path / 'params.yaml').write_text(text)
    assert run_folders.read_params(run) is None, text[:20]


def test_a_name_is_a_path_a_short_name_or_the_end_of_paths():
  values = run_folders.with_short_names({'a.b.c': 1, 'd.c': 2, 'e': 3}, {'short': 'a.b.c', 'gone': 'x.y', 'odd': 3})
  assert run_folders.values_of_field('short', values) == [1]
  assert run_folders.values_of_field('c', values) == [1, 2]
  assert run_folders.values_of_field('b.c', values) == [1]
  assert run_folders.values_of_field('e', values) == [3]
  assert run_folders.values_of_field('gone', values) == []
