"""Computes which part of every global batch one input pipeline makes."""

import dataclasses

from official.modeling.hyperparams import base_config
import tensorflow as tf

from official_ext.base import errors


def path_of(params: base_config.Config) -> str:
  """The dotted path of a data configuration, for messages."""
  return f'task.{"train_data" if params.is_training else "validation_data"}'


@dataclasses.dataclass(frozen=True)
class Share:
  """The part of every global batch that one input pipeline makes.

  Attributes:
    global_batch_size: G, the number of examples in a global batch.
    batch_size: b, the number of examples in a replica's slice.
    first_replica: the index of the pipeline's first replica among all.
    num_replicas: the number of the pipeline's replicas.
  """

  global_batch_size: int
  batch_size: int
  first_replica: int
  num_replicas: int

  @classmethod
  def of(
    cls, params: base_config.Config, input_context: tf.distribute.InputContext | None, what: str = 'examples'
  ) -> 'Share':
    """The share of one input pipeline.

    Args:
      params: a data configuration. Fields read: global_batch_size, is_training.
      input_context: which of the pipelines it is. None: the only one, for one replica.
      what: the name of the batch's source, for messages.

    Raises:
      UserError: `global_batch_size` is not positive, or cannot be divided among the replicas.
      ValueError: the replicas cannot be divided among the pipelines.
    """
    size = params.global_batch_size
    field = f'{path_of(params)}.global_batch_size'
    if size <= 0:
      raise errors.UserError(f'{field}: must be positive, is {size}')
    if input_context is None:
      return cls(size, size, 0, 1)
    num_replicas = input_context.num_replicas_in_sync
    if size % num_replicas:
      raise errors.UserError(f'{field}: {size} {what} cannot be divided evenly among {num_replicas} replicas')
    num_local, rest = divmod(num_replicas, input_context.num_input_pipelines)
    if rest:
      raise ValueError(f'{num_replicas} replicas cannot share {input_context.num_input_pipelines} pipelines evenly.')
    return cls(size, size // num_replicas, input_context.input_pipeline_id * num_local, num_local)

  @property
  def is_whole(self) -> bool:
    """Whether there is no other replica."""
    return self.batch_size == self.global_batch_size

  def positions(self, steps: tf.Tensor) -> tf.Tensor:
    """The positions of the pipeline's elements.

    Args:
      steps: int64 tensor of shape [s].

    Returns:
      An int64 tensor of shape [s * num_replicas, b]: one row for each step and replica, replicas innermost.
    """
    replicas = tf.range(self.first_replica, self.first_replica + self.num_replicas, dtype=tf.int64)
    starts = steps[:, tf.newaxis] * self.global_batch_size + replicas * self.batch_size
    return tf.reshape(starts, [-1, 1]) + tf.range(self.batch_size, dtype=tf.int64)
