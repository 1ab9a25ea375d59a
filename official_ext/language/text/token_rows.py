"""Rows of tokens for `official-ext prepare`: its settings, the format of the records, and the rows of a shard.

No TensorFlow.
"""

from collections.abc import Callable, Iterator, Sequence
import functools
import os
import tempfile

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import yaml_text
from official_ext.data import numbered_records
from official_ext.data import record_report
from official_ext.data import row_encoding
from official_ext.data.prepare import pieces as pieces_lib
from official_ext.language.text import best_fit
from official_ext.language.text import cached_pieces
from official_ext.language.text import text_formats
from official_ext.language.text import text_rows
from official_ext.language.text import token_store
from official_ext.language.text import tokenizer as tokenizer_lib

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
  """The row format of texts: implements `prepare.settings.RowFormat`."""

  kind = 'texts'
  module = __name__
  config_name = 'train_data.yaml'

  def __init__(self, settings: text_formats.TextFields, tokenizer: tokenizer_lib.Tokenizer):
    """Takes the settings of the rows."""
    self._settings = settings
    self._tokenizer = tokenizer

  @property
  def settings(self) -> json_types.JsonObject:
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
  ) -> tuple[tuple[str, ...], json_types.JsonObject]:
    """See base class."""
    columns, example_format = self._first_record(pieces, leaves_out, open_first)
    resolved = {
      'example_format': example_format,
      'tokenizer': self._tokenizer.digest,
      'tokens_version': token_store.VERSION,
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
    self, folder: str, settings: json_types.JsonMapping, notes: Sequence[json_types.JsonMapping]
  ) -> dict[str, bytes]:
    """The values on which an experiment that trains on these rows must agree."""
    del notes
    fields = {name: settings[name] for name in (*text_formats.OF_ROWS, 'label_column') if name in settings}
    task = {'tokenizer_path': os.path.join(folder, _TOKENIZER), 'train_data': {'input_path': folder, **fields}}
    return {self.config_name: yaml_text.dump({'task': task}).encode()}


def rows(
  job: json_types.JsonMapping, records: numbered_records.Records, leaves_out: bool, report: record_report.RecordReport
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
    OSError: there is no room for the tokens, which lie in a temporary folder beside the shard meanwhile.
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


def _parts(store, example_format, how, size) -> Iterator[list[text_rows.Part]]:
  """For each row, where its parts are in the tokens of the shard."""
  bounds = store.bounds.tolist()
  if how == 'wrapped':
    for row in range(text_rows.num_wrapped(len(store.tokens), size)):
      yield text_rows.wrapped_parts(row, store.bounds, size)
    return
  if how == 'best_fit':
    texts = best_fit.best_fit(store.lengths, size)
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
  encoder = cached_pieces.encoder(found) if int(os.environ.get('RAYON_NUM_THREADS') or 1) <= _MAX_THREADS else None
  return found, encoder.encode_batch if encoder else found.encode_batch
