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
  def predict_examples(x: Any, *args: Any, **options: Any) -> Any:
    if isinstance(x, sources.Source):
      batch_size, *others = args or [options.pop('batch_size', None)]
      data = definitions.InMemoryDataConfig(global_batch_size=batch_size or _BATCH_SIZE, is_training=False)
      return predict(_features_of(step_indexed.build_dataset(x, data), model), None, *others, **options)
    return predict(_features_of(x, model) if isinstance(x, tf.data.Dataset) else x, *args, **options)

  object.__setattr__(model, 'predict', predict_examples)  # Keras tracks what is set otherwise.


def _features_of(dataset: tf.data.Dataset, model: tf_keras.Model) -> tf.data.Dataset:
  """Batches of features. Keras itself takes the first of a tuple."""
  spec = dataset.element_spec
  if isinstance(spec, Mapping) and supervised_task.FEATURES in spec and not _is_one_of_several_inputs(spec, model):
    return dataset.map(lambda batch: batch[supervised_task.FEATURES])
  return dataset


def _is_one_of_several_inputs(spec: Mapping[str, Any], model: tf_keras.Model) -> bool:
  """Whether the part `features` of a batch is one input of the model among others."""
  names = getattr(model, 'input_names', None) or ()
  return (
    len(names) > 1 and supervised_task.FEATURES in names and not isinstance(spec[supervised_task.FEATURES], Mapping)
  )
