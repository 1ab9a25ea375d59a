"""The tf.Examples of a shard of annotated texts, by Model Garden's own writers of fine-tuning data.

These are official/nlp/data: classifier_data_lib.py, tagging_data_lib.py and squad_lib.py. They write files, which are
read back here.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
import os
import tempfile
from typing import Any

from official.nlp.data import classifier_data_lib
from official.nlp.data import squad_lib
from official.nlp.data import tagging_data_lib
from official.nlp.tools import tokenization
import tensorflow as tf

from official_ext.base import json_values
from official_ext.data import numbered_records
from official_ext.data import record_report
from official_ext.language.text import bert_targets

_NUM_SPECIAL = {1: 2, 2: 3}  # [CLS] and [SEP], by the number of texts.


class _CountingTokenizer:
  """Model Garden's tokenizer, which counts the tokens that it has made."""

  def __init__(self, vocab_file: str, do_lower_case: bool):
    self._tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case)
    self.count = 0

  def tokenize(self, text: str) -> list[str]:
    found = self._tokenizer.tokenize(text)
    self.count += len(found)
    return found

  def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
    return self._tokenizer.convert_tokens_to_ids(tokens)


Write = Callable[
  [list[json_values.JsonObject], bert_targets.Conversion, Sequence[str], _CountingTokenizer, str, Any], None
]


def rows(
  job: json_values.JsonMapping, records: numbered_records.Records, leaves_out: bool, report: record_report.RecordReport
) -> Iterator[bytes]:
  """Yields the tf.Examples of a shard: see `prepare.planning.RowFormat`.

  Args:
    job: of `planning.Plan.job`.
    records: of `bert_plan`, all of which can be used.
    leaves_out: not used.
    report: filled in; its details are {split, rows, classes: count by number, words or examples}.
  """
  del leaves_out
  conversion = bert_targets.Conversion.of(job['settings'])
  tokenizer = _CountingTokenizer(os.path.join(job['folder'], bert_targets.VOCABULARY), conversion.do_lower_case)
  examples = [dict(records.read(number)) for number in range(len(records))]
  with tempfile.TemporaryDirectory(prefix='official_ext_rows_') as folder:
    path = os.path.join(folder, 'rows.tfrecord')
    _WRITERS[conversion.target](examples, conversion, job['labels'], tokenizer, path, report)
    num_rows = 0
    for row in tf.data.TFRecordDataset(path).as_numpy_iterator():
      num_rows += 1
      yield row
  report.examples += len(examples)
  report.tokens += tokenizer.count - report.cut_text_tokens
  counts = collections.Counter(label for example in examples for label in _labels(example))
  classes = {str(job['labels'].index(label)): count for label, count in sorted(counts.items())}
  report.details.append({'split': job['name'].split('-')[0], 'rows': num_rows, 'classes': classes})


def _labels(example: json_values.JsonObject) -> Sequence[str]:
  return example['tags'] if 'tags' in example else [example['label']] if 'label' in example else ()


def _write_classified(examples, conversion, labels, tokenizer, path, report) -> None:
  def featurize(number, example, label_list, seq_length, counting):
    before = counting.count
    feature = classifier_data_lib.convert_single_example(number, example, label_list, seq_length, counting)
    lost = counting.count - before + _NUM_SPECIAL[2 if example.text_b else 1] - seq_length
    if lost > 0:
      report.cut_texts += 1
      report.cut_text_tokens += lost
    return feature

  given = [
    classifier_data_lib.InputExample(
      guid='', text_a=each['text_a'], text_b=each['text_b'], label=each['label'], example_id=each['number']
    )
    for each in examples
  ]
  classifier_data_lib.file_based_convert_examples_to_features(
    given, list(labels), conversion.seq_length, tokenizer, path, featurize_fn=featurize
  )


def _write_tagged(examples, conversion, labels, tokenizer, path, report) -> None:
  del report
  numbers = {label: number for number, label in enumerate(labels)}
  given = [
    tagging_data_lib.InputExample(
      sentence_id=each['number'], words=list(each['words']), label_ids=[numbers[tag] for tag in each['tags']]
    )
    for each in examples
  ]
  tagging_data_lib.write_example_to_file(given, tokenizer, conversion.seq_length, path)


def _write_questions(examples, conversion, labels, tokenizer, path, report) -> None:
  del labels, report
  source = f'{path}.json'
  with open(source, 'w', encoding='utf-8') as f:
    f.write(bert_targets.dump_squad(examples, first_answer_only=True))
  given = squad_lib.read_squad_examples(source, is_training=True, version_2_with_negative=True)
  writer = squad_lib.FeatureWriter(path, is_training=True)
  squad_lib.convert_examples_to_features(
    given,
    tokenizer,
    conversion.seq_length,
    conversion.doc_stride,
    conversion.query_length,
    is_training=True,
    output_fn=writer.process_feature,
  )
  writer.close()


_WRITERS: dict[str, Write] = {
  bert_targets.CLASSIFICATION: _write_classified,
  bert_targets.TAGGING: _write_tagged,
  bert_targets.QUESTIONS: _write_questions,
}
