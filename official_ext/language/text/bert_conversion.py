"""Converts annotated texts for Model Garden's BERT experiments: reads, plans, writes files around shards.

Texts with labels, words with tags, and questions with answers are read from CSV with a header, JSON lines, JSON,
Parquet or Arrow. Words with tags may be in CoNLL's format: a line for each word, the tag in its last column, an empty
line between sentences. Questions may be in SQuAD's JSON.

No TensorFlow; `bert_rows.py`, which writes the shards, imports it.
"""

import codecs
import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import glob
import json
import os
from typing import Any

from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.base.files import tf_records
from official_ext.data import input_files
from official_ext.data import record_files
from official_ext.data import record_report
from official_ext.data.prepare import conversions
from official_ext.data.prepare import pieces as pieces_lib
from official_ext.data.prepare import planning
from official_ext.language.text import bert_targets

_PAIRS = (
  ('sentence1', 'sentence2'),
  ('premise', 'hypothesis'),
  ('text_a', 'text_b'),
  ('question1', 'question2'),
  ('question', 'sentence'),
)
_TEXTS = ('text', 'sentence', 'content', 'review', 'comment', 'document')
_LABELS = ('label', 'labels', 'class', 'category', 'sentiment', 'target')
_WORDS = ('tokens', 'words')
_TAGS = ('tags', 'ner_tags', 'pos_tags', 'labels')
# Columns that are read have other names in each data set.
FIELDS = file_fields.FileFields(
  'text column',
  ('split',),
  file_fields.because(
    {'numbers of records': 'id idx index', 'parts of SQuAD': 'title is_impossible plausible_answers'}
  ),
)
_OF_RECORDS = ('.jsonl', '.ndjson', '.json', '.parquet', '.arrow', '.csv', '.tsv')
_OF_WORDS = ('.conll', '.txt')
_EXPECTED = {
  bert_targets.CLASSIFICATION: 'CSV, JSON lines or Parquet with the columns text and label',
  bert_targets.TAGGING: 'JSON lines or Parquet with the columns tokens and tags, or CoNLL files (.conll, .txt)',
  bert_targets.QUESTIONS: "SQuAD's JSON, or JSON lines or Parquet with question, context and answers",
}


@dataclasses.dataclass(frozen=True)
class Reading:
  """How records are read.

  Attributes:
    text_fields: the columns of the one or two texts; (): they are found by their names.
    label_field: the column of the label or the tags; '': it is found.
    labels: the names of the classes by number, for labels that are numbers; (): labels are names.
  """

  text_fields: tuple[str, ...] = ()
  label_field: str = ''
  labels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class AnnotatedText:
  """An example.

  Attributes:
    place: the file and line, for messages.
    key: decides the split: examples with the same texts are in the same one.
    split: that the input names; '' if shares decide it.
    values: JSON values. Classification: `text_a`, `text_b` or null, `label`. Tagging: `words`, `tags`. Questions: `id`,
      `question`, `context`, `answers`, each with `text` and `answer_start`; [] for none.
    labels: the names of the classes in it.
  """

  place: str
  key: str
  split: str
  values: json_values.JsonObject
  labels: tuple[str, ...] = ()


@dataclasses.dataclass
class TextSet:
  """The examples of an input.

  Attributes:
    texts: all that can be used.
    files: that were read.
    dropped: (place, reason) of others.
    num_found: how many examples the input has, used or not.
    ignored: how many values of each column are not read.
  """

  texts: list[AnnotatedText] = dataclasses.field(default_factory=list)
  files: list[str] = dataclasses.field(default_factory=list)
  dropped: list[tuple[str, str]] = dataclasses.field(default_factory=list)
  num_found: int = 0
  ignored: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


def read_inputs(inputs: Mapping[str, Sequence[str]], target: str, reading: Reading) -> TextSet:
  """The examples of all inputs.

  Args:
    inputs: paths of files or folders by split; '' if the split follows from names of files or from shares.
    target: one of `bert_targets.TARGETS`.
    reading: how records are read.

  Raises:
    UserError: no examples are found, a file is damaged, or lacks a column.
  """
  found = TextSet()
  for split, given in inputs.items():
    for path in given:
      for file, named in _files(path, target):
        found.files.append(file)
        _read(file, split or named, target, reading, found)
  if not found.texts:
    reason = f'; for example {": ".join(found.dropped[0])}' if found.dropped else ''
    raise errors.UserError(f'INPUT: holds no example for --for={target}{reason}; expected {_EXPECTED[target]}')
  return found


def _files(path: str, target: str) -> Iterator[tuple[str, str]]:
  """(absolute path, split) of the files of a path; in a folder, names such as dev.csv are splits."""
  absolute = os.path.abspath(os.path.expanduser(path))
  if not os.path.exists(absolute):
    raise errors.UserError(f'INPUT: {path}: No such file or directory')
  if not os.path.isdir(absolute):
    yield absolute, ''
    return
  endings = (*_OF_RECORDS, *(_OF_WORDS if target == bert_targets.TAGGING else ()))
  files = [file for file in sorted(glob.glob(f'{glob.escape(absolute)}/*')) if file.lower().endswith(endings)]
  if not files:
    raise errors.UserError(f'INPUT: {path}: holds no files for --for={target}; expected {_EXPECTED[target]}')
  for file in files:
    yield file, conversions.split_of(os.path.basename(file).split('.')[0].split('-')[0])


def _read(file: str, split: str, target: str, reading: Reading, found: TextSet) -> None:
  """Adds the examples of a file."""
  convert: Callable[[json_values.JsonMapping, Reading], tuple[str, json_values.JsonObject, tuple[str, ...]]]
  convert = {
    bert_targets.CLASSIFICATION: _classified,
    bert_targets.TAGGING: _tagged,
    bert_targets.QUESTIONS: _question,
  }[target]
  for place, given in _records(file, target):
    found.num_found += 1
    record = _TrackedRecord(given)
    try:
      key, values, labels = convert(record, reading)
    except _BadRecordError as error:
      found.dropped.append((place, str(error)))
    else:
      own_split = conversions.split_of(str(record.get('split') or '')) or split
      found.texts.append(AnnotatedText(place, key, own_split, values, labels))
      unread = {name: value for name, value in given.items() if name not in record.names}
      found.ignored.update(f'{FIELDS.name} {name}' for name in FIELDS.unknown_names(unread))


class _TrackedRecord(collections.UserDict[str, Any]):
  """A record that notes in `names` which columns are read."""

  def __init__(self, record: json_values.JsonMapping):
    self.names: set[str] = set()
    super().__init__(record)

  def __getitem__(self, name: str) -> Any:
    self.names.add(name)
    return super().__getitem__(name)


class _BadRecordError(Exception):
  """A record that cannot be used; its message says why."""


def _records(file: str, target: str) -> Iterator[tuple[str, json_values.JsonMapping]]:
  """(place, record) of each record of a file."""
  ending = os.path.splitext(file)[1].lower()
  if ending in _OF_WORDS and target == bert_targets.TAGGING:
    yield from _of_conll(file)
  elif ending == '.json' and target == bert_targets.QUESTIONS and (found := _of_squad(file)) is not None:
    yield from found
  elif ending in _OF_RECORDS:
    records = record_files.read_file(file)
    for number in range(len(records)):
      yield records.place(number), records.read(number)
  else:
    raise errors.UserError(f'INPUT: {file}: is of an unknown kind; expected {_EXPECTED[target]}')


def _of_conll(file: str) -> Iterator[tuple[str, json_values.JsonMapping]]:
  words: list[list[str]] = []
  start = number = 0
  try:
    with open(file, encoding='utf-8-sig') as f:
      for number, line in enumerate([*f, ''], 1):
        columns = line.split('\t') if '\t' in line else list(filter(None, line.strip().split(' ')))
        if any(columns) and columns[0].strip() != '-DOCSTART-':
          start = start or number
          words.append([column.strip() for column in columns])
        elif words:
          yield f'{file}, line {start}', {'tokens': [row[0] for row in words], 'tags': [row[-1] for row in words]}
          words, start = [], 0
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(f'{file}: cannot be read: {error}; store it as UTF-8') from error


def _of_squad(file: str) -> Iterable[tuple[str, json_values.JsonMapping]] | None:
  """The questions of SQuAD's JSON; None if it is other JSON."""
  try:
    values = json_values.load_file(file, max_bytes=None)
    if 'data' not in values:
      return None
    return [
      (f'{file}, question {each["id"]}', {**each, 'context': paragraph['context']})
      for article in values['data']
      for paragraph in article['paragraphs']
      for each in paragraph['qas']
    ]
  except OSError as error:
    raise errors.UserError(f'{file}: cannot be read: {error.strerror}') from error
  except ValueError:
    return None  # JSON lines, or damaged: their reader reports it.
  except (KeyError, TypeError) as error:
    raise errors.UserError(f"{file}: is not SQuAD's JSON: {type(error).__name__}: {error}") from error


def _classified(
  record: json_values.JsonMapping, reading: Reading
) -> tuple[str, json_values.JsonObject, tuple[str, ...]]:
  fields = reading.text_fields or next((pair for pair in _PAIRS if set(pair) <= set(record)), ())
  fields = fields or next(((name,) for name in _TEXTS if name in record), ())
  label_field = reading.label_field or next((name for name in _LABELS if name in record and name not in fields), '')
  _check_columns(record, [*(fields or ['text']), label_field or 'label'])
  texts = [record[name] for name in fields]
  if not all(isinstance(text, str) and text.strip() for text in texts):
    raise _BadRecordError('a text is empty')
  label = _label(record[label_field], reading)
  return '\0'.join(texts), {'text_a': texts[0], 'text_b': texts[1] if texts[1:] else None, 'label': label}, (label,)


def _tagged(record: json_values.JsonMapping, reading: Reading) -> tuple[str, json_values.JsonObject, tuple[str, ...]]:
  field = reading.text_fields[0] if reading.text_fields else next((name for name in _WORDS if name in record), 'tokens')
  label_field = reading.label_field or next((name for name in _TAGS if name in record), 'tags')
  _check_columns(record, [field, label_field])
  words, tags = record[field], record[label_field]
  if not isinstance(words, Sequence) or isinstance(words, str) or not isinstance(tags, Sequence):
    raise _BadRecordError('words and tags must be lists')
  if not words or len(words) != len(tags):
    raise _BadRecordError(f'{len(words)} words have {len(tags)} tags')
  if not all(isinstance(word, str) and word.strip() for word in words):
    raise _BadRecordError('a word is empty')
  labels = [_label(tag, reading) for tag in tags]
  return '\0'.join(words), {'words': list(words), 'tags': labels}, tuple(sorted(set(labels)))


def _question(record: json_values.JsonMapping, reading: Reading) -> tuple[str, json_values.JsonObject, tuple[str, ...]]:
  del reading
  _check_columns(record, ['question', 'context'])
  question, context = record['question'], record['context']
  if not all(isinstance(text, str) and text.strip() for text in (question, context)):
    raise _BadRecordError('the question or the context is empty')
  answers = _answers(record.get('answers') or ())
  for answer in answers:
    start, text = answer['answer_start'], answer['text']
    if not text or context[start : start + len(text)] != text:
      raise _BadRecordError(f'the answer {text!r} is not at character {start} of the context')
  values = {'id': str(record.get('id') or ''), 'question': question, 'context': context, 'answers': answers}
  return context, values, ()


def _answers(answers: Any) -> list[json_values.JsonObject]:
  """The answers as a list, from SQuAD's list or the dictionary of lists of `datasets`."""
  try:
    if isinstance(answers, Mapping):
      pairs = list(zip(answers['text'], answers['answer_start'], strict=True))
    else:
      pairs = [(answer['text'], answer['answer_start']) for answer in answers]
    return [{'text': str(text), 'answer_start': int(start)} for text, start in pairs]
  except (KeyError, TypeError, ValueError) as error:
    raise _BadRecordError('answers need text and answer_start') from error


def _check_columns(record: json_values.JsonMapping, names: Sequence[str]) -> None:
  missing = [name for name in names if name not in record]
  if missing:
    raise _BadRecordError(f'has no column {missing[0]}; it has {", ".join(map(str, record))}')


def _label(value: object, reading: Reading) -> str:
  """The name of a class."""
  text = '' if value is None else str(value).strip()
  if not text:
    raise _BadRecordError('has no label')
  if reading.labels and text not in reading.labels:
    if text.isdecimal() and int(text) < len(reading.labels):
      return reading.labels[int(text)]
    raise _BadRecordError(f'its class {text} is not in --labels')
  return text


_ROWS = 'official_ext.language.text.bert_rows'
_SPECIAL = ('[CLS]', '[SEP]', '[UNK]')
_MAX_NAMED = 5


class BertConversion:
  """A conversion: makes its plan, and implements `prepare.planning.Outputs`."""

  config_name = input_files.CONFIG

  def __init__(
    self,
    inputs: Mapping[str, Sequence[str]],
    conversion: bert_targets.Conversion,
    settings: planning.Settings,
    reading: Reading,
    vocab_file: str,
  ):
    """Reads the input.

    Args:
      inputs: see `read_inputs`.
      conversion: the settings of the conversion.
      settings: of the shards.
      reading: how records are read.
      vocab_file: the vocabulary of BERT's WordPiece tokenizer, a token on each line.

    Raises:
      UserError: of the input or the vocabulary.
    """
    self._inputs = [path for paths_of_split in inputs.values() for path in paths_of_split]
    self._conversion = conversion
    self._settings = settings
    self._vocabulary = _read_vocabulary(vocab_file)
    self._texts = read_inputs(inputs, conversion.target, reading)
    if self._texts.dropped and settings.on_bad_example == 'error':
      place, reason = self._texts.dropped[0]
      raise errors.UserError(f'{place}: {reason}; repair it, or give --on_bad_example=skip')
    self._labels = list(reading.labels) or _ordered({name for text in self._texts.texts for name in text.labels})
    input_files.check_labels(self._labels)
    if conversion.target == bert_targets.CLASSIFICATION and len(self._labels) < 2:
      raise errors.UserError(f'INPUT: all texts have the class {self._labels[0]}; a classifier needs two')
    self._by_split = {
      split: [self._texts.texts[index] for index in indices]
      for split, indices in conversions.divide(
        [text.key for text in self._texts.texts],
        [text.split for text in self._texts.texts],
        conversion.validation_share,
        conversion.test_share,
        conversion.seed,
        'example',
      ).items()
    }
    self._records: dict[str, list[json_values.JsonObject]] = {}
    first = 0
    for split, texts in self._by_split.items():
      self._records[split] = [{'number': first + index, **text.values} for index, text in enumerate(texts)]
      first += len(texts)
    self._num_shared_ids = self._number_shared_ids() if conversion.target == bert_targets.QUESTIONS else 0
    self.report: json_values.JsonObject = {}

  def _number_shared_ids(self) -> int:
    """Numbers all questions anew if some have one id: the evaluation finds predictions by it. Returns how many."""
    questions = [each for records in self._records.values() for each in records]
    counts = collections.Counter(each['id'] or str(each['number']) for each in questions)
    num_shared = sum(count for count in counts.values() if count > 1)
    for each in questions if num_shared else ():
      each['id'] = ''
    return num_shared

  @property
  def named_splits(self) -> set[str]:
    """The splits that the input names."""
    return {text.split for text in self._texts.texts} - {''}

  def plan(self, check: Callable[[], None]) -> planning.Plan:
    """The plan: shards of each split; of questions, of training alone, since Model Garden evaluates SQuAD's JSON."""
    shards: list[planning.Shard] = []
    for split, records in self._records.items():
      if self._conversion.target == bert_targets.QUESTIONS and split != conversions.TRAIN:
        continue
      pieces = [pieces_lib.Piece('', 'annotated', 0, 1, len(json.dumps(record))) for record in records]
      start, of_split = 0, list[planning.Shard]()
      for group in planning.grouped_pieces(pieces, self._settings.shard_bytes):
        end = start + len(group)
        piece = pieces_lib.Piece('', 'annotated', start, end, sum(each.size for each in group))
        of_split.append(planning.Shard('', (piece,), (), tuple(records[start:end])))
        start = end
      shards += planning.named_shards(of_split, split, tf_records.ENDING)
    files = list(dict.fromkeys(self._texts.files))
    contents = planning.read_content(files, check)
    vocabulary = planning.digest(paths.split_lines(self._vocabulary))
    return planning.Plan(
      kind=self._conversion.target,
      settings={
        **dataclasses.asdict(self._settings),
        **self._conversion.values(),
        'labels': planning.digest(self._labels),
        'vocabulary': vocabulary,
      },
      inputs=planning.identity_of(
        [os.path.basename(file) for file in files],
        [contents[file].num_bytes for file in files],
        [contents[file].sha256 for file in files],
      ),
      labels=tuple(self._labels),
      columns=(),
      shards=tuple(shards),
      contents=contents,
      row_format=_ROWS,
    )

  @property
  def files(self) -> Mapping[str, bytes]:
    """The vocabulary, which the processes that write shards read."""
    return {bert_targets.VOCABULARY: self._vocabulary}

  def results(
    self, folder: str, settings: json_values.JsonMapping, notes: Sequence[json_values.JsonMapping]
  ) -> Mapping[str, bytes]:
    """The names of the classes, questions for evaluations, a report, and the settings of the experiment."""
    del settings
    details = [values for note in notes for values in note.get('details', ())]
    rows = collections.Counter[str]()
    for values in details:
      rows[values['split']] += values['rows']
    of_questions = self._conversion.target == bert_targets.QUESTIONS
    if of_questions:
      rows.update({split: len(records) for split, records in self._records.items() if split != conversions.TRAIN})
    has_unanswerable = of_questions and any(not text.values['answers'] for text in self._texts.texts)
    self.report = self._make_report(details, rows)
    num_tokens = len(paths.split_lines(self._vocabulary))
    values = bert_targets.make_settings(self._conversion, folder, rows, self._labels, num_tokens, has_unanswerable)
    found = {
      input_files.LABELS: ''.join(f'{label}\n' for label in self._labels).encode(),
      input_files.REPORT: (json.dumps(self.report, indent=2, ensure_ascii=False) + '\n').encode(),
      input_files.CONFIG: config_text.dump(values).encode(),
    }
    for split, records in self._records.items() if of_questions else ():
      if split != conversions.TRAIN:
        found[os.path.basename(bert_targets.questions_name('', split))] = bert_targets.dump_squad(records).encode()
    return found

  def _make_report(self, details: Sequence[json_values.JsonMapping], rows: Mapping[str, int]) -> json_values.JsonObject:
    of_splits: dict[str, json_values.JsonObject] = {}
    for split, texts in self._by_split.items():
      counts = collections.Counter[str]()
      for values in details:
        if values['split'] == split:
          counts.update(values['classes'])
      classes = {label: counts[str(number)] for number, label in enumerate(self._labels)}
      of_splits[split] = {'examples': len(texts), 'rows': rows[split], 'classes': classes}
    balance = record_report.Balance(
      ', '.join(self._inputs), 'examples', self._texts.num_found, sum(map(len, self._by_split.values()))
    )
    balance.ignored.update(self._texts.ignored)
    balance.left_out.update(reason.partition(': ')[0] for _, reason in self._texts.dropped)
    return {
      'balance': [balance.values()],
      'splits': of_splits,
      'classes_without_examples': {
        split: [name for name, count in values['classes'].items() if not count] for split, values in of_splits.items()
      },
      'dropped_examples': [[*pair] for pair in self._texts.dropped],
      'duplicates': _duplicates(self._by_split),
    }

  def warnings(self) -> Iterator[str]:
    """The losses in the report, for people."""
    dropped = self.report['dropped_examples']
    for place, reason in dropped[:_MAX_NAMED]:
      yield f'{place}: dropped: {reason}'
    if len(dropped) > _MAX_NAMED:
      yield f'{len(dropped)} examples are dropped; report.json lists all'
    yield from record_report.field_lines(self.report['balance'])
    if self._num_shared_ids:
      yield f'{self._num_shared_ids} questions have the id of another one: all are numbered anew'
    for split, names in self.report['classes_without_examples'].items():
      if names and split != conversions.TEST:
        yield f'{split}: no example of {", ".join(names[:_MAX_NAMED])}'
    across = [places for places in self.report['duplicates'] if len({each.split(': ')[0] for each in places}) > 1]
    if across:
      yield (
        f'{len(across)} texts are in several splits, such as {" = ".join(across[0][:2])}: results on them mean little; '
        'remove the copies'
      )


def _ordered(names: set[str]) -> list[str]:
  """Names in order, numbers by value; of tags, the one outside of all spans first."""
  return sorted(names, key=lambda name: (name != 'O', (0, int(name), '') if name.isdecimal() else (1, 0, name)))


def _duplicates(by_split: Mapping[str, Sequence[AnnotatedText]]) -> list[list[str]]:
  """Examples with the same texts, as `SPLIT: PLACE`. Questions about one context are not."""
  found: dict[str, list[str]] = {}
  for split, texts in by_split.items():
    for text in texts:
      found.setdefault(f'{text.key}\0{text.values.get("question", "")}', []).append(f'{split}: {text.place}')
  return [places for places in found.values() if len(places) > 1]


def _read_vocabulary(path: str) -> bytes:
  """The vocabulary, checked.

  Raises:
    UserError: it cannot be read, or lacks a token that BERT's inputs have.
  """
  try:
    content = paths.read(os.path.expanduser(path)).removeprefix(codecs.BOM_UTF8)
    tokens = [token.strip() for token in paths.split_lines(content)]
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(f'--vocab_file: {path}: cannot be read: {errors.reason_of(error)}') from error
  missing = [token for token in _SPECIAL if token not in tokens]
  if missing:
    raise errors.UserError(f'--vocab_file: {path}: lacks {missing[0]}; expected the vocab.txt of a BERT checkpoint')
  if tokens[0] != '[PAD]':
    raise errors.UserError(f'--vocab_file: {path}: begins with {tokens[0]}; rows are padded by 0, which must be [PAD]')
  return content
