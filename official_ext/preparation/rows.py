"""From the records of a shard to what is written of them, in order. No TensorFlow."""

from collections.abc import Callable, Iterator
import functools
import os
import tempfile
from typing import Any

from official_ext import errors
from official_ext.data import bad_examples
from official_ext.data import packing
from official_ext.data import row_encoding
from official_ext.data import text_formats
from official_ext.data import text_records
from official_ext.data import text_rows
from official_ext.data import token_store
from official_ext.data import tokenizer as tokenizer_lib
from official_ext.preparation import planning
from official_ext.preparation import settings as settings_lib

_HINT = 'repair or replace it, or give --on_bad_example=skip'


def write_rows(
  job: dict[str, Any], records: text_records.Records, write: Callable[[bytes], None]
) -> token_store.Report:
  """Writes the rows of a shard.

  Args:
    job: of `Plan.job`.
    records: of its pieces.
    write: takes each row.

  Returns:
    What became of the records.

  Raises:
    BadExampleError: a record cannot be used, and none is to be left out.
    OSError: there is no room for the tokens, which lie in a temporary folder beside the shard meanwhile.
  """
  leaves_out = job['settings']['on_bad_example'] == 'skip'
  make = _text_rows if job['kind'] == 'texts' else _example_rows
  report = token_store.Report(records=len(records))
  try:
    for row in make(job, records, leaves_out, report):
      write(row)
  except bad_examples.BadExampleError as error:
    raise bad_examples.BadExampleError(f'{error}; {_HINT}') from error
  return report


def _example_rows(job, records, leaves_out, report) -> Iterator[bytes]:
  for number in range(len(records)):
    try:
      row = _example_row(records, number)
    except bad_examples.BadExampleError as error:
      if not leaves_out:
        raise
      report.bad_records += 1
      if len(report.named) < token_store.MAX_NAMED:
        report.named.append(str(error))
    else:
      report.examples += 1
      yield row


def _example_row(records, number):
  record = records.read(number)
  try:
    return row_encoding.encode_example(record)
  except (ValueError, RecursionError) as error:
    raise bad_examples.BadExampleError(f'{records.place(number)}: {bad_examples.one_line(error)}') from error


def _text_rows(job, records, leaves_out, report) -> Iterator[bytes]:
  settings, names = job['settings'], settings_lib.TextSettings.__dataclass_fields__
  text = settings_lib.TextSettings(**{name: settings[name] for name in names})
  tokenizer = _tokenizer(os.path.join(job['folder'], planning.TOKENIZER), settings['tokenizer'])
  # The format was found once, for all shards: a broken record at the beginning of one must not change it.
  first = text_records.ListRecords([dict.fromkeys(job['columns'])])
  text_format = text_formats.TextFormat(text, tokenizer, first, 'prepare')
  size = text.seq_length
  limits = token_store.Limits(text.max_input_length, text.max_content_length, 0 if text.packing == 'wrapped' else size)
  with tempfile.TemporaryDirectory(prefix='.tokens-', suffix='.partial', dir=job['folder']) as place:
    store = token_store.write_store(place, records, text_format, tokenizer, limits, leaves_out)
    vars(report).update(vars(store.report))
    for parts in _parts(store, text_format.name, text.packing, size):
      yield row_encoding.encode_texts(store.tokens, store.learned, parts)


def _parts(store, example_format, how, size) -> Iterator[list[text_rows.Part]]:
  """For each row, where its parts are in the tokens of the shard."""
  bounds = store.bounds.tolist()
  if how == 'wrapped':
    for row in range(text_rows.num_wrapped(len(store.tokens), size)):
      yield text_rows.wrapped_parts(row, store.bounds, size)
    return
  if how == 'best_fit':
    texts = packing.best_fit(store.lengths, size)
    rows = (texts.of(row).tolist() for row in range(len(texts)))
  else:
    each = 2 if example_format == 'preference' else 1
    rows = ([*range(start, start + each)] for start in range(0, len(bounds) - 1, each))
  for row in rows:
    yield [(bounds[text], bounds[text + 1]) for text in row]


@functools.lru_cache(maxsize=1)
def _tokenizer(folder: str, digest: str) -> tokenizer_lib.Tokenizer:
  found = tokenizer_lib.Tokenizer.load(folder)
  if found.digest != digest:
    raise errors.UserError(f'{folder}: is another tokenizer than the preparation began with; prepare another folder')
  return found
