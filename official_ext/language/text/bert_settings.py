"""The settings with which a BERT experiment of Model Garden trains on a converted folder. No TensorFlow."""

from collections.abc import Mapping
import os

from official_ext.base import json_types
from official_ext.data.prepare import splits
from official_ext.data.prepare import training_settings
from official_ext.language.text import bert_targets

_BATCH_SIZES = {bert_targets.CLASSIFICATION: 32, bert_targets.TAGGING: 32, bert_targets.QUESTIONS: 16}
_METRICS = {
  bert_targets.CLASSIFICATION: 'cls_accuracy',
  bert_targets.TAGGING: 'f1',
  bert_targets.QUESTIONS: 'final_f1',
}
EPOCHS = 4  # Devlin et al. 2019, arXiv:1810.04805, appendix A.3: 2 to 4.


def make(
  conversion: bert_targets.Conversion,
  folder: str,
  num_rows: Mapping[str, int],
  labels: list[str],
  vocab_size: int,
  has_unanswerable: bool,
) -> json_types.JsonObject:
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
  batch_size = min(_BATCH_SIZES[target], num_rows[splits.TRAIN])
  model: json_types.JsonObject = {'encoder': {'type': 'bert', 'bert': {'vocab_size': vocab_size}}}
  task: json_types.JsonObject = {'init_checkpoint': '', 'model': model}
  if target == bert_targets.CLASSIFICATION:
    model['num_classes'] = len(labels)
    task['metric_type'] = 'accuracy'
  elif target == bert_targets.TAGGING:
    task['class_names'] = list(labels)
  of_questions = {
    'version_2_with_negative': has_unanswerable,
    'doc_stride': conversion.doc_stride,
    'query_length': conversion.query_length,
    'do_lower_case': conversion.do_lower_case,
    'vocab_file': os.path.join(folder, bert_targets.VOCABULARY),
  }
  data = {'seq_length': conversion.seq_length, **(of_questions if target == bert_targets.QUESTIONS else {})}
  task['train_data'] = {
    'input_path': os.path.join(folder, f'{splits.TRAIN}-*.tfrecord'),
    'global_batch_size': batch_size,
    'is_training': True,
    'shuffle_buffer_size': min(10000, num_rows[splits.TRAIN]),
    **data,
  }
  steps_per_epoch = max(1, num_rows[splits.TRAIN] // batch_size)
  trainer = training_settings.trainer(steps_per_epoch, training_settings.BERT_RATE, EPOCHS)
  if num_rows.get(splits.VALIDATION):
    eval_batch_size = min(_BATCH_SIZES[target], num_rows[splits.VALIDATION])
    of_records = os.path.join(folder, f'{splits.VALIDATION}-*.tfrecord')
    input_path = questions_name(folder, splits.VALIDATION) if target == bert_targets.QUESTIONS else of_records
    task['validation_data'] = {
      'input_path': input_path,
      'global_batch_size': eval_batch_size,
      'is_training': False,
      'drop_remainder': False,
      **data,
    }
    # The task itself divides long contexts of questions: the number of rows is unknown here.
    steps = -1 if target == bert_targets.QUESTIONS else -(-num_rows[splits.VALIDATION] // eval_batch_size)
    training_settings.add_best_checkpoint(trainer, steps, _METRICS[target])
  return {'task': task, 'trainer': trainer}


def questions_name(folder: str, split: str) -> str:
  """The path of the questions of a split in SQuAD's JSON, which Model Garden evaluates."""
  return os.path.join(folder, f'questions_{split}.json')
