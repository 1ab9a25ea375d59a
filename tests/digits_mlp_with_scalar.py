"""The experiment `digits_mlp` whose step also logs a plain scalar, `confidence`: the largest probability."""

import ctypes
import dataclasses
import os
import time

import numpy as np
from official.core import exp_factory
from official.core import task_factory
import tensorflow as tf

from experiments.digits_mlp import configs
from experiments.digits_mlp import task
from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.config import definitions


@dataclasses.dataclass
class DigitsMlpWithScalarConfig(configs.DigitsMlpTaskConfig):
  """As its base.

  Attributes:
    bad_example: The number of a training example whose pixels are NaN. -1: none.
    evaluation_fails: Whether every evaluation ends with an error.
    reading_seconds: How long the examples of a training batch take to be read. 0: they are in memory.
    logs_batches: Whether a step logs `batch`, which identifies its global batch, and does not depend on how many
      replicas share it.
  """

  bad_example: int = -1
  evaluation_fails: bool = False
  reading_seconds: float = 0.0
  logs_batches: bool = False


@task_factory.register_task_cls(DigitsMlpWithScalarConfig)
class DigitsMlpWithScalarTask(task.DigitsMlpTask):
  def build_inputs(self, params, input_context=None):
    data = dict(task.examples(bool(params.is_training)))
    if params.is_training and self.config.bad_example >= 0:
      data['pixels'] = data['pixels'].copy()
      data['pixels'][self.config.bad_example] = np.nan
    source = sources.ArraySource(data)
    if params.is_training and self.config.reading_seconds:
      source = _SlowSource(source, self.config.reading_seconds)
    dataset = step_indexed.build_dataset(source, params, input_context)
    flag = os.environ.get('HANG_ONCE')
    return dataset.map(lambda batch: _hanging(batch, flag)) if flag and params.is_training else dataset

  def aggregate_logs(self, state=None, step_outputs=None):
    if self.config.evaluation_fails:
      raise ArithmeticError('a mistake')
    return [*(state or ()), *(value.numpy() for value in step_outputs['confidences'])]

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    rows = np.concatenate(aggregated_logs)
    return {'rows': len(rows), 'least_confidence': rows.min(), 'confidence_of_rows': rows.mean(dtype=np.float64)}

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    confidence = tf.reduce_max(tf.nn.softmax(logs['accuracy'][1]), axis=-1)
    logs = {**logs, 'confidence': tf.reduce_mean(confidence)}
    if not training:
      logs['confidences'] = confidence  # For `aggregate_logs`.
    if training and self.config.logs_batches:
      # Sixteenths of whole numbers, at most 512 for an example: float32 holds their sum over 64 examples exactly.
      weights = tf.range(64, dtype=tf.float32) % 8 + 1
      logs['batch'] = tf.reduce_mean(tf.reduce_sum(inputs['pixels'] * weights, axis=-1))
    return loss, logs


class _SlowSource(sources.Source):
  """Another source, read slowly."""

  def __init__(self, source, seconds):
    self._source, self._seconds = source, seconds

  def __len__(self):
    return len(self._source)

  def fetch(self, indices):
    time.sleep(self._seconds)
    return self._source.fetch(indices)


def _hanging(batch, flag):
  """The batch; of worker HANG_WORKER (1), the 70th blocks, where there is no file `flag` yet, which is made then."""
  worker = os.environ.get('HANG_WORKER', '1')

  def pass_on(label):
    _counted.append(1)
    if f'"index": {worker}' in os.environ.get('TF_CONFIG', '') and len(_counted) == 70 and not os.path.exists(flag):
      open(flag, 'w').close()
      mutex = ctypes.create_string_buffer(64)
      for _ in range(2 if os.environ.get('HANG_WITH_LOCK') else 0):  # The second waits for ever, with Python's lock.
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
      time.sleep(1000)
    return label

  label = batch['label']
  return {**batch, 'label': tf.ensure_shape(tf.numpy_function(pass_on, [label], label.dtype), label.shape)}


_counted: list = []


@exp_factory.register_config_factory('digits_mlp_with_scalar')
def digits_mlp_with_scalar() -> definitions.ExperimentConfig:
  return definitions.ExperimentConfig(task=DigitsMlpWithScalarConfig(), trainer=configs.digits_mlp().trainer)
