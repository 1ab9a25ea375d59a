"""Texts share rows: every text once, whole, in few rows, the same each time."""

import numpy as np
import pytest

from official_ext.language.text import token_rows


def rows_of(found):
  return [found.of(row).tolist() for row in range(len(found))]


def test_each_text_goes_into_the_fullest_row_that_has_room():
  # 7 opens a row, 6 another, 5 a third; 4 fits beside 6 alone, 3 beside 7, and 2 + 3 beside 5.
  found = token_rows.pack_best_fit(np.array([4, 7, 3, 6, 5, 2, 3]), 10)
  assert rows_of(found) == [[0, 3], [1, 2], [4, 5, 6]]


def test_a_row_for_each():
  assert rows_of(token_rows.one_text_each(3)) == [[0], [1], [2]]
  assert rows_of(token_rows.one_text_each(0)) == rows_of(token_rows.pack_best_fit(np.zeros(0, np.int64), 4)) == []


@pytest.mark.parametrize('size', [8, 100, 4096])
def test_all_texts_are_there_once_and_rows_are_full(size):
  lengths = np.random.default_rng(size).integers(1, size + 1, 3000)
  found = token_rows.pack_best_fit(lengths, size)
  assert sorted(found.members.tolist()) == list(range(3000))
  used = np.array([lengths[members].sum() for members in rows_of(found)])
  assert used.max() <= size
  # Best-fit decreasing needs at most 11/9 of the fewest rows there can be, and 4 more (Johnson, 1973).
  assert len(found) <= 11 / 9 * -(-lengths.sum() // size) * 1.1 + 4
  firsts = [members[0] for members in rows_of(found)]
  assert firsts == sorted(firsts)
  again = token_rows.pack_best_fit(lengths.copy(), size)
  np.testing.assert_array_equal(found.members, again.members)
  np.testing.assert_array_equal(found.starts, again.starts)
