"""The check of an integer that a person gives."""

import pytest

from official_ext.base import errors
from official_ext.base import json_values


@pytest.mark.parametrize('value, least, most', [(1, 1, None), (0, 0, None), (-3, -3, 0), (10**30, 1, None), (7, 1, 7)])
def test_integers_in_the_range_are_returned(value, least, most):
  assert json_values.check_int(value, 'slots', least, most) == value


@pytest.mark.parametrize(
  'value, expected',
  [
    (0, 'slots: expected an integer of 1 or more, got 0'),
    (9, 'slots: expected an integer of 8 or less, got 9'),
    (1.0, 'slots: expected an integer of 1 or more, got 1.0'),
    (True, 'slots: expected an integer of 1 or more, got True'),
    ('3', "slots: expected an integer of 1 or more, got '3'"),
    (None, 'slots: expected an integer of 1 or more, got nothing'),
  ],
)
def test_others_are_refused_with_one_message(value, expected):
  with pytest.raises(errors.UserError) as raised:
    json_values.check_int(value, 'slots', most=8)
  assert str(raised.value) == expected


def test_a_long_value_is_cut():
  with pytest.raises(errors.UserError) as raised:
    json_values.check_int('x' * 10_000, 'slots')
  assert len(str(raised.value)) < 160


@pytest.mark.parametrize('text', ['', '-1', '+1', '1_0', ' 1', '1.0', '\u00b2', '\u0663', 'nan', '9' * 5000])
def test_only_decimal_digits_are_read_from_a_text(text):
  assert json_values.int_from_text(text) == text
  assert json_values.int_from_text('0042') == 42
