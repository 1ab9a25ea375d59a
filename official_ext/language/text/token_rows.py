"""Lays out texts of any origin as rows of tokens, and makes the rows that `official-ext prepare` writes.

`pack_best_fit` chooses the texts that share a row: the same for the same lengths. No TensorFlow.
"""

import bisect
import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import os
import tempfile

import numpy as np

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import json_values
from official_ext.data import numbered_records
from official_ext.data import record_report
from official_ext.data import row_encoding
from official_ext.data.prepare import pieces as pieces_lib
from official_ext.language.text import text_formats
from official_ext.language.text import token_store
from official_ext.language.text import tokenizer as tokenizer_lib


@dataclasses.dataclass(frozen=True)
class PackedTexts:
  """Texts by row.

  Attributes:
    members: the numbers of the texts, int64 `[texts]`, grouped by row.
    starts: where in it each row begins, int64 `[rows + 1]`.
  """

  members: np.ndarray
  starts: np.ndarray

  def __len__(self) -> int:
    return len(self.starts) - 1

  def of(self, row: int) -> np.ndarray:
    """The texts of a row."""
    return self.members[self.starts[row] : self.starts[row + 1]]


def one_text_each(num_texts: int) -> PackedTexts:
  """A row for each text."""
  return PackedTexts(np.arange(num_texts), np.arange(num_texts + 1))


def pack_best_fit(lengths: np.ndarray, size: int) -> PackedTexts:
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
  rooms: list[int] = []  # The keys of rows_by_room, sorted.
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


def _in_order(row_of: np.ndarray, num_rows: int) -> PackedTexts:
  first = np.full(num_rows, len(row_of))
  np.minimum.at(first, row_of, np.arange(len(row_of)))
  rank = np.empty(num_rows, np.int64)
  rank[np.argsort(first)] = np.arange(num_rows)
  row_of = rank[row_of]
  counts = np.bincount(row_of, minlength=num_rows)
  return PackedTexts(np.argsort(row_of, kind='stable'), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


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


def preference_row(rows: Sequence[Row]) -> list[Row]:
  """Two rows after the other as one, whose features begin with `chosen_` and `rejected_`."""
  pairs = zip(rows[::2], rows[1::2])
  return [
    {f'{answer}_{name}': values for answer, row in zip(('chosen', 'rejected'), pair) for name, values in row.items()}
    for pair in pairs
  ]


_TOKENIZER = 'tokenizer'  # The folder of the tokenizer in a prepared folder.
_MAX_THREADS = 4  # Of the tokenizer in a process that looks pieces up.
_PATH = 'prepare'  # Replaces a dotted path in errors, which name flags here.


# Of fields that are not any text, any number from 0 on, or true and false.
CHOICES = {
  'example_format': tuple(name for name in text_formats.FORMATS if name != 'prompt'),
  'loss_on': text_formats.LOSS_ON,
  'packing': text_formats.PACKINGS,
}


class TokenRows:
  """The row format of texts: implements `prepare.planning.RowFormat`."""

  kind = 'texts'
  module = __name__
  config_name = 'train_data.yaml'

  def __init__(self, settings: text_formats.TextFields, tokenizer: tokenizer_lib.Tokenizer):
    """Takes the settings of the rows."""
    self._settings = settings
    self._tokenizer = tokenizer

  @property
  def settings(self) -> json_values.JsonObject:
    """See base class."""
    found = {name: getattr(self._settings, name) for name in text_formats.OF_ROWS}
    # Of this format alone: other folders keep the settings that they were prepared with.
    return {**found, 'label_column': self._settings.label_column} if found['example_format'] == 'unpaired' else found

  @property
  def files(self) -> dict[str, bytes]:
    """The files of the tokenizer."""
    return {os.path.join(_TOKENIZER, name): content for name, content in self._tokenizer.files.items()}

  def resolve(
    self,
    pieces: Sequence[pieces_lib.Piece],
    leaves_out: bool,
    open_first: Callable[[pieces_lib.Piece], numbered_records.Records],
  ) -> tuple[tuple[str, ...], json_values.JsonObject]:
    """See base class."""
    columns, example_format = self._first_record(pieces, leaves_out, open_first)
    resolved = {
      'example_format': example_format,
      'tokenizer': self._tokenizer.digest,
      'tokens_version': token_store.STORE_VERSION,
    }
    return columns, resolved

  def _first_record(self, pieces, leaves_out, open_first) -> tuple[tuple[str, ...], str]:
    """(columns of the first record that can be read, the format of texts by them)."""
    for piece in pieces:
      records = open_first(piece)
      for number in range(len(records)):
        try:
          first = records.read(number)
        except ValueError:
          if leaves_out:
            continue
          raise
        text_format = self._format_of(numbered_records.SelectedRecords(records, [number]))
        if self._settings.packing != 'none' and text_format.name in text_formats.ONE_EACH:
          raise errors.UserError(
            f'--packing: {self._settings.packing}: rows of the format {text_format.name} hold one example each'
          )
        if text_format.is_unpaired and text_format.name != 'unpaired':
          raise errors.UserError(
            '--example_format: unpaired: the records are pairs; expected a prompt, an answer and a label in each'
          )
        return tuple(first), text_format.name
    raise errors.UserError('INPUT: there are no records, or none at the beginning of a file that can be read')

  def _format_of(self, records):
    try:
      return text_formats.TextFormat(self._settings, self._tokenizer, records, _PATH)
    except errors.UserError as error:
      raise errors.UserError(str(error).replace(f'{_PATH}.', '--', 1)) from error

  def results(
    self, folder: str, settings: json_values.JsonMapping, notes: Sequence[json_values.JsonMapping]
  ) -> dict[str, bytes]:
    """The values on which an experiment that trains on these rows must agree."""
    del notes
    fields = {name: settings[name] for name in (*text_formats.OF_ROWS, 'label_column') if name in settings}
    task = {'tokenizer_path': os.path.join(folder, _TOKENIZER), 'train_data': {'input_path': folder, **fields}}
    return {self.config_name: config_text.dump({'task': task}).encode()}


def rows(
  job: json_values.JsonMapping, records: numbered_records.Records, leaves_out: bool, report: record_report.RecordReport
) -> Iterator[bytes]:
  """Yields the rows of a shard.

  Args:
    job: of `planning.Plan.job`.
    records: of the shard.
    leaves_out: whether bad records are left out.
    report: filled in.

  Raises:
    BadExampleError: a record cannot be used, and none is to be left out.
    UserError: the folder's tokenizer has changed.
    OSError: there is no room for the tokens, which lie in a temporary folder next to the shard meanwhile.
  """
  settings = job['settings']
  names = (*text_formats.OF_ROWS, 'label_column')
  text = text_formats.TextFields(**{name: settings[name] for name in names if name in settings})
  tokenizer, encode_batch = _tokenizer(os.path.join(job['folder'], _TOKENIZER), settings['tokenizer'])
  # The format was found once, for all shards: a broken record at the beginning of one must not change it.
  first = numbered_records.ListRecords([dict.fromkeys(job['columns'])])
  text_format = text_formats.TextFormat(text, tokenizer, first, _PATH)
  size = text.seq_length
  limits = token_store.Limits(text.max_input_length, text.max_content_length, 0 if text.packing == 'wrapped' else size)
  with tempfile.TemporaryDirectory(prefix='.tokens-', suffix='.partial', dir=job['folder']) as place:
    store = token_store.write_store(place, records, text_format, tokenizer, limits, leaves_out, encode_batch)
    vars(report).update(vars(store.report))
    for row, parts in enumerate(_parts(store, text_format.name, text.packing, size)):
      label = b'' if store.desirable is None else bytes(store.desirable[row : row + 1])
      yield row_encoding.encode_texts(store.tokens, store.learned, parts) + label


def _parts(store, example_format, how, size) -> Iterator[list[Part]]:
  """For each row, where its parts are in the tokens of the shard."""
  bounds = store.bounds.tolist()
  if how == 'wrapped':
    for row in range(num_wrapped(len(store.tokens), size)):
      yield wrapped_parts(row, store.bounds, size)
    return
  if how == 'best_fit':
    texts = pack_best_fit(store.lengths, size)
    row_texts = (texts.of(row).tolist() for row in range(len(texts)))
  else:
    each = 2 if example_format == 'preference' else 1
    row_texts = ([*range(start, start + each)] for start in range(0, len(bounds) - 1, each))
  for row in row_texts:
    yield [(bounds[text], bounds[text + 1]) for text in row]


@functools.lru_cache(maxsize=1)
def _tokenizer(folder: str, digest: str) -> tuple[tokenizer_lib.Tokenizer, token_store.EncodeBatch]:
  """(the tokenizer, the faster of its functions that encode plain texts)."""
  found = tokenizer_lib.Tokenizer.load(folder)
  if found.digest != digest:
    raise errors.UserError(f'{folder}: is another tokenizer than the preparation began with; prepare another folder')
  # With many threads whole texts take less time: pieces are looked up by one.
  encoder = token_store.cached_encoder(found) if int(os.environ.get('RAYON_NUM_THREADS') or 1) <= _MAX_THREADS else None
  return found, encoder.encode_batch if encoder else found.encode_batch


def learned_ends(rows: Iterable[Row], tokenizer: tokenizer_lib.Tokenizer) -> collections.Counter[int | None]:
  """How often each token ends a part that is learned, such as a turn of the assistant; None: no such token does.

  An end is the last added token of a part, such as <|im_end|>, if nothing but white space follows it. A part that fills
  its row up may have been cut, and counts only if it has an end.

  Args:
    rows: see `lay_out`; of pairs the chosen answers count.
    tokenizer: of the rows.
  """
  found: collections.Counter[int | None] = collections.Counter()
  added = tokenizer.added_token_ids
  for row in rows:
    prefix = next((name.removesuffix('labels') for name in row if name in ('labels', 'chosen_labels')), None)
    if prefix is None:
      continue
    ids, labels, segments = (row[f'{prefix}{name}'] for name in ('input_ids', 'labels', 'segment_ids'))
    is_learned = labels != NO_LABEL
    follows = np.zeros_like(is_learned)
    follows[:-1] = is_learned[1:] & (segments[1:] == segments[:-1])
    for place in np.flatnonzero(is_learned & ~follows).tolist():
      end = _end_at(ids, is_learned, place, added, tokenizer)
      if end is not None or place < len(ids) - 1:
        found[end] += 1
  return found


def _end_at(ids, is_learned, place, added, tokenizer):
  while place >= 0 and is_learned[place]:
    if int(ids[place]) in added:
      return int(ids[place])
    if tokenizer.decode([int(ids[place])]).strip():
      return None
    place -= 1
  return None
