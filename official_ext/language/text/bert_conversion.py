"""Conversion of annotated texts for Model Garden's BERT experiments: reads, plans, writes files around shards.

No TensorFlow; `bert_rows.py`, which writes the shards, imports it.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import json
import os

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import yaml_text
from official_ext.base.files import paths
from official_ext.data import prepared_folders
from official_ext.data import tf_records
from official_ext.data.prepare import input_content
from official_ext.data.prepare import pieces as pieces_lib
from official_ext.data.prepare import planning
from official_ext.data.prepare import settings as settings_lib
from official_ext.data.prepare import splits
from official_ext.language.text import annotated_texts
from official_ext.language.text import bert_settings
from official_ext.language.text import bert_targets
from official_ext.language.text import squad_json

_ROWS = 'official_ext.language.text.bert_rows'
_SPECIAL = ('[CLS]', '[SEP]', '[UNK]')
_MAX_NAMED = 5


class Conversion:
  """A conversion: makes its plan, and implements `prepare.settings.Outputs`."""

  config_name = prepared_folders.CONFIG

  def __init__(
    self,
    inputs: Mapping[str, Sequence[str]],
    conversion: bert_targets.Conversion,
    settings: settings_lib.Settings,
    reading: annotated_texts.Reading,
    vocab_file: str,
  ):
    """Reads the input.

    Args:
      inputs: see `annotated_texts.read_inputs`.
      conversion: the settings of the conversion.
      settings: of the shards.
      reading: how records are read.
      vocab_file: the vocabulary of BERT's WordPiece tokenizer, a token on each line.

    Raises:
      UserError: of the input or the vocabulary.
    """
    self._conversion = conversion
    self._settings = settings
    self._vocabulary = _read_vocabulary(vocab_file)
    self._texts = annotated_texts.read_inputs(inputs, conversion.target, reading)
    if self._texts.dropped and settings.on_bad_example == 'error':
      place, reason = self._texts.dropped[0]
      raise errors.UserError(f'{place}: {reason}; repair it, or give --on_bad_example=skip')
    self._labels = list(reading.labels) or _ordered({name for text in self._texts.texts for name in text.labels})
    if conversion.target == bert_targets.CLASSIFICATION and len(self._labels) < 2:
      raise errors.UserError(f'INPUT: all texts have the class {self._labels[0]}; a classifier needs two')
    self._by_split = {
      split: [self._texts.texts[index] for index in indices]
      for split, indices in splits.divide(
        [text.key for text in self._texts.texts],
        [text.split for text in self._texts.texts],
        conversion.validation_share,
        conversion.test_share,
        conversion.seed,
        'example',
      ).items()
    }
    self._records: dict[str, list[json_types.JsonObject]] = {}
    first = 0
    for split, texts in self._by_split.items():
      self._records[split] = [{'number': first + index, **text.values} for index, text in enumerate(texts)]
      first += len(texts)
    self.report: json_types.JsonObject = {}

  def plan(self, check: Callable[[], None]) -> planning.Plan:
    """The plan: shards of each split; of questions, of training alone, since Model Garden evaluates SQuAD's JSON."""
    shards: list[planning.Shard] = []
    for split, records in self._records.items():
      if self._conversion.target == bert_targets.QUESTIONS and split != splits.TRAIN:
        continue
      pieces = [pieces_lib.Piece('', 'annotated', 0, 1, len(json.dumps(record))) for record in records]
      start, of_split = 0, list[planning.Shard]()
      for group in planning.grouped(pieces, self._settings.shard_bytes):
        end = start + len(group)
        piece = pieces_lib.Piece('', 'annotated', start, end, sum(each.size for each in group))
        of_split.append(planning.Shard('', (piece,), (), tuple(records[start:end])))
        start = end
      shards += planning.named(of_split, split, tf_records.ENDING)
    files = list(dict.fromkeys(self._texts.files))
    contents = input_content.read(files, check)
    vocabulary = planning.digest(self._vocabulary.decode().splitlines())
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
    self, folder: str, settings: json_types.JsonMapping, notes: Sequence[json_types.JsonMapping]
  ) -> Mapping[str, bytes]:
    """The names of the classes, questions for evaluations, a report, and the settings of the experiment."""
    del settings
    details = [values for note in notes for values in note.get('details', ())]
    rows = collections.Counter[str]()
    for values in details:
      rows[values['split']] += values['rows']
    of_questions = self._conversion.target == bert_targets.QUESTIONS
    if of_questions:
      rows.update({split: len(records) for split, records in self._records.items() if split != splits.TRAIN})
    has_unanswerable = of_questions and any(not text.values['answers'] for text in self._texts.texts)
    self.report = self._make_report(details, rows)
    num_tokens = len(self._vocabulary.decode().splitlines())
    values = bert_settings.make(self._conversion, folder, rows, self._labels, num_tokens, has_unanswerable)
    found = {
      prepared_folders.LABELS: ''.join(f'{label}\n' for label in self._labels).encode(),
      prepared_folders.REPORT: (json.dumps(self.report, indent=2, ensure_ascii=False) + '\n').encode(),
      prepared_folders.CONFIG: yaml_text.dump(values).encode(),
    }
    for split, records in self._records.items() if of_questions else ():
      if split != splits.TRAIN:
        found[os.path.basename(bert_settings.questions_name('', split))] = squad_json.dump(records).encode()
    return found

  def _make_report(self, details: Sequence[json_types.JsonMapping], rows: Mapping[str, int]) -> json_types.JsonObject:
    of_splits: dict[str, json_types.JsonObject] = {}
    for split, texts in self._by_split.items():
      counts = collections.Counter[str]()
      for values in details:
        if values['split'] == split:
          counts.update(values['classes'])
      classes = {label: counts[str(number)] for number, label in enumerate(self._labels)}
      of_splits[split] = {'examples': len(texts), 'rows': rows[split], 'classes': classes}
    return {
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
    for split, names in self.report['classes_without_examples'].items():
      if names and split != splits.TEST:
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


def _duplicates(by_split: Mapping[str, Sequence[annotated_texts.AnnotatedText]]) -> list[list[str]]:
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
    content = paths.read(os.path.expanduser(path))
    tokens = [token.strip() for token in content.decode().splitlines()]
  except (OSError, UnicodeDecodeError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise errors.UserError(f'--vocab_file: {path}: cannot be read: {reason}') from error
  missing = [token for token in _SPECIAL if token not in tokens]
  if missing:
    raise errors.UserError(f'--vocab_file: {path}: lacks {missing[0]}; expected the vocab.txt of a BERT checkpoint')
  if tokens[0] != '[PAD]':
    raise errors.UserError(f'--vocab_file: {path}: begins with {tokens[0]}; rows are padded by 0, which must be [PAD]')
  return content
