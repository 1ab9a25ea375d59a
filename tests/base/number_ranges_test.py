"""Ranges of numbers in words."""

import pytest

from official_ext.base import number_ranges


@pytest.mark.parametrize(
  'starts, length, expected',
  [
    ([7], 1, 'step 7'),
    ([1, 3, 4, 5], 1, 'steps 1, 3 to 5'),
    ([3, 4, 9], 1, 'steps 3 to 4, 9'),
    ([0], 32, 'steps 0 to 31'),
    ([64, 128], 64, 'steps 64 to 191'),
    ([0, 64], 32, 'steps 0 to 31, 64 to 95'),
    ([5, 5], 0, 'steps 5, 5'),  # A trainer that does not know its batch size.
  ],
)
def test_ranges_with_a_noun(starts, length, expected):
  assert number_ranges.describe_with_noun('step', starts, length) == expected


@pytest.mark.parametrize('most, expected', [(2, '1, ..., 8'), (3, '1, 3 to 4, ..., 8'), (4, '1, 3 to 4, 6, 8')])
def test_ranges_between_the_first_and_the_last_ones_are_left_out(most, expected):
  assert number_ranges.describe([1, 3, 4, 6, 8], most=most) == expected
