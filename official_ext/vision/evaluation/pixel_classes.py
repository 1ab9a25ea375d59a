"""The evaluation of semantic segmentation."""

import numpy as np
import tensorflow as tf

from official_ext.data import input_faults
from official_ext.training.evaluation import class_figures
from official_ext.training.evaluation import evaluated_data
from official_ext.training.evaluation import results
from official_ext.training.trained import trained_model
from official_ext.training.writers import confusion_image
from official_ext.vision.evaluation import mistakes
from official_ext.vision.preview import batch_pictures


def evaluate(
  trained: trained_model.TrainedModel, data: evaluated_data.EvaluatedData, num_mistakes: int
) -> results.Result:
  """Evaluates a segmentation at the size of its input, with masks resized to it.

  Logits are resized to the mask, as in official/vision/evaluation/segmentation_metrics.py. Ignored pixels do not count.

  Args:
    trained: a run of Model Garden's SemanticSegmentationTask.
    data: the data.
    num_mistakes: how many images to draw, those with the lowest share of right pixels.

  Raises:
    UserError: the data has no examples.
  """
  task, task_config = trained.task, trained.task.task_config
  num_classes, ignored = task_config.model.num_classes, task_config.losses.ignore_label
  names = data.class_list(num_classes)
  config = data.config.replace(resize_eval_groundtruth=True)

  @tf.function
  def predict(images: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    outputs = task.inference_step(images, trained.model)
    logits = outputs['logits'] if isinstance(outputs, dict) else outputs
    return tf.argmax(tf.image.resize(tf.cast(logits, tf.float32), size), -1)

  matrix, worst, count = np.zeros([num_classes, num_classes], np.int64), mistakes.Worst(num_mistakes), 0
  with input_faults.explained(data.path, config, task.build_inputs):
    for batch in task.build_inputs(config):
      images, labels = batch
      masks = labels['masks'].numpy()[..., 0].astype(np.int64)
      valid = labels['valid_masks'].numpy()[..., 0].astype(bool) & (masks != ignored) & (masks < num_classes)
      found = predict(images, tf.shape(labels['masks'])[1:3]).numpy()
      shown = None
      for number, (mask, is_valid, prediction) in enumerate(zip(masks, valid, found)):
        matrix += class_figures.confusion(mask[is_valid], prediction[is_valid], num_classes)
        right = float((mask == prediction)[is_valid].mean()) if is_valid.any() else 1.0
        if right < 1 and worst.accepts(1 - right):
          shown = batch_pictures.restored(images.numpy(), task)[0] if shown is None else shown
          truth = np.where(is_valid, mask, batch_pictures.Picture.ignored)
          pair = [batch_pictures.Picture(shown[number], class_map=each) for each in (truth, prediction)]
          words = f'mask and prediction: {right:.1%} of pixels are right'
          worst.add(1 - right, count + number, mistakes.Mistake(words, pair))
      count += len(masks)
  if not count:
    raise input_faults.no_examples(data.path, config, config.global_batch_size)
  figures, tables = class_figures.of_pixels(matrix, names)
  pictures = {'confusion_matrix': confusion_image.draw(matrix, names)} if num_classes > 1 else {}
  if worst.found:
    pictures['mistakes'] = mistakes.drawn(worst.found, data.names)
  return results.Result({'examples': count, **figures}, tables, pictures)
