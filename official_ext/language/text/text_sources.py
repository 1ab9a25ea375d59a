"""Text as a source: rows of tokens by number, ready for a model; and mixtures of sources with a fixed share of each.

Names and meanings are Hugging Face's: `input_ids`; `labels`, the same numbers, -100 on tokens that no loss is on;
`position_ids`, which begin at 0 with each text. `segment_ids` say which tokens see each other: 1 in the row's first
text, 2 in its second, 0 on padding. Labels are not shifted: the logits at t are compared with the label at t + 1. The
first token of each text has the label -100: no token comes before it.
"""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import fractions
import math
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.data import bad_examples
from official_ext.data import batch_reader
from official_ext.data import collators
from official_ext.data import data_identity
from official_ext.data import input_files
from official_ext.data import numbered_records
from official_ext.data import record_files
from official_ext.data import record_report
from official_ext.data import sources
from official_ext.language.text import chat_templates
from official_ext.language.text import prepared_texts
from official_ext.language.text import text_formats
from official_ext.language.text import token_rows
from official_ext.language.text import token_store
from official_ext.language.text import tokenizer as tokenizer_lib

_MAX_REPEATS = 1000


class TextMixture(sources.Source):
  """A mixture of sources.

  An epoch is as short as it can be with every row of every source in it: a source whose share is above its size is
  repeated as a whole, and the rest of its rows are spread evenly over it. Row n of the mixture is a row of one source
  by arithmetic alone, so that the batch at step s stays a function of (seed, s).

  Attributes:
    parts: the sources.
    counts: how many rows of an epoch are from each.
    tokenizer: of the first one.
  """

  reads_in_blocks = True

  def __init__(self, parts: Sequence[Any], weights: Sequence[float], path: str, names: Sequence[str]):
    """Mixes sources.

    Args:
      parts: sources of rows of the same features: see `text_sources`.
      weights: the share of each, above 0; they need not sum up to 1.
      path: the dotted path of the data configuration, for messages.
      names: of the sources, such as their files, for messages.

    Raises:
      UserError: the rows have different features; an epoch would repeat a source more than 1,000 times.
    """
    self.parts = list(parts)
    self._weights = [float(weight) for weight in weights]
    self.counts = num_rows_of([len(part) for part in self.parts], self._weights)
    for part, count, name in zip(self.parts, self.counts, names, strict=True):
      if count > _MAX_REPEATS * len(part):
        raise errors.UserError(
          f'{path}.weights: {name} would be repeated {math.ceil(count / len(part)):,} times in an epoch, at most '
          f'{_MAX_REPEATS:,} are possible; lower its weight, or raise those of the others'
        )
    self._ends = np.cumsum(self.counts)
    self._first_records = np.cumsum([0, *(part.report.records for part in self.parts)])
    self.tokenizer = self.parts[0].tokenizer
    features = [sorted(part[0]) for part in self.parts]
    if any(names != features[0] for names in features):
      raise errors.UserError(
        f'{path}.weights: the sources have rows of different kinds: {", ".join(features[0])} and '
        f'{", ".join(next(names for names in features if names != features[0]))}; mix records of one example_format'
      )

  def __len__(self) -> int:
    return int(self._ends[-1])

  @property
  def bytes_per_example(self) -> int:
    """See base class: the largest source's."""
    return max(part.bytes_per_example for part in self.parts)

  @property
  def report(self) -> record_report.RecordReport:
    """The sum of the reports of all sources, each once."""
    return record_report.RecordReport.total(part.report for part in self.parts)

  def place(self, index: int) -> tuple[int, int]:
    """(which source, the number of the row in it) of a row of the mixture."""
    part = int(np.searchsorted(self._ends, index, side='right'))
    number, size = index - int(self._ends[part]) + self.counts[part], len(self.parts[part])
    rest = self.counts[part] % size
    whole = self.counts[part] - rest
    return part, number % size if number < whole else (number - whole) * size // rest

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    places = [self.place(int(index)) for index in indices]
    found: list[Any] = [None] * len(places)
    for number, part in enumerate(self.parts):
      here = [position for position, (of, _) in enumerate(places) if of == number]
      rows = part.fetch([places[position][1] for position in here]) if here else []
      for position, row in zip(here, rows):
        if 'record' in row:
          row = {**row, 'record': row['record'] + self._first_records[number]}
        found[position] = row
    return found

  def record(self, number: int) -> json_values.JsonObject:
    """A record, located by a row's `record`."""
    part = int(np.searchsorted(self._first_records, number, side='right')) - 1
    return self.parts[part].record(number - int(self._first_records[part]))

  def describe(self, index: int) -> str:
    part, row = self.place(index)
    return self.parts[part].describe(row)

  def identity(self) -> data_identity.Identity:
    """See base class: an entry that is the same for all sources, such as their division, or a list of all."""
    found: dict[str, list[Any]] = {}
    for part in self.parts:
      for name, value in part.identity().items():
        found.setdefault(name, []).append(value)
    common = {
      name: values[0] if all(value == values[0] for value in values) else values for name, values in found.items()
    }
    return {**common, **super().identity(), 'weights': self._weights}

  def balance(self) -> list[json_values.JsonObject]:
    """The accounts of all sources."""
    return [account for part in self.parts for account in part.balance()]

  def summary(self) -> str:
    lines = [
      f'{count} rows of {len(part)} ({100 * count / len(self):.1f} %): {part.summary()}'
      for part, count in zip(self.parts, self.counts)
    ]
    return f'{len(self)} rows in an epoch, a mixture: {"; ".join(lines)}'


def num_rows_of(lengths: Sequence[int], weights: Sequence[float]) -> list[int]:
  """How many rows of an epoch are from each source: as few as have every row of every source, in the given shares.

  Args:
    lengths: the rows of each source, above 0.
    weights: see `TextMixture`.

  Returns:
    A number at least as large as the length, for each source; the shares are met up to one row.
  """
  exact = [fractions.Fraction(repr(float(weight))) for weight in weights]  # 0.1 is a tenth.
  shares = [weight / sum(exact) for weight in exact]
  total = max(math.ceil(length / share) for length, share in zip(lengths, shares))
  counts = [math.floor(total * share) for share in shares]
  lost = sorted(range(len(shares)), key=lambda number: counts[number] - total * shares[number])
  for number in lost[: total - sum(counts)]:
    counts[number] += 1
  return counts


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
    settings: json_values.JsonMapping,
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

  def record(self, number: int) -> json_values.JsonObject:
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

  def balance(self) -> list[json_values.JsonObject]:
    """The account of the records; records that evaluate are left out of training."""
    found = self.report.balance(', '.join(self._records.files[:1]) or type(self).__name__)
    division: Mapping[str, Any] = self._records.division if self._is_training else {}
    num_held_out = division.get('num_held_out', 0)
    found.found += num_held_out
    found.left_out['held out for validation'] = num_held_out
    return [found.values()]

  def summary(self) -> str:
    # Records that evaluate are clearly held out.
    division = self._records.division if self._is_training else {}
    limit = f'; at most {self._max_samples} are read: max_samples' if self._max_samples >= 0 else ''
    tokens = self.report.token_summary(len(self) * self._rows_per_example * self._seq_length)
    return f'{self.report.summary(len(self), division)}{limit}; {tokens}'

  def _rows(self, parts: Sequence[Sequence[token_rows.Part]], fills_left: bool = False) -> list[collators.Example]:
    """Rows of parts of the store's tokens: see `token_rows.lay_out`."""
    fill = self.tokenizer.fill_token_id
    return list(token_rows.lay_out(self._tokens, self._learned, parts, self._seq_length, fill, fills_left))

  def _part(self, text: int) -> tuple[int, int]:
    return self._bounds[text], self._bounds[text + 1]


class WholeTexts(TextSource):
  """Rows of whole texts: one in each, or as many as go into it."""

  def __init__(self, *args: Any, rows: token_rows.PackedTexts):
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
    return token_rows.num_wrapped(len(self.store.tokens), self._seq_length)

  def examples_of(self, index: int) -> Sequence[int]:
    return token_rows.texts_in(
      token_rows.wrapped_range(index, len(self.store.tokens), self._seq_length), self.store.bounds
    )

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    return self._rows([token_rows.wrapped_parts(index, self._bounds, self._seq_length) for index in indices])


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
    return list(token_rows.preference_row(rows))


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


def example_digests(source: TextSource | prepared_texts.PreparedTexts | TextMixture) -> np.ndarray:
  """A number for each example, equal for examples of the same tokens: uint64 `[examples]`.

  Args:
    source: of `open_source`; of rows that were prepared there are no examples.
  """
  if isinstance(source, TextMixture):
    return np.concatenate([example_digests(part) for part in source.parts])
  return source.store.example_digests() if isinstance(source, TextSource) else np.zeros([0], np.uint64)


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
  path = batch_reader.config_path(params)
  return tokenizer.with_chat_template(chat_templates.read(params.chat_template_path, f'{path}.chat_template_path'))


@tf.autograph.experimental.do_not_convert  # Tasks may request a report while they are traced.
def open_source(
  params: Any, tokenizer: tokenizer_lib.Tokenizer, records: numbered_records.Records | None = None
) -> TextSource | prepared_texts.PreparedTexts | TextMixture:
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

  Example:

    >>> records = ext.TextRecords([{'text': 'one two three'}, {'text': 'two'}])
    >>> tokenizer = ext.train_tokenizer(['one two three'] * 50, vocab_size=300)
    >>> data = ext.TextDataConfig({'seq_length': 8, 'global_batch_size': 2, 'is_training': True})
    >>> row = ext.text_source(data, tokenizer, records)[1]
    >>> sorted(row)
    ['input_ids', 'labels', 'position_ids', 'segment_ids']
    >>> tokenizer.decode(row['input_ids'][row['segment_ids'] == 1])  # Segment 0 is padding.
    'two<|endoftext|>'
  """
  path = batch_reader.config_path(params)
  if params.weights:
    return _open_mixture(params, tokenizer, records, path)
  tokenizer = tokenizer_of(params, tokenizer)
  prepared = None if records is not None else input_files.find_prepared(params.input_path, f'{path}.input_path')
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
  patterns = list(input_files.input_patterns(params.input_path))
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
  return TextMixture(opened, params.weights, path, patterns)


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
  with _errors_at(path):
    text_format = text_formats.TextFormat(params, tokenizer, records, path)
    _check_packing(params, text_format, path)
    limits = token_store.Limits(
      params.max_input_length, params.max_content_length, 0 if params.packing == 'wrapped' else params.seq_length
    )
    settings = {name: getattr(params, name) for name in text_formats.OF_FORMAT if name != 'example_format'}
    if text_format.is_unpaired:
      settings['label_column'] = params.label_column
    if text_format.revision:
      settings['revision'] = text_format.revision
    leaves_out = params.on_bad_example == 'skip'
    store = token_store.open_store(records, text_format, tokenizer, settings, limits, leaves_out, params.cache_dir)
  for line in store.report.warnings(path):
    logging.warning('%s', line)
  if not store.report.examples:
    raise errors.UserError(f'{path}: none of the {len(records)} records can be used')
  settings = {name: getattr(params, name) for name in text_formats.OF_LENGTH}
  if store.date:
    settings['date'] = store.date
  if store.date not in ('', chat_templates.present_date()):
    logging.warning(
      '%s: the chat template writes the present date, and the kept tokens are of %s; another cache_dir makes new ones',
      path,
      store.date,
    )
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
    return WholeTexts(*common, rows=token_rows.pack_best_fit(store.lengths, params.seq_length))
  return WholeTexts(*common, rows=token_rows.one_text_each(len(store.records)))


def _check_packing(params, text_format, path):
  if params.packing != 'none' and text_format.name in text_formats.ONE_EACH:
    raise errors.UserError(
      f'{path}.packing: {params.packing}: rows of the format {text_format.name} hold one example each'
    )


@contextlib.contextmanager
def _errors_at(path: str) -> Iterator[None]:
  """Puts the dotted path of the data configuration before the message about a record."""
  try:
    yield
  except bad_examples.BadExampleError as error:
    hint = f'repair or replace it, or set {path}.on_bad_example=skip'
    raise bad_examples.BadExampleError(f'{path}: {error}; {hint}') from error
