"""Values as texts of --set, and back."""

import math
import random

import pytest

from official_ext.base import config_text
from official_ext.base import errors

_WORDS = r"""10 1e3 0x1F .5 -1 .inf true True yes null ~ Null a: a=b [ { it's " \ "quoted" ' 'a' --- ... *.tfrecord
&a !tag | %YAML @ ` \x7f ü 日本語 👩‍🔬 $HOME `id` !! * ~/data --set=a=b %s \n a,b 1_000 0o17 2026-11-22
12:30 NaN .nan << = on off"""
_ODD = (
  *_WORDS.split(),
  *('', ' ', 'a b', ' a', 'a ', 'a: b', '[1, 2]', '{a: 1}', '# no comment', 'a # comment', '- a', '? a', '!!int 3'),
  *(
    '> folded',
    'a\nb',
    '\n',
    'a\tb',
    '\t',
    'a\r\nb',
    '\x00',
    '\x7f',
    '\x85',
    'a\u2028b',
    '\u2029',
    '\ufeff',
    '\ufeffa',
  ),
  *('\ufffe', '\xa0', '\u3000', 'e\u0301', '\U0010ffff'),
)


def _read(text):
  """The driver's parsing of a text, for a field of any type."""
  value = config_text.load_value(text, '--set')
  return value.value if isinstance(value, config_text.Literal) else value


@pytest.mark.parametrize('text', _ODD, ids=[f'odd{number}' for number in range(len(_ODD))])
def test_a_string_is_read_as_itself_alone_and_in_lists_and_mappings(text):
  assert _read(config_text.argument_of(text)) == text
  # Not a Literal, which a field that takes numbers too would not take for a string.
  assert isinstance(config_text.load_value(config_text.argument_of(text), ''), str)
  assert _read(config_text.argument_of([text, text])) == [text, text]
  assert _read(config_text.argument_of({text: [text]})) == {text: [text]}


def test_what_means_itself_stands_as_it_is():
  for text in ('adamw', 'gs://bucket/data*', 'it is', '~/data', 'yes', '日本語', "it's", 'a=b'):
    assert config_text.argument_of(text) == text
  assert config_text.argument_of(['a/b', 'a b', 1e-5, None, True]) == '[a/b, "a b", 1e-05, null, true]'
  assert [config_text.argument_of(value) for value in ('10', '', 'a\n"b"')] == ['"10"', '""', '"a\\n\\"b\\""']


def test_numbers_and_the_like_are_read_as_they_are():
  for value in (None, True, False, 0, -7, 2**63 - 1, 1.0, -0.0, 1e-300, 1e22, math.inf, -math.inf, [], {}, [[1], []]):
    found = _read(config_text.argument_of(value))
    assert (found, type(found)) == (value, type(value))
  assert math.isnan(_read(config_text.argument_of(math.nan)))
  assert math.copysign(1, _read(config_text.argument_of(-0.0))) == -1


def test_any_text_comes_back():
  draw = random.Random(7)
  alphabet = 'ab1 \n\t"\'\\#:,[]{}&*!|>%@`=-~?.\x00\x1b\x85\u2028\ufeffäß日👍\U0001f9ea'
  for _ in range(500):
    text = ''.join(draw.choices(alphabet, k=draw.randrange(8)))
    assert _read(config_text.argument_of(text)) == text
    assert _read(config_text.argument_of([text, {'a': text}])) == [text, {'a': text}]


def test_half_a_surrogate_pair_is_no_text():
  with pytest.raises(errors.UserError, match='is not valid Unicode'):
    config_text.argument_of('a\ud83d')
  with pytest.raises(TypeError, match='object has no form'):
    config_text.argument_of([object()])
