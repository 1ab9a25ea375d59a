"""Tests for flat_params."""

import math

from official_ext.base import config_text


def test_types_and_missing_fields_are_differences():
  old = config_text.dump({'a': 1, 'b': {'c': math.nan, 'd': [1, 2]}, 'e': [{'f': 1}], 'gone': 'x'})
  new = config_text.dump({'a': 1.0, 'b': {'c': math.nan, 'd': [1, 3]}, 'e': [{'f': 2}], 'come': None})
  assert config_text.text_differences(old, new) == [
    'a: 1 -> 1.0',
    'b.d: [1, 2] -> [1, 3]',
    'e[0].f: 1 -> 2',
    "gone: 'x' -> unset",
    'come: unset -> None',
  ]
  assert config_text.text_differences(old, old + '# a comment\n') == []
