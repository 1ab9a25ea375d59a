"""A step by hand in tf.function, with nothing around it: no guard, no metrics, no logs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from benchmarks.peers import protocol
from benchmarks.peers.runners import decoder_tf
from benchmarks.peers.runners import keras_models
from benchmarks.peers.work import training


def measurement(
  work: training.Work, jit_compile: bool, steps_per_program: int = 0, phase: str = 'train', bfloat16: bool = False
) -> protocol.Measurement:
  """Steps, or examples of predictions.

  Args:
    work: its computation.
    jit_compile: whether XLA compiles the step.
    steps_per_program: 0 for a loop of TensorFlow's around steps; a number for a loop inside XLA, that gathers its
      batches from the data that it holds.
    phase: 'train' or 'evaluate'.
    bfloat16: whether the products of a decoder are in bfloat16.
  """
  if work.architecture == 'decoder':
    model: Callable[..., Any] = decoder_tf.Decoder(work, bfloat16)
  else:
    model = keras_models.build(tf_keras, work)
  network = _Network(model, work)
  inputs, labels = work.check_batch
  loss = lambda: float(network.loss(tf.constant(inputs), tf.constant(labels), training=False))
  parameters = sum(variable.shape.num_elements() for variable in model.trainable_variables)
  if phase == 'evaluate':
    run, multiple = _evaluation(work, model, jit_compile), len(work.inputs)
  elif steps_per_program:
    run, multiple = _programs(work, network, steps_per_program), steps_per_program
  else:
    run, multiple = _loop(work, network, jit_compile), 1
  return protocol.Measurement(run, multiple, parameters, loss, is_reduced=bfloat16)


class _Network:
  """A model with its optimizer."""

  def __init__(self, model: Any, work: training.Work):
    self._model = model
    self._optimizer = keras_models.optimizer(tf_keras, work)
    self._optimizer.build(model.trainable_variables)

  def loss(self, inputs, labels, training):
    """The mean cross-entropy."""
    logits = self._model(inputs, training=training)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

  def step(self, inputs, labels):
    """One update; returns the loss before it."""
    variables = self._model.trainable_variables
    with tf.GradientTape() as tape:
      loss = self.loss(inputs, labels, training=True)
    self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss


def _loop(work, network, jit_compile):
  dataset = tf.data.Dataset.from_tensor_slices((work.inputs, work.labels)).cache().shuffle(len(work.inputs), seed=0)
  iterator = iter(dataset.repeat().batch(work.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE))
  step = tf.function(network.step, jit_compile=jit_compile, autograph=False)

  @tf.function
  def loop(iterator, num_steps):
    loss = tf.constant(0.0)
    for _ in tf.range(num_steps):
      inputs, labels = next(iterator)
      loss = step(inputs, labels)
    return loss

  def run(num_steps: int) -> Mapping[str, float]:
    return {'loss': float(loop(iterator, tf.constant(num_steps)))}

  return run


def _programs(work, network, steps_per_program):
  """The whole loop in XLA. Keras' seeds have no place in it: not for dropout."""
  with tf.device('CPU:0'):
    inputs, labels = tf.constant(work.inputs), tf.constant(work.labels)

  @tf.function(jit_compile=True, autograph=False)
  def program(rows):
    def body(step, _):
      indices = rows[step]
      return step + 1, network.step(tf.gather(inputs, indices), tf.gather(labels, indices))

    return tf.while_loop(lambda step, _: step < steps_per_program, body, [tf.constant(0), tf.constant(0.0)])[1]

  size = work.batch_size

  rng, num_examples = np.random.default_rng(0), len(work.inputs)
  num_epochs = 1 + steps_per_program * size // num_examples

  def run(num_steps: int) -> Mapping[str, float]:
    for _ in range(num_steps // steps_per_program):
      rows = np.concatenate([rng.permutation(num_examples) for _ in range(num_epochs)])
      rows = rows[: steps_per_program * size].reshape(steps_per_program, size).astype(np.int32)
      loss = program(tf.constant(rows))
    return {'loss': float(loss)}

  return run


def _evaluation(work, model, jit_compile):
  dataset = tf.data.Dataset.from_tensor_slices((work.inputs, work.labels)).batch(work.batch_size)
  dataset = dataset.prefetch(tf.data.AUTOTUNE)
  predict = tf.function(lambda inputs: model(inputs, training=False), jit_compile=jit_compile, autograph=False)

  @tf.function
  def one_pass():
    right = tf.constant(0.0)
    for inputs, labels in dataset:
      right += tf.reduce_sum(tf.cast(tf.argmax(predict(inputs), -1, tf.int32) == labels, tf.float32))
    return right

  def run(num_examples: int) -> Mapping[str, float]:
    for _ in range(num_examples // len(work.inputs)):
      right = one_pass()
    return {'accuracy': float(right) / len(work.inputs)}

  return run
