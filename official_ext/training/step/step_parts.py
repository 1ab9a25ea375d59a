"""The objects and settings that all parts of a training step share."""

import dataclasses
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.training.config import mesh_config
from official_ext.training.config import trainer_parts
from official_ext.training.step import step_state


@dataclasses.dataclass(frozen=True)
class StepParts:
  """The objects that a step reads and writes.

  Attributes:
    task: the task, whose `train_step` is run.
    model: the task's model.
    optimizer: the trainer's, with its wrappers.
    metrics: the training metrics.
    train_loss: the mean of the training loss.
    global_step: int64 scalar variable, the number of updates done.
    state: which updates were skipped, and what the losses were.
    strategy: the strategy in whose scope all of these were made.
  """

  task: Any
  model: Any
  optimizer: Any
  metrics: list[Any]
  train_loss: tf_keras.metrics.Mean
  global_step: tf.Variable
  state: step_state.StepState
  strategy: tf.distribute.Strategy

  @property
  def single_trace(self) -> bool:
    """Whether replica code may contain the update: one replica without a separate thread, or TPU."""
    if isinstance(self.strategy, (tf.distribute.OneDeviceStrategy, tf.distribute.TPUStrategy)):
      return True
    with self.strategy.scope():
      return not tf.distribute.has_strategy()  # The default strategy.


@dataclasses.dataclass(frozen=True)
class StepSettings:
  """The configuration of a step.

  Attributes:
    seed: `runtime.seed`.
    gradient_accumulation_steps: `trainer.gradient_accumulation_steps`, micro-batches of one update.
    loss_spike: `trainer.loss_spike`.
    mesh: `runtime.mesh`.
    sharding: `trainer.sharding`.
  """

  seed: int = 0
  gradient_accumulation_steps: int = 1
  loss_spike: trainer_parts.LossSpikeConfig = dataclasses.field(default_factory=trainer_parts.LossSpikeConfig)
  mesh: mesh_config.MeshConfig = dataclasses.field(default_factory=mesh_config.MeshConfig)
  sharding: mesh_config.ShardingConfig = dataclasses.field(default_factory=mesh_config.ShardingConfig)
