"""The targets of a conversion of texts: the tasks of Model Garden's BERT experiments, and their settings.

Questions are written in SQuAD's JSON, which Model Garden's question answering reads
(https://rajpurkar.github.io/SQuAD-explorer/, version 2.0). No TensorFlow.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os

from official_ext.base import json_values
from official_ext.data.prepare import conversions

CLASSIFICATION = 'text_classification'
TAGGING = 'tagging'
QUESTIONS = 'question_answering'
TARGETS = (CLASSIFICATION, TAGGING, QUESTIONS)

EXPERIMENTS = {
  CLASSIFICATION: 'bert/sentence_prediction',
  TAGGING: 'bert/tagging',
  QUESTIONS: 'bert/squad',
}
SEQ_LENGTHS = {CLASSIFICATION: 128, TAGGING: 128, QUESTIONS: 384}  # The defaults of the experiments.
VOCABULARY = 'vocab.txt'  # In the prepared folder.


@dataclasses.dataclass(frozen=True)
class Conversion(conversions.Conversion):
  """The settings of a conversion: see base class.

  Attributes:
    target: one of `TARGETS`.
    seq_length: tokens of a row; longer texts are cut, longer sentences and contexts are divided.
    do_lower_case: whether texts become lower case, as the vocabulary requires.
    doc_stride: tokens between the beginnings of the parts of a context.
    query_length: the largest number of tokens of a question.
  """

  seq_length: int = 128
  do_lower_case: bool = True
  doc_stride: int = 128
  query_length: int = 64


def dump_squad(questions: Sequence[json_values.JsonMapping], first_answer_only: bool = False) -> str:
  """The text of a file.

  Args:
    questions: of bert_conversion.py, with `number`.
    first_answer_only: whether to keep one answer of each: training requires exactly one.
  """
  paragraphs = []
  for each in questions:
    answers, context = each['answers'], each['context']
    if first_answer_only:  # Its reader drops answers with other blanks, such as U+00A0, without a message.
      answers = [{**answer, 'text': _with_plain_blanks(answer['text'])} for answer in answers[:1]]
      context = _with_plain_blanks(context)
    question = {
      'id': each['id'] or str(each['number']),
      'question': each['question'],
      'answers': answers,
      'is_impossible': not answers,
    }
    paragraphs.append({'context': context, 'qas': [question]})
  return json.dumps({'version': 'v2.0', 'data': [{'title': '', 'paragraphs': paragraphs}]}, ensure_ascii=False) + '\n'


def _with_plain_blanks(text: str) -> str:
  return ''.join(' ' if character.isspace() else character for character in text)


_BATCH_SIZES = {CLASSIFICATION: 32, TAGGING: 32, QUESTIONS: 16}
_BEST_METRICS = {
  CLASSIFICATION: 'cls_accuracy',
  TAGGING: 'f1',
  QUESTIONS: 'final_f1',
}
EPOCHS = 4  # Devlin et al. 2019, arXiv:1810.04805, appendix A.3: 2 to 4.


def make_settings(
  conversion: Conversion,
  folder: str,
  num_rows: Mapping[str, int],
  labels: list[str],
  vocab_size: int,
  has_unanswerable: bool,
) -> json_values.JsonObject:
  """The values of a file for `--config_file`.

  Args:
    conversion: the settings of the conversion.
    folder: the converted folder.
    num_rows: the number of rows of each split; of questions for validation, a lower bound of them.
    labels: the names of the classes or tags.
    vocab_size: the number of tokens of the vocabulary.
    has_unanswerable: whether a question has no answer.
  """
  target = conversion.target
  batch_size = min(_BATCH_SIZES[target], num_rows[conversions.TRAIN])
  model: json_values.JsonObject = {'encoder': {'type': 'bert', 'bert': {'vocab_size': vocab_size}}}
  task: json_values.JsonObject = {'init_checkpoint': '', 'model': model}
  if target == CLASSIFICATION:
    model['num_classes'] = len(labels)
    task['metric_type'] = 'accuracy'
  elif target == TAGGING:
    task['class_names'] = list(labels)
  of_questions = {
    'version_2_with_negative': has_unanswerable,
    'doc_stride': conversion.doc_stride,
    'query_length': conversion.query_length,
    'do_lower_case': conversion.do_lower_case,
    'vocab_file': os.path.join(folder, VOCABULARY),
  }
  data = {'seq_length': conversion.seq_length, **(of_questions if target == QUESTIONS else {})}
  task['train_data'] = {
    'input_path': os.path.join(folder, f'{conversions.TRAIN}-*.tfrecord'),
    'global_batch_size': batch_size,
    'is_training': True,
    'shuffle_buffer_size': min(10000, num_rows[conversions.TRAIN]),
    **data,
  }
  steps_per_epoch = max(1, num_rows[conversions.TRAIN] // batch_size)
  trainer = conversions.trainer_settings(steps_per_epoch, conversions.BERT_RATE, EPOCHS)
  if num_rows.get(conversions.VALIDATION):
    eval_batch_size = min(_BATCH_SIZES[target], num_rows[conversions.VALIDATION])
    of_records = os.path.join(folder, f'{conversions.VALIDATION}-*.tfrecord')
    input_path = questions_name(folder, conversions.VALIDATION) if target == QUESTIONS else of_records
    task['validation_data'] = {
      'input_path': input_path,
      'global_batch_size': eval_batch_size,
      'is_training': False,
      'drop_remainder': False,
      **data,
    }
    # The task itself divides long contexts of questions: the number of rows is unknown here.
    steps = -1 if target == QUESTIONS else -(-num_rows[conversions.VALIDATION] // eval_batch_size)
    conversions.add_best_checkpoint(trainer, steps, _BEST_METRICS[target])
  return {'task': task, 'trainer': trainer}


def questions_name(folder: str, split: str) -> str:
  """The path of the questions of a split in SQuAD's JSON, which Model Garden evaluates."""
  return os.path.join(folder, f'questions_{split}.json')
