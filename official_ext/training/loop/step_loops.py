"""Loops of several steps inside one TensorFlow function, for steps of which one program runs several."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from official_ext.training.loop import step_inputs
from official_ext.training.step import training_step

LoopFn = Callable[[Any, tf.Tensor], None]


def make(
  step: training_step.TrainingStep, inputs: step_inputs.StepInputs, train_step: Callable[[Any], None]
) -> LoopFn | None:
  """Makes the loop `(iterator, num_steps) -> None` of a planned step; None if steps are run one by one.

  Args:
    step: the step, with its plan.
    inputs: takes the batches of a step.
    train_step: runs one update; the steps that remain after whole programs are run by it.
  """
  assert step.plan is not None
  if step.plan.execution == 'mesh':
    return _mesh_loop(step, inputs)
  if step.plan.steps_per_execution == 1:
    return None
  return tf.function(_gathering_loop(step, inputs) if step.plan.gathers else _fused_loop(step, inputs, train_step))


def _gathering_loop(step: training_step.TrainingStep, inputs: step_inputs.StepInputs) -> LoopFn:
  assert step.plan is not None
  at_most = step.plan.steps_per_execution

  def gathering_loop(iterator, num_steps):
    del iterator
    for done in tf.range(0, num_steps, at_most):
      with tf.name_scope(''):
        step.run_gathering(inputs.next_batch(), tf.minimum(num_steps - done, at_most))

  return gathering_loop


def _fused_loop(
  step: training_step.TrainingStep, inputs: step_inputs.StepInputs, train_step: Callable[[Any], None]
) -> LoopFn:
  assert step.plan is not None
  length = step.plan.steps_per_execution

  def fused_loop(iterator, num_steps):
    for _ in tf.range(num_steps // length):
      with tf.name_scope(''):
        step.run([inputs.take(iterator, i) for i in range(length)])
    for _ in tf.range(num_steps % length):
      with tf.name_scope(''):
        train_step(iterator)

  return fused_loop


def _mesh_loop(step: training_step.TrainingStep, inputs: step_inputs.StepInputs) -> LoopFn:
  """A loop in Python: batches come from the host, and are split over the devices between two steps."""

  def take(iterator):
    return inputs.take(iterator)

  take_in_graph = tf.function(take)

  def mesh_loop(iterator, num_steps):
    with step.on_mesh().running():
      for _ in range(int(num_steps)):
        step.run([take_in_graph(iterator)])

  return mesh_loop
