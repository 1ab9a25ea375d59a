"""Which texts share a row of a fixed number of tokens. Computed once; the same for the same lengths."""

import bisect
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Rows:
  """Texts by row.

  Attributes:
    members: the numbers of the texts, int64 `[texts]`, those of a row together.
    starts: where in it each row begins, int64 `[rows + 1]`.
  """

  members: np.ndarray
  starts: np.ndarray

  def __len__(self) -> int:
    return len(self.starts) - 1

  def of(self, row: int) -> np.ndarray:
    """The texts of a row."""
    return self.members[self.starts[row] : self.starts[row + 1]]


def one_each(num_texts: int) -> Rows:
  """A row for each text."""
  return Rows(np.arange(num_texts), np.arange(num_texts + 1))


def best_fit(lengths: np.ndarray, size: int) -> Rows:
  """Few rows, without cutting a text: best-fit decreasing.

  The longest text comes first, and each goes into the fullest row that still has room for it. (Ding et al., "Fewer
  Truncations Improve Language Modeling", 2024; TRL's packing strategy `bfd`.) Rows are in the order of their first
  texts.

  Args:
    lengths: in tokens, int64 `[texts]`, each at most `size`.
    size: of a row, in tokens.
  """
  assert not len(lengths) or lengths.max() <= size
  row_of = np.zeros(len(lengths), np.int64)
  num_rows = 0
  rows_by_room: dict[int, list[int]] = {}
  rooms: list[int] = []  # Those of rows_by_room, sorted.
  order = np.argsort(-lengths, kind='stable')
  for text, length in zip(order.tolist(), lengths[order].tolist()):
    place = bisect.bisect_left(rooms, length)
    if place == len(rooms):
      row, room, num_rows = num_rows, size, num_rows + 1
    else:
      room = rooms[place]
      row = rows_by_room[room].pop()
      if not rows_by_room[room]:
        del rows_by_room[room], rooms[place]
    row_of[text] = row
    left = room - length
    if left:
      if left not in rows_by_room:
        bisect.insort(rooms, left)
      rows_by_room.setdefault(left, []).append(row)
  return _in_order(row_of, num_rows)


def _in_order(row_of: np.ndarray, num_rows: int) -> Rows:
  first = np.full(num_rows, len(row_of))
  np.minimum.at(first, row_of, np.arange(len(row_of)))
  rank = np.empty(num_rows, np.int64)
  rank[np.argsort(first)] = np.arange(num_rows)
  row_of = rank[row_of]
  counts = np.bincount(row_of, minlength=num_rows)
  return Rows(np.argsort(row_of, kind='stable'), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
