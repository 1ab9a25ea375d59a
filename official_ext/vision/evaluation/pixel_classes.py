"""The evaluation of semantic segmentation."""

import numpy as np
import tensorflow as tf

from official_ext.data import input_faults
from official_ext.training.evaluation import classifier_result
from official_ext.training.evaluation import evaluated_data
from official_ext.training.evaluation import results
from official_ext.training.trained import trained_model
from official_ext.training.writers import tensorboard
from official_ext.vision.preview import pictures as pictures_lib


def evaluate(
  trained: trained_model.TrainedModel, data: evaluated_data.EvaluatedData, num_mistakes: int
) -> results.Result:
  """Evaluates a segmentation at the size of its input, with masks resized to it.

  Logits are resized to the mask, as in official/vision/evaluation/segmentation_metrics.py. Ignored pixels do not count.

  Args:
    trained: a run of Model Garden's SemanticSegmentationTask.
    data: the data.
    num_mistakes: how many images to draw: the ones with the lowest share of right pixels.

  Raises:
    UserError: the data has no examples; no output is finite.
  """
  task, task_config = trained.task, trained.task.task_config
  num_classes, ignored = task_config.model.num_classes, task_config.losses.ignore_label
  names = data.class_list(num_classes)
  config = data.config.replace(resize_eval_groundtruth=True)

  @tf.function
  def predict(images: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    outputs = task.inference_step(images, trained.model)
    logits = outputs['logits'] if isinstance(outputs, dict) else outputs
    logits = tf.image.resize(tf.cast(logits, tf.float32), size)
    is_finite = tf.reduce_all(tf.math.is_finite(logits), -1)
    return tf.where(is_finite, tf.argmax(logits, -1), tf.constant(classifier_result.NO_CLASS, tf.int64))

  missed = np.zeros(num_classes, np.int64)
  matrix, worst, count = np.zeros([num_classes, num_classes], np.int64), pictures_lib.Worst(num_mistakes), 0
  with input_faults.explained(data.path, config, task.build_inputs):
    for batch in task.build_inputs(config):
      images, labels = batch
      masks = labels['masks'].numpy()[..., 0].astype(np.int64)
      valid = labels['valid_masks'].numpy()[..., 0].astype(bool) & (masks != ignored) & (masks < num_classes)
      found = predict(images, tf.shape(labels['masks'])[1:3]).numpy()
      shown = None
      for number, (mask, is_valid, prediction) in enumerate(zip(masks, valid, found)):
        without = is_valid & (prediction == classifier_result.NO_CLASS)
        missed += np.bincount(mask[without], minlength=num_classes)
        matrix += classifier_result.confusion(mask[is_valid], prediction[is_valid], num_classes)
        right = float((mask == prediction)[is_valid].mean()) if is_valid.any() else 1.0
        if right < 1 and worst.accepts(1 - right):
          shown = pictures_lib.restored(images.numpy(), task)[0] if shown is None else shown
          truth = np.where(is_valid, mask, pictures_lib.Picture.ignored)
          drawn = np.where(prediction == classifier_result.NO_CLASS, pictures_lib.Picture.ignored, prediction)
          pair = [pictures_lib.Picture(shown[number], class_map=each) for each in (truth, drawn)]
          words = f'mask and prediction: {right:.1%} of pixels are right'
          worst.add(1 - right, count + number, pictures_lib.Mistake(words, pair))
      count += len(masks)
  if not count:
    raise input_faults.no_examples(data.path, config, config.global_batch_size)
  figures, tables = classifier_result.figures_of_pixels(matrix, names, missed)
  pictures = {'confusion_matrix': tensorboard.draw_confusion_matrix(matrix, names)} if num_classes > 1 else {}
  if worst.found:
    pictures['mistakes'] = pictures_lib.drawn_mistakes(worst.found, data.names)
  return results.Result({'examples': count, **figures}, tables, pictures)
