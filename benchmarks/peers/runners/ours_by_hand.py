"""The same model, optimizer and input as ours, in the same shape of program, by hand: the baseline for the cost of our
features.

With `guarded`, a program also does the same as ours in each step, and no more: it tests loss and gradients for finite
numbers, undoes its steps if one is not, and keeps the means of loss and norm. Without, it only updates.
"""

from collections.abc import Mapping

import official_ext as ext  # Before tensorflow.

# isort: split
import tensorflow as tf

from benchmarks.peers import protocol
from benchmarks.peers.runners import tasks
from benchmarks.peers.work import training
from official_ext.training.loop import base_trainer
from official_ext.training.step import gradient_tap


def measurement(work: training.Work, steps_per_loop: int, guarded: bool) -> protocol.Measurement:
  """Steps, in whole loops.

  Args:
    work: of the training.
    steps_per_loop: of the loop by hand, and of the trainer whose plan is copied.
    guarded: see above.
  """
  params = tasks.experiment(work, steps_per_loop=steps_per_loop)
  strategy, trainer = tasks.make_trainer(work, params, tasks.task_class(work, pipeline=False), base_trainer.Trainer)
  with strategy.scope():
    trainer.prepare_training()  # Plans.
  plan, steps = trainer.plan, trainer.plan.steps_per_execution
  network = _ByHand(trainer.model, trainer.optimizer, guarded)
  program = tf.function(network.program, jit_compile=plan.jit_compile, autograph=False)

  @tf.function
  def loop(iterator, num_programs):
    for _ in tf.range(num_programs):
      batches = [next(iterator) for _ in range(steps)]
      program(tf.nest.map_structure(lambda *tensors: tf.stack(tensors), *batches))

  def run(num_steps: int) -> Mapping[str, float]:
    for _ in range(num_steps // steps_per_loop):
      loop(trainer.train_iterator, tf.constant(steps_per_loop // steps))
    return {'loss': float(network.last_loss)}

  inputs, labels = (tf.constant(array) for array in work.check_batch)
  loss = lambda: float(ext.losses.label(trainer.model(inputs, training=False), labels))
  parameters = sum(variable.shape.num_elements() for variable in trainer.model.trainable_variables)
  return protocol.Measurement(run, steps_per_loop, parameters, loss, lambda: f'as ours: {plan}')


class _ByHand:
  """Programs of some steps.

  Attributes:
    last_loss: of the last step.
  """

  def __init__(self, model, optimizer, guarded):
    self._model, self._optimizer, self._guarded = model, optimizer, guarded
    optimizer.build(model.trainable_variables)
    self.last_loss = tf.Variable(0.0, trainable=False)
    self._means = [tf.Variable(0.0, trainable=False) for _ in range(4)]  # Sums and counts.

  def _step(self, inputs):
    variables = self._model.trainable_variables
    with tf.GradientTape() as tape:
      loss = ext.losses.label(self._model(inputs['x'], training=True), inputs['label'])
    gradients = tape.gradient(loss, variables)
    self._optimizer.apply_gradients(zip(gradients, variables))
    self.last_loss.assign(loss)
    if not self._guarded:
      return tf.constant(True)
    norm = gradient_tap.global_norm(gradients, on_cpu=True)
    for mean, value in zip(self._means, (loss, 1.0, norm, 1.0)):
      mean.assign_add(value)
    return tf.math.is_finite(loss) & tf.math.is_finite(norm)

  def program(self, stacked):
    """Runs a step for each of the batches that are stacked along a new first dimension."""
    num_steps = tf.nest.flatten(stacked)[0].shape[0]
    written = [*self._model.trainable_variables, *self._optimizer.variables, *self._means] if self._guarded else []
    before = [variable.read_value() for variable in written]

    def body(step, ok):
      return step + 1, tf.logical_and(ok, self._step(tf.nest.map_structure(lambda tensor: tensor[step], stacked)))

    ok = tf.while_loop(lambda step, _: step < num_steps, body, [tf.constant(0), tf.constant(True)])[1]
    for variable, value in zip(written, before):
      variable.assign(tf.where(ok, variable.read_value(), value))
