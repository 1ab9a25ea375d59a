"""Finds a task whose `forward` adds the model's own losses (regularizers), which `ext.Task` adds as well."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from official_ext.training.devices import failures
from official_ext.training.diagnosis import findings
from official_ext.training.loop import base_task


def find(task: base_task.Task, model: Any, batch: Any) -> Sequence[findings.Finding]:
  """Looks for a loss of `forward` that depends on `model.losses`.

  The model gets one more loss, a variable of value 0. A derivative of the loss with respect to it shows that `forward`
  adds the model's losses; one that only logs them has none. Losses by index, or computed again from the weights, are
  not found.

  Args:
    task: its `forward` is called once, in training.
    model: has run a step. It keeps the additional loss.
    batch: one of the training data.
  """
  steps_are_ours = all(
    getattr(type(task), name) is getattr(base_task.Task, name) for name in ('train_step', '_loss_and_logs')
  )
  if not steps_are_ours or not getattr(model, 'losses', ()) or not hasattr(model, 'add_loss'):
    return []
  probe = tf.Variable(0.0, trainable=False)
  model.add_loss(lambda: tf.identity(probe))
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(probe)
    loss, _ = task.forward(batch, model, training=True)
  if tape.gradient(loss, probe) is None:
    return []
  return [
    findings.Finding(
      'error',
      failures.of_function(task.forward),
      "the loss of forward includes model.losses (regularizers), which the task's steps add too: they count twice",
      'remove model.losses from the loss that forward returns',
    )
  ]
