"""The evaluation of image classification."""

from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import input_faults
from official_ext.training.evaluation import classifier_result
from official_ext.training.evaluation import evaluated_data
from official_ext.training.evaluation import results
from official_ext.training.trained import trained_model
from official_ext.vision.preview import pictures


def evaluate(
  trained: trained_model.TrainedModel, data: evaluated_data.EvaluatedData, num_mistakes: int
) -> results.Result:
  """Evaluates a classifier.

  Args:
    trained: a run of Model Garden's ImageClassificationTask.
    data: the data.
    num_mistakes: how many wrong predictions to draw, the most confident ones.

  Raises:
    UserError: the data has several labels for an image, or no examples; no output is finite.
  """
  task, names = trained.task, data.class_list(trained.params.task.model.num_classes)
  if data.config.is_multilabel:
    raise errors.UserError(f'{data.path}.is_multilabel: several labels for an image are unsupported')
  is_softmax = trained.params.task.model.output_softmax

  @tf.function
  def predict(images: tf.Tensor) -> tf.Tensor:
    outputs = tf.cast(task.inference_step(images, trained.model), tf.float32)
    return outputs if is_softmax else tf.nn.softmax(outputs)

  probabilities, labels = list[np.ndarray](), list[np.ndarray]()
  worst, count = pictures.Worst(num_mistakes), 0
  with input_faults.explained(data.path, data.config, task.build_inputs):
    for images, batch_labels in task.build_inputs(data.config):
      found, truth = predict(images).numpy(), batch_labels.numpy().reshape(-1).astype(int)
      _keep_worst(worst, count, images.numpy(), found, truth, names, task)
      count += len(truth)
      probabilities.append(found)
      labels.append(truth)
  if not labels:
    raise input_faults.no_examples(data.path, data.config, data.config.global_batch_size)
  result = classifier_result.of_probabilities(np.concatenate(probabilities), np.concatenate(labels), names)
  if worst.found:
    result.pictures['mistakes'] = pictures.drawn_mistakes(worst.found, data.names)
  return result


def _keep_worst(
  worst: pictures.Worst,
  first: int,
  images: np.ndarray,
  probabilities: np.ndarray,
  labels: np.ndarray,
  names: list[str],
  task: Any,
) -> None:
  """Adds the wrong predictions of a batch, by their confidence. Outputs that are not finite predict nothing."""
  for number, (row, label) in enumerate(zip(probabilities, labels)):
    predicted = int(row.argmax())
    if np.isfinite(row).all() and predicted != label and worst.accepts(row[predicted]):
      shown, _ = pictures.restored(images[number : number + 1], task)
      words = f'{names[label]}, predicted {names[predicted]} {row[predicted]:.2f}'
      worst.add(float(row[predicted]), first + number, pictures.Mistake(words, [pictures.Picture(shown[0])]))
