"""Texts with labels, words with tags, and questions with answers, from files of common formats. No TensorFlow.

Records are CSV with a header, JSON lines, JSON, Parquet or Arrow. Words with tags may also be in CoNLL's format: a line
for each word, the tag in its last column, an empty line between sentences. Questions may also be in SQuAD's JSON.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import glob
import json
import os
from typing import Any

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.data import record_files
from official_ext.data.prepare import splits
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
      `question`, `context`, `answers`, each with `text` and `answer_start`; [] if there is none.
    labels: the names of the classes in it.
  """

  place: str
  key: str
  split: str
  values: json_types.JsonObject
  labels: tuple[str, ...] = ()


@dataclasses.dataclass
class TextSet:
  """The examples of an input.

  Attributes:
    texts: all that can be used.
    files: that were read.
    dropped: (place, reason) of others.
  """

  texts: list[AnnotatedText] = dataclasses.field(default_factory=list)
  files: list[str] = dataclasses.field(default_factory=list)
  dropped: list[tuple[str, str]] = dataclasses.field(default_factory=list)


def read_inputs(inputs: Mapping[str, Sequence[str]], target: str, reading: Reading) -> TextSet:
  """The examples of all inputs.

  Args:
    inputs: paths of files or folders by split; '' for those whose split follows from names of files or from shares.
    target: one of `bert_targets.TARGETS`.
    reading: how records are read.

  Raises:
    UserError: there are none, a file is damaged, or lacks a column.
  """
  found = TextSet()
  for split, paths in inputs.items():
    for path in paths:
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
    yield file, splits.split_of(os.path.basename(file).split('.')[0].split('-')[0])


def _read(file: str, split: str, target: str, reading: Reading, found: TextSet) -> None:
  """Adds the examples of a file."""
  convert: Callable[[json_types.JsonMapping, Reading], tuple[str, json_types.JsonObject, tuple[str, ...]]]
  convert = {
    bert_targets.CLASSIFICATION: _classified,
    bert_targets.TAGGING: _tagged,
    bert_targets.QUESTIONS: _question,
  }[target]
  for place, record in _records(file, target):
    try:
      key, values, labels = convert(record, reading)
    except _BadRecordError as error:
      found.dropped.append((place, str(error)))
    else:
      given = splits.split_of(str(record.get('split') or '')) or split
      found.texts.append(AnnotatedText(place, key, given, values, labels))


class _BadRecordError(Exception):
  """A record that cannot be used; its message says why."""


def _records(file: str, target: str) -> Iterator[tuple[str, json_types.JsonMapping]]:
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


def _of_conll(file: str) -> Iterator[tuple[str, json_types.JsonMapping]]:
  words: list[list[str]] = []
  start = number = 0
  try:
    with open(file, encoding='utf-8-sig') as f:
      for number, line in enumerate([*f, ''], 1):
        columns = line.split('\t') if '\t' in line else line.split()
        if any(columns) and columns[0].strip() != '-DOCSTART-':
          start = start or number
          words.append([column.strip() for column in columns])
        elif words:
          yield f'{file}, line {start}', {'tokens': [row[0] for row in words], 'tags': [row[-1] for row in words]}
          words, start = [], 0
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(f'{file}: cannot be read: {error}; store it as UTF-8') from error


def _of_squad(file: str) -> Iterable[tuple[str, json_types.JsonMapping]] | None:
  """The questions of SQuAD's JSON; None if it is other JSON."""
  try:
    with open(file, encoding='utf-8') as f:
      values = json.load(f)
    if not isinstance(values, dict) or 'data' not in values:
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


def _classified(record: json_types.JsonMapping, reading: Reading) -> tuple[str, json_types.JsonObject, tuple[str, ...]]:
  fields = reading.text_fields or next((pair for pair in _PAIRS if set(pair) <= set(record)), ())
  fields = fields or next(((name,) for name in _TEXTS if name in record), ())
  label_field = reading.label_field or next((name for name in _LABELS if name in record and name not in fields), '')
  _check_columns(record, [*(fields or ['text']), label_field or 'label'])
  texts = [record[name] for name in fields]
  if not all(isinstance(text, str) and text.strip() for text in texts):
    raise _BadRecordError('a text is empty')
  label = _label(record[label_field], reading)
  return '\0'.join(texts), {'text_a': texts[0], 'text_b': texts[1] if texts[1:] else None, 'label': label}, (label,)


def _tagged(record: json_types.JsonMapping, reading: Reading) -> tuple[str, json_types.JsonObject, tuple[str, ...]]:
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


def _question(record: json_types.JsonMapping, reading: Reading) -> tuple[str, json_types.JsonObject, tuple[str, ...]]:
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


def _answers(answers: Any) -> list[json_types.JsonObject]:
  """The answers as a list, from SQuAD's list or the dictionary of lists of `datasets`."""
  try:
    if isinstance(answers, Mapping):
      pairs = list(zip(answers['text'], answers['answer_start'], strict=True))
    else:
      pairs = [(answer['text'], answer['answer_start']) for answer in answers]
    return [{'text': str(text), 'answer_start': int(start)} for text, start in pairs]
  except (KeyError, TypeError, ValueError) as error:
    raise _BadRecordError('answers need text and answer_start') from error


def _check_columns(record: json_types.JsonMapping, names: Sequence[str]) -> None:
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
