"""Text as a source: rows of tokens by number, ready for a model.

Names and meanings are Hugging Face's: `input_ids`; `labels`, the same numbers, -100 on tokens that no loss is on;
`position_ids`, which begin at 0 with each text. `segment_ids` say which tokens see each other: 1 for those of the row's
first text, 2 for those of its second, 0 for padding. Labels are not shifted: the logits at t are held
against the label at t + 1. The first token of each text has the label -100: nothing comes before it.
"""

import abc
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.data import bad_examples
from official_ext.data import batch_share
from official_ext.data import collators
from official_ext.data import data_identity
from official_ext.data import input_files
from official_ext.data import numbered_records
from official_ext.data import prepared_folders
from official_ext.data import record_files
from official_ext.data import sources
from official_ext.language.text import best_fit
from official_ext.language.text import chat_templates
from official_ext.language.text import prepared_texts
from official_ext.language.text import text_formats
from official_ext.language.text import text_mixture
from official_ext.language.text import text_rows
from official_ext.language.text import token_store
from official_ext.language.text import tokenizer as tokenizer_lib

PACKINGS = text_formats.PACKINGS
_MAX_OPEN = 8
_MAX_NAMED = 3


class TextSource(sources.Source):
  """Rows of tokens. Its examples are dictionaries of int32 arrays `[seq_length]`.

  Attributes:
    report: counts of the records: read, cut, left out.
    store: the tokens of all texts.
    tokenizer: the one that made them.
  """

  _rows_per_example = 1

  reads_in_blocks = True

  def __init__(
    self,
    store: token_store.TokenStore,
    records: numbered_records.Records,
    tokenizer: tokenizer_lib.Tokenizer,
    seq_length: int,
    settings: json_types.JsonMapping,
    params: Any,
  ):
    """Takes the result of `open_source`."""
    self.store = store
    self._is_training, self._max_samples = params.is_training, params.max_samples
    self.report = store.report
    self.tokenizer = tokenizer
    # Not as files that are mapped into memory, of which NumPy makes an object for each part.
    self._tokens, self._learned, self._bounds = (
      array.view(np.ndarray) for array in (store.tokens, store.learned, store.bounds)
    )
    self._records = records
    self._seq_length = seq_length
    self._settings = dict(settings)

  @property
  def bytes_per_example(self) -> int:
    """See base class: at most, which is two rows of four features."""
    return 8 * np.dtype(np.int32).itemsize * self._seq_length

  @abc.abstractmethod
  def examples_of(self, index: int) -> Sequence[int]:
    """The numbers of the examples that a row has text from."""

  def record(self, number: int) -> json_types.JsonObject:
    """A record of the file, located by a row's `record`."""
    return self._records.read(number)

  def describe(self, index: int) -> str:
    examples = self.examples_of(index)
    named = [self._records.place(int(self.store.records[example])) for example in examples[:_MAX_NAMED]]
    more = f' and {len(examples) - _MAX_NAMED} more' if len(examples) > _MAX_NAMED else ''
    return f'row {index} ({"; ".join(named)}{more})'

  def identity(self) -> data_identity.Identity:
    report = self.report
    return {
      **super().identity(),
      **data_identity.of_files(self._records.files),
      'content': self._records.digest[:12],
      'tokenizer': self.tokenizer.digest,
      'num_records': report.records,
      'num_records_left_out': report.bad_records + report.without_loss,
      'num_tokens': report.tokens,
      'num_tokens_cut': report.lost_tokens,
      **self._settings,
      **self._records.division,
    }

  def summary(self) -> str:
    # Of those that evaluate it is clear that they are held out.
    division = self._records.division if self._is_training else {}
    limit = f'; at most {self._max_samples} are read: max_samples' if self._max_samples >= 0 else ''
    tokens = self.report.token_summary(len(self) * self._rows_per_example * self._seq_length)
    return f'{self.report.summary(len(self), division)}{limit}; {tokens}'

  def _rows(self, parts: Sequence[Sequence[text_rows.Part]], fills_left: bool = False) -> list[collators.Example]:
    """Rows of parts of the store's tokens: see `text_rows.lay_out`."""
    fill = self.tokenizer.fill_token_id
    return list(text_rows.lay_out(self._tokens, self._learned, parts, self._seq_length, fill, fills_left))

  def _part(self, text: int) -> tuple[int, int]:
    return self._bounds[text], self._bounds[text + 1]


class WholeTexts(TextSource):
  """Rows of whole texts: one in each, or as many as go into it."""

  def __init__(self, *args: Any, rows: best_fit.Rows):
    """Takes the assignment of texts to rows."""
    super().__init__(*args)
    self._texts = rows

  def __len__(self) -> int:
    return len(self._texts)

  def examples_of(self, index: int) -> Sequence[int]:
    return self._texts.of(index).tolist()

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    return self._rows([[self._part(text) for text in self._texts.of(index).tolist()] for index in indices])


class WrappedTexts(TextSource):
  """All texts as one stream, cut into rows.

  A row begins with the last token of the row before it, so that each token but the first of a text is learned once.
  """

  def __len__(self) -> int:
    return text_rows.num_wrapped(len(self.store.tokens), self._seq_length)

  def examples_of(self, index: int) -> Sequence[int]:
    return text_rows.texts_in(
      text_rows.wrapped_range(index, len(self.store.tokens), self._seq_length), self.store.bounds
    )

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    return self._rows([text_rows.wrapped_parts(index, self._bounds, self._seq_length) for index in indices])


class Prompts(TextSource):
  """A prompt in each row, at its right end, so that all answers begin at the same place. `record`: see `record`."""

  def __len__(self) -> int:
    return len(self.store.records)

  def examples_of(self, index: int) -> Sequence[int]:
    return [index]

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    rows = self._rows([[self._part(index)] for index in indices], fills_left=True)
    return [
      {name: values for name, values in row.items() if name != 'labels'} | {'record': np.int64(record)}
      for row, record in zip(rows, self.store.records[np.asarray(indices)])
    ]


class Preferences(TextSource):
  """Two answers to a prompt: the features of each, under names that begin with `chosen_` and with `rejected_`."""

  _rows_per_example = 2

  def __len__(self) -> int:
    return len(self.store.records)

  def examples_of(self, index: int) -> Sequence[int]:
    return [index]

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    rows = self._rows([[self._part(2 * index + number)] for index in indices for number in range(2)])
    return list(text_rows.preference(rows))


class Unpaired(TextSource):
  """Single answers with a label, int32 `[]` `is_desirable`: a text in each row.

  Both answers of a pair are examples: first all chosen ones, then all rejected ones. Neighbours answer other prompts,
  which KTO's estimate of the divergence requires.
  """

  def __len__(self) -> int:
    return len(self.store.lengths)

  def examples_of(self, index: int) -> Sequence[int]:
    return [index % len(self.store.records)]

  def _text(self, index):
    side, example = divmod(index, len(self.store.records))
    return example * (len(self) // len(self.store.records)) + side

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    texts = [self._text(index) for index in indices]
    rows = self._rows([[self._part(text)] for text in texts])
    desirable = self.store.desirable
    assert desirable is not None
    return [{**row, 'is_desirable': np.int32(desirable[text])} for row, text in zip(rows, texts)]

  def summary(self) -> str:
    assert self.store.desirable is not None
    return f'{super().summary()}; {int(self.store.desirable.sum())} of {len(self)} answers are desirable'


def tokenizer_of(params: Any, tokenizer: tokenizer_lib.Tokenizer) -> tokenizer_lib.Tokenizer:
  """The tokenizer of text data, with the chat template that the configuration names.

  Args:
    params: a `TextDataConfig`.
    tokenizer: of the model.

  Raises:
    UserError: the template cannot be read.
  """
  if not params.chat_template_path:
    return tokenizer
  path = batch_share.path_of(params)
  return tokenizer.with_chat_template(chat_templates.read(params.chat_template_path, f'{path}.chat_template_path'))


@tf.autograph.experimental.do_not_convert  # Tasks may request a report while they are traced.
def open_source(
  params: Any, tokenizer: tokenizer_lib.Tokenizer, records: numbered_records.Records | None = None
) -> TextSource | prepared_texts.PreparedTexts | text_mixture.TextMixture:
  """The rows of text data, as a source for `build_dataset`.

  The first time all texts are turned into tokens, which are kept in the cache; records cut or left out are reported in
  warnings, in `report`, and in the identity of the data that checkpoints note. Opened again in this process with the
  same files and settings, it is the same source.

  Args:
    params: a `TextDataConfig`.
    tokenizer: makes tokens of texts, and texts of messages.
    records: where the texts are from; None: the files of `params.input_path`, or the rows that `official-ext prepare`
      has made of them there.

  Raises:
    UserError: there are no files or no records; rows were prepared with other settings; a record cannot be used, under
      `on_bad_example=error`; there is no chat template and one is needed.
    StorageError: there is no room for the tokens.
  """
  path = batch_share.path_of(params)
  if params.weights:
    return _open_mixture(params, tokenizer, records, path)
  tokenizer = tokenizer_of(params, tokenizer)
  prepared = None if records is not None else prepared_folders.find(params.input_path, f'{path}.input_path')
  if prepared is not None:
    make = lambda: prepared_texts.PreparedTexts(prepared, params, tokenizer, path)
    own = prepared.folder, prepared.content, tokenizer.digest, path, params.split, params.max_samples
    return _kept((*own, *(getattr(params, name) for name in _OF_SOURCE)), make)
  if params.use_chat_template is None:
    params = dataclasses.replace(params, use_chat_template=tokenizer.has_chat_template)
  if records is None:
    records = record_files.open_records(params.input_path, params.split, params.max_samples, f'{path}.input_path')
  elif params.max_samples >= 0:
    records = numbered_records.ConcatenatedRecords([records], params.max_samples)
  if not len(records):
    raise errors.UserError(f'{path}.input_path: there are no records')
  key = (
    records.digest,
    tuple(records.files),
    tokenizer.digest,
    path,
    tuple(records.division.items()),
    params.max_samples,
    tuple(getattr(params, name) for name in _OF_SOURCE),
  )
  return _kept(key, lambda: _make_source(params, tokenizer, records, path))


def _open_mixture(params, tokenizer, records, path):
  """A source for each path of `input_path`, with the records among these, if there are such, that are from it."""
  patterns = list(input_files.patterns(params.input_path))
  if len(patterns) != len(params.weights):
    raise errors.UserError(
      f'{path}.weights: {len(params.weights)} weights for {len(patterns)} paths; name a weight for each path of '
      f'{path}.input_path'
    )
  each = [dataclasses.replace(params, input_path=pattern, weights=()) for pattern in patterns]
  parts: list[numbered_records.Records | None] = [None] * len(patterns)
  if records is not None:
    field = f'{path}.input_path'
    ends = np.cumsum([len(record_files.open_records(pattern, params.split, field=field)) for pattern in patterns])
    selected = isinstance(records, numbered_records.SelectedRecords)
    numbers = records.numbers if selected else np.arange(len(records))
    of = np.searchsorted(ends, numbers, side='right')
    parts = [numbered_records.SelectedRecords(records, np.flatnonzero(of == part)) for part in range(len(patterns))]
    counts = np.bincount(of, minlength=len(patterns))
    for pattern, count, size in zip(patterns, counts, np.diff(ends, prepend=0)):
      if size and not count:
        raise errors.UserError(
          f'{path}.weights: all records of {pattern} are held out for validation; set '
          'task.validation_data.input_path or a smaller task.validation_share'
        )
  opened = [open_source(one, tokenizer, part) for one, part in zip(each, parts)]
  return text_mixture.TextMixture(opened, params.weights, path, patterns)


def _kept(key: Any, make: Callable[[], Any]) -> Any:
  """A source that was opened before, or else is now."""
  if key not in _open:
    while len(_open) >= _MAX_OPEN:
      del _open[next(iter(_open))]
    _open[key] = make()
  return _open[key]


_OF_SOURCE = (*text_formats.OF_ROWS, 'label_column', 'on_bad_example', 'cache_dir')
_open: dict[Any, TextSource | prepared_texts.PreparedTexts] = {}


def _make_source(params, tokenizer, records, path):
  with _told_at(path):
    text_format = text_formats.TextFormat(params, tokenizer, records, path)
    _check_packing(params, text_format, path)
    limits = token_store.Limits(
      params.max_input_length, params.max_content_length, 0 if params.packing == 'wrapped' else params.seq_length
    )
    settings = {name: getattr(params, name) for name in text_formats.OF_FORMAT if name != 'example_format'}
    if text_format.is_unpaired:
      settings['label_column'] = params.label_column
    leaves_out = params.on_bad_example == 'skip'
    store = token_store.open_store(records, text_format, tokenizer, settings, limits, leaves_out, params.cache_dir)
  for line in store.report.warnings(path):
    logging.warning('%s', line)
  if not store.report.examples:
    raise errors.UserError(f'{path}: none of the {len(records)} records can be used')
  settings = {name: getattr(params, name) for name in text_formats.OF_LENGTH}
  name = 'unpaired' if text_format.is_unpaired else text_format.name
  common = store, records, tokenizer, params.seq_length, {'format': name, **settings}, params
  if text_format.is_unpaired:
    return Unpaired(*common)
  if text_format.name == 'preference':
    return Preferences(*common)
  if text_format.name == 'prompt':
    return Prompts(*common)
  if params.packing == 'wrapped':
    return WrappedTexts(*common)
  if params.packing == 'best_fit':
    return WholeTexts(*common, rows=best_fit.best_fit(store.lengths, params.seq_length))
  return WholeTexts(*common, rows=best_fit.one_each(len(store.records)))


def _check_packing(params, text_format, path):
  if params.packing != 'none' and text_format.name in text_formats.ONE_EACH:
    raise errors.UserError(
      f'{path}.packing: {params.packing}: rows of the format {text_format.name} hold one example each'
    )


@contextlib.contextmanager
def _told_at(path: str) -> Iterator[None]:
  """Puts the dotted path of the data configuration before the message about a record."""
  try:
    yield
  except bad_examples.BadExampleError as error:
    hint = f'repair or replace it, or set {path}.on_bad_example=skip'
    raise bad_examples.BadExampleError(f'{path}: {error}; {hint}') from error
