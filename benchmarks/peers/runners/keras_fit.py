"""`Model.fit` and `Model.evaluate`: of tf_keras, or of Keras 3 on the backend that KERAS_BACKEND names."""

from collections.abc import Mapping
import importlib
import math
import time
from typing import Any

from benchmarks.peers import protocol
from benchmarks.peers.runners import keras_models
from benchmarks.peers.work import training


def measurement(
  work: training.Work,
  keras_module: str,
  jit_compile: bool | str = 'auto',
  steps_per_execution: int = 1,
  phase: str = 'train',
) -> protocol.Measurement:
  """Steps of `fit`, or examples of `evaluate`.

  Args:
    work: its computation.
    keras_module: 'tf_keras' or 'keras'.
    jit_compile: of `compile`.
    steps_per_execution: of `compile`.
    phase: 'train' or 'evaluate'.
  """
  keras = importlib.import_module(keras_module)
  model = keras_models.compiled(keras, work, jit_compile=jit_compile, steps_per_execution=steps_per_execution)
  parameters = sum(math.prod(weight.shape) for weight in model.trainable_weights)
  inputs, labels = work.check_batch
  loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  loss = lambda: float(loss_of(labels, model(inputs, training=False)))
  note = lambda: f'jit_compile={jit_compile}, steps_per_execution={steps_per_execution}'
  if phase == 'evaluate':
    dataset = _batches(work)

    def evaluate(num_examples: int) -> Mapping[str, float]:
      for _ in range(num_examples // len(work.inputs)):
        logs = model.evaluate(dataset, verbose=0, return_dict=True)
      return logs

    return protocol.Measurement(evaluate, len(work.inputs), parameters, loss, note)

  dataset = _shuffled(work)
  clock = _clock(keras)

  def run(num_steps: int) -> Mapping[str, float]:
    logs = model.fit(dataset, steps_per_epoch=num_steps, epochs=1, verbose=0, callbacks=[clock]).history
    return {'loss': logs['loss'][-1], 'seconds': clock.seconds}

  return protocol.Measurement(run, steps_per_execution, parameters, loss, note)


def _clock(keras: Any) -> Any:
  """A callback that times the epoch alone: `fit` takes a while before it, once in a user's run."""

  class Clock(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
      self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
      self.seconds = time.perf_counter() - self._start

  return Clock()


def _batches(work: training.Work) -> Any:
  import tensorflow as tf

  dataset = tf.data.Dataset.from_tensor_slices((work.inputs, work.labels))
  return dataset.batch(work.batch_size).prefetch(tf.data.AUTOTUNE)


def _shuffled(work: training.Work) -> Any:
  import tensorflow as tf

  dataset = tf.data.Dataset.from_tensor_slices((work.inputs, work.labels)).cache().shuffle(len(work.inputs), seed=0)
  return dataset.repeat().batch(work.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
