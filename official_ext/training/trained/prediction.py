"""`model.predict` of a loaded model for the data of its task: sources, and batches with labels."""

from collections.abc import Mapping
import functools
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.config import definitions
from official_ext.training.tasks import supervised_task

_BATCH_SIZE = 32  # Keras'.


def extend(model: tf_keras.Model) -> None:
  """Lets `model.predict` take an `ext.Source`, and data sets whose batches have the keys of a `SupervisedTask`.

  Args:
    model: of a `SupervisedTask`. It is changed.

  Example:

    >>> model = tf_keras.Sequential([tf_keras.Input((1,)), tf_keras.layers.Dense(1, kernel_initializer='ones')])
    >>> extend(model)
    >>> source = ext.ArraySource({'features': np.array([[1.0], [2.0]], np.float32), 'labels': np.zeros(2)})
    >>> model.predict(source, verbose=0).tolist()
    [[1.0], [2.0]]
  """
  predict = model.predict

  @functools.wraps(predict)
  def predict_examples(x: Any, batch_size: int | None = None, **options: Any) -> Any:
    if isinstance(x, sources.Source):
      data = definitions.InMemoryDataConfig(global_batch_size=batch_size or _BATCH_SIZE, is_training=False)
      return predict(_features_of(step_indexed.build_dataset(x, data)), **options)
    if isinstance(x, tf.data.Dataset):
      return predict(_features_of(x), **options)
    return predict(x, batch_size=batch_size, **options)

  object.__setattr__(model, 'predict', predict_examples)  # Keras tracks what is set otherwise.


def _features_of(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Batches of features. Keras itself takes the first of a tuple."""
  spec = dataset.element_spec
  if isinstance(spec, Mapping) and supervised_task.FEATURES in spec:
    return dataset.map(lambda batch: batch[supervised_task.FEATURES])
  return dataset
