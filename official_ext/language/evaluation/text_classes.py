"""The evaluation of text classification."""

import os

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.data import input_faults
from official_ext.language.text import bert_targets
from official_ext.training.evaluation import classifier_result
from official_ext.training.evaluation import evaluated_data
from official_ext.training.evaluation import results
from official_ext.training.trained import trained_model

_MAX_TEXT = 300  # Characters of a text in the table of mistakes.


def evaluate(
  trained: trained_model.TrainedModel, data: evaluated_data.EvaluatedData, num_mistakes: int
) -> results.Result:
  """Evaluates a classifier of texts.

  Args:
    trained: a run of Model Garden's SentencePredictionTask.
    data: the data.
    num_mistakes: how many wrong predictions to list, the most confident ones.

  Raises:
    UserError: the run is a regression, or the data has no examples.
  """
  task, num_classes = trained.task, trained.params.task.model.num_classes
  if num_classes < 2:
    raise errors.UserError(f'task.model.num_classes: {num_classes}: regression is unsupported')
  names = data.class_list(num_classes)

  @tf.function
  def predict(batch: dict[str, tf.Tensor]) -> tf.Tensor:
    return tf.nn.softmax(tf.cast(task.inference_step(batch, trained.model), tf.float32))

  probabilities, labels, ids = [], [], []
  with input_faults.explained(data.path, data.config, task.build_inputs):
    for batch in task.build_inputs(data.config):
      probabilities.append(predict(batch).numpy())
      labels.append(batch[task.label_field].numpy().reshape(-1).astype(int))
      ids.append(batch['input_word_ids'].numpy())
  if not labels:
    raise input_faults.no_examples(data.path, data.config, data.config.global_batch_size)
  found, truth = np.concatenate(probabilities), np.concatenate(labels)
  result = classifier_result.of_probabilities(found, truth, names)
  confidences, predicted = found.max(-1), found.argmax(-1)
  order = np.argsort(-confidences, kind='stable')
  wrong = [int(index) for index in order if predicted[index] != truth[index]][:num_mistakes]
  tokens, rows = _tokens(data.folder), np.concatenate(ids)
  if wrong:
    listed = [
      [
        _text(rows[index], tokens),
        names[truth[index]],
        names[predicted[index]],
        classifier_result.rounded(confidences[index]),
      ]
      for index in wrong
    ]
    result.tables.append(results.Table('Mistakes', ('text', 'class', 'predicted', 'confidence'), listed))
  return result


def _tokens(folder: str) -> list[str]:
  """The tokens of the vocabulary in a prepared folder; [] without one."""
  return [line.strip() for line in paths.lines(os.path.join(folder, bert_targets.VOCABULARY))] if folder else []


def _text(ids: np.ndarray, tokens: list[str]) -> str:
  """The text of a row of token ids, without special tokens; the ids if the vocabulary is unknown."""
  if not tokens:
    return ' '.join(str(number) for number in ids if number)[:_MAX_TEXT]
  words = ' '.join(tokens[number] for number in ids if number < len(tokens) and number)
  return words.replace(' ##', '').replace('[CLS] ', '').replace(' [SEP]', ' |').rstrip(' |')[:_MAX_TEXT]
