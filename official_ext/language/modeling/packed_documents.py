"""Several documents in one row: who may see whom, and which position each token has.

A row of segment numbers shows it: tokens of one document share a number, 0 is padding. Padding may stand anywhere, on
the left of a prompt too.

Example:

  >>> ids, segments = ext.packing.pack([[11, 12, 13], [21], [31, 32]], length=4)
  >>> ids
  [[11, 12, 13, 21], [31, 32, 0, 0]]
  >>> segments
  [[1, 1, 1, 2], [1, 1, 0, 0]]
  >>> ext.packing.positions(tf.constant(segments)).numpy().tolist()
  [[0, 1, 2, 0], [0, 1, 0, 0]]
"""

import tensorflow as tf

from official_ext.language.modeling import layers


def positions(segments: tf.Tensor) -> tf.Tensor:
  """The place of each token in its own document, from 0 on; 0 for padding.

  Args:
    segments: int32 [b, t]; the tokens of a document stand together.

  Returns:
    int32 [b, t].
  """
  t = tf.shape(segments)[1]
  columns = tf.broadcast_to(tf.range(t)[tf.newaxis], tf.shape(segments))
  before = tf.concat([tf.zeros_like(segments[:, :1]) - 1, segments[:, :-1]], axis=1)
  starts = tf.where(segments != before, columns, 0)
  return tf.where(segments > 0, columns - _running_maximum(starts), 0)


def lengths(positions: tf.Tensor) -> tf.Tensor:
  """How many tokens the part of each token's document has that ends in its row; 1 for padding.

  Args:
    positions: int32 [b, t], of `positions`, or of the next tokens of documents.

  Returns:
    int32 [b, t]: the last position of the document, plus 1.
  """
  t = tf.shape(positions)[1]
  following = tf.concat([positions[:, 1:], tf.zeros_like(positions[:, :1])], axis=1)
  from_end = tf.broadcast_to(t - 1 - tf.range(t)[tf.newaxis], tf.shape(positions))
  ends = tf.reverse(tf.where(following <= positions, from_end, 0), axis=[1])
  return positions + from_end - tf.reverse(_running_maximum(ends), axis=[1]) + 1


def _running_maximum(values):
  """The largest so far in each row of numbers from 0 up: each step looks back twice as far as the one before."""
  t = layers.sizes(values)[1]

  def look_back(shift, values):
    return 2 * shift, tf.maximum(values, tf.pad(values, [[0, 0], [shift, 0]])[:, :t])

  if tf.is_tensor(t):  # XLA knows it.
    return tf.while_loop(lambda shift, _: shift < t, look_back, (tf.constant(1), values))[1]
  shift = 1
  while shift < t:
    shift, values = look_back(shift, values)
  return values


def mask(
  num_queries: int,
  num_keys: int,
  first_query: tf.Tensor | int = 0,
  segments: tf.Tensor | None = None,
  sliding_window: int = 0,
) -> tf.Tensor:
  """Which tokens a token sees: itself and earlier ones, in the same document, within the window.

  Args:
    num_queries: how many tokens look (t).
    num_keys: how many can be seen (s).
    first_query: the column of the first one that looks.
    segments: int32 [b, s]; None for one document in each row.
    sliding_window: how many tokens it sees at most, itself among them; 0 for all.

  Returns:
    bool [b or 1, 1, t, s]. Padding sees nothing.
  """
  queries = (first_query + tf.range(num_queries))[:, tf.newaxis]
  keys = tf.range(num_keys)[tf.newaxis]
  seen = keys <= queries
  if sliding_window:
    seen &= keys > queries - sliding_window
  seen = seen[tf.newaxis]
  if segments is not None:
    # No tf.slice: XLA would compile it again for every value of `first_query`.
    looking = tf.gather(segments, first_query + tf.range(num_queries), axis=1)
    seen &= (looking[:, :, tf.newaxis] == segments[:, tf.newaxis]) & (looking > 0)[:, :, tf.newaxis]
  return seen[:, tf.newaxis]


def pack(documents: list[list[int]], length: int) -> tuple[list[list[int]], list[list[int]]]:
  """Documents in as few rows as first-fit-decreasing finds, padded with 0 on the right.

  Args:
    documents: token ids; none is longer than `length`.
    length: of every row.

  Returns:
    (ids, segments): rows of `length` integers; a row's documents are numbered from 1 on.

  Raises:
    ValueError: for a document that is longer.
  """
  rows: list[list[list[int]]] = []
  for document in sorted(documents, key=len, reverse=True):  # Stable: equal lengths keep their order.
    if len(document) > length:
      raise ValueError(f'A document of {len(document)} tokens does not fit into rows of {length}.')
    fitting = (row for row in rows if sum(map(len, row)) + len(document) <= length)
    row = next(fitting, None)
    if row is None:
      rows.append([document])
    else:
      row.append(document)
  padded = lambda values: values + [0] * (length - len(values))
  ids = [padded([token for document in row for token in document]) for row in rows]
  segments = [padded([number for number, document in enumerate(row, 1) for _ in document]) for row in rows]
  return ids, segments
