"""Runs steps: one class for each execution that a plan can name, behind `run(batches)`.

| execution | compiled by XLA | update |
|---|---|---|
| fused | the whole step, several of them in one program | in the program: see `GuardedUpdate.run_in_xla` |
| split | forward and backward, on each replica | in the graph; under a condition |
| plain | nothing (on TPU the strategy compiles) | in the graph; under a condition |
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from official_ext.data import in_memory as in_memory_lib
from official_ext.training.step import step_parts
from official_ext.training.step import step_plan
from official_ext.training.step import updates

do_not_convert = tf.autograph.experimental.do_not_convert

Update = updates.GuardedUpdate | updates.ManualUpdate


class Execution(Protocol):
  """Runs steps. Cross-replica context."""

  def run(self, batches: Sequence[Sequence[object]]) -> None:
    """Runs one step for each element, which has the micro-batches of the step."""


class GraphExecution:
  """Plain and split: the update is in TensorFlow's graph, one step after the other.

  The two differ in the calls of `update`: see `TaskStep.functions`.
  """

  def __init__(self, update: Update, parts: step_parts.StepParts):
    """Initializes the execution.

    Args:
      update: of a step.
      parts: the step's.
    """
    self._update = update
    self._strategy = parts.strategy
    self._run_one: Callable[[Any], None] = self._on_one_replica if parts.single_trace else update.run_on_replicas

  def _on_one_replica(self, micro_batches):
    self._strategy.run(self._update.run, args=(micro_batches,))

  @do_not_convert
  def run(self, batches: Sequence[Sequence[object]]) -> None:
    """See `Execution`."""
    for micro_batches in batches:
      self._run_one(list(micro_batches))


class FusedExecution:
  """Runs whole steps in one XLA program, on one replica.

  The program has one step, or a loop: over `plan.steps_per_execution` batches that are stacked, or over any number of
  batches that it gathers by itself. How many are run does not change the result of one of them.
  """

  def __init__(
    self,
    update: Update,
    plan: step_plan.StepPlan,
    parts: step_parts.StepParts,
    num_micro_steps: int,
    in_memory: in_memory_lib.InMemoryBatches | None = None,
  ):
    """Makes the programs; each is compiled when it first runs.

    Args:
      update: of a step.
      plan: how many steps a program has, and whether they are unrolled.
      parts: the step's.
      num_micro_steps: micro-batches of one step.
      in_memory: computes the batches, if the plan gathers.
    """
    self._update = update
    self._plan = plan
    self._in_memory = in_memory
    self._num_micro_steps = num_micro_steps
    self._strategy = parts.strategy
    compiled = lambda function: tf.function(function, jit_compile=True, autograph=False)
    self._one = compiled(update.run_in_xla)
    self._many = compiled(self._run_steps)

  @do_not_convert
  def run(self, batches: Sequence[Sequence[object]]) -> None:
    """See `Execution`. `batches` has one or `plan.steps_per_execution` steps."""
    if len(batches) == 1:
      self._strategy.run(self._one, args=(list(batches[0]),))
      return
    flat = [micro_batch for micro_batches in batches for micro_batch in micro_batches]
    stacked = tf.nest.map_structure(lambda *tensors: tf.stack(tensors), *flat)
    self._strategy.run(self._many, args=(stacked, tf.constant(len(batches))))

  @do_not_convert
  def run_gathering(self, first_batch: tf.Tensor, num_steps: tf.Tensor) -> None:
    """Runs steps that gather their batches. Cross-replica context.

    Args:
      first_batch: int64 scalar, the number of the batch with which they begin.
      num_steps: int32 scalar, at most `plan.steps_per_execution`.
    """
    self._strategy.run(self._many, args=(first_batch, num_steps))

  def _run_steps(self, inputs, num_steps):
    """Runs `num_steps` steps on micro-batches stacked, or from a number on. Replica context."""
    micro_steps = self._num_micro_steps
    gather = lambda part: part
    if self._in_memory is not None:
      gather = self._in_memory.gather
      inputs = self._in_memory.indices(inputs + tf.range(self._plan.steps_per_execution * micro_steps, dtype=tf.int64))

    def body(step):
      parts = [
        tf.nest.map_structure(lambda tensor, i=i: tensor[step * micro_steps + i], inputs) for i in range(micro_steps)
      ]
      self._update.run_in_xla([gather(part) for part in parts])
      return [step + 1]

    if self._plan.unroll:
      for step in range(self._plan.steps_per_execution):
        body(step)
    else:
      tf.while_loop(lambda step: step < num_steps, body, [tf.constant(0)])
