"""Rows of tokens: the layout of texts of any origin. No TensorFlow."""

from collections.abc import Mapping, Sequence

import numpy as np

NO_LABEL = -100  # PyTorch's and with it Hugging Face's.
Row = Mapping[str, np.ndarray]
Part = tuple[int, int]


def lay_out(
  tokens: np.ndarray,
  learned: np.ndarray,
  parts: Sequence[Sequence[Part]],
  size: int,
  fill_token_id: int,
  fills_left: bool = False,
) -> list[Row]:
  """Rows of parts of a stream of tokens, all at once: NumPy's calls for each part by itself would take longest.

  Args:
    tokens: int32 `[n]`.
    learned: uint8 `[n]`, 1 on tokens that are learned.
    parts: for each row (start, end) in the stream of each part.
    size: of a row, in tokens.
    fill_token_id: the padding token.
    fills_left: whether rows end with their parts instead of beginning with them.

  Returns:
    For each row `input_ids`, `labels`, `segment_ids` and `position_ids`, int32 `[size]`: see text_sources.py.
  """
  num_rows = len(parts)
  rows = {
    'input_ids': np.full([num_rows, size], fill_token_id, np.int32),
    'labels': np.full([num_rows, size], NO_LABEL, np.int32),
    'segment_ids': np.zeros([num_rows, size], np.int32),
    'position_ids': np.zeros([num_rows, size], np.int32),
  }
  # Of each part: its row, its number in the row, its length, and the tokens in all parts before it.
  counts = np.array([len(of_row) for of_row in parts], np.int64)
  row = np.repeat(np.arange(num_rows), counts)
  number = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
  starts, ends = np.array([part for of_row in parts for part in of_row], np.int64).reshape(-1, 2).T
  lengths = ends - starts
  before = np.cumsum(lengths) - lengths
  filled = np.bincount(row, lengths, num_rows).astype(np.int64)
  row_starts = np.arange(num_rows) * size + (size - filled if fills_left else 0)
  part_places = row_starts[row] + before - (np.cumsum(filled) - filled)[row]
  # Of each token.
  part = np.repeat(np.arange(len(row)), lengths)
  position = np.arange(len(part)) - before[part]
  source, place = starts[part] + position, part_places[part] + position
  ids = tokens[source]
  has_label = learned[source].astype(bool) & (position > 0)
  for name, values in (
    ('input_ids', ids),
    ('labels', np.where(has_label, ids, NO_LABEL)),
    ('segment_ids', number[part] + 1),
    ('position_ids', position),
  ):
    rows[name].reshape(-1)[place] = values
  return [{name: values[i] for name, values in rows.items()} for i in range(num_rows)]


def num_wrapped(num_tokens: int, size: int) -> int:
  """How many rows a stream of tokens makes that is cut: each begins with the last token of the row before it."""
  return max(1, -(-(num_tokens - 1) // (size - 1))) if num_tokens else 0


def wrapped_range(row: int, num_tokens: int, size: int) -> Part:
  """The position of a row in a stream that is cut."""
  start = row * (size - 1)
  return start, min(start + size, num_tokens)


def texts_in(part: Part, bounds: np.ndarray) -> range:
  """The texts that a part of a stream has tokens from; `bounds` is where each begins, int64 `[texts + 1]`."""
  first, last = np.searchsorted(bounds, [part[0], part[1] - 1], 'right') - 1
  return range(int(first), int(last) + 1)


def wrapped_parts(row: int, bounds: np.ndarray, size: int) -> list[Part]:
  """(start, end) of each text's part in a row of a stream that is cut."""
  start, end = wrapped_range(row, int(bounds[-1]), size)
  return [(max(start, bounds[text]), min(end, bounds[text + 1])) for text in texts_in((start, end), bounds)]


def preference(rows: Sequence[Row]) -> list[Row]:
  """Two rows after the other as one, whose features begin with `chosen_` and `rejected_`."""
  pairs = zip(rows[::2], rows[1::2])
  return [
    {f'{answer}_{name}': values for answer, row in zip(('chosen', 'rejected'), pair) for name, values in row.items()}
    for pair in pairs
  ]
