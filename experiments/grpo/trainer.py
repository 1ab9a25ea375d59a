"""The trainer that samples between the steps: for rewards in Python, and where a step needs to know more than its own
batch."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import rollouts


class GrpoTrainer(ext.Trainer):
  """Samples and scores the completions of an update before it, with the present weights: see base class.

  The completions are a function of (seed, step, weights), if the sampler draws the same for the same seed. With
  `task.num_iterations` above 1 rollouts are kept for as many updates, in variables that every checkpoint holds.
  """

  def __init__(
    self,
    config: Any,
    task: Any,
    model: tf_keras.Model,
    optimizer: tf_keras.optimizers.Optimizer,
    train: bool = True,
    **kwargs: Any,
  ):
    """See base class.

    Raises:
      UserError: several steps are to be one program.
    """
    super().__init__(config, task, model, optimizer, train=train, **kwargs)
    if train and config.trainer.steps_per_execution > 1:
      raise ext.UserError(
        f'trainer.steps_per_execution: {config.trainer.steps_per_execution}: completions are sampled between steps '
        f'({task.why_between_steps}), so that a program holds one step; set 0 or 1'
      )
    self._held: list[object] = []
    self._memory: dict[str, tf.Variable] = {}
    self._num_iterations = config.task.num_iterations
    if train and self._num_iterations > 1:
      self._memory = self._make_memory(config.task)
      self.checkpoint.rollouts = tf.train.Checkpoint(**self._memory)
    if train:
      task.training_sampler.prepare(model, config.task.train_data.seq_length)

  def _make_memory(self, config):
    """The rollouts of an update: variables [micro-batches, completions, ...]."""
    number = config.train_data.global_batch_size * config.num_generations
    widths = {
      **dict.fromkeys(('prompt_ids', 'prompt_mask'), (config.train_data.seq_length,)),
      **dict.fromkeys(('completion_ids', 'completion_mask'), (config.max_completion_length,)),
      **dict.fromkeys(('sampled_log_probs', 'old_log_probs'), (config.max_completion_length,)),
      'is_truncated': (),
      'rewards': (len(self.task.rewards),),
    }
    dtypes = {'is_truncated': tf.bool}
    dtypes |= dict.fromkeys(('prompt_ids', 'prompt_mask', 'completion_ids', 'completion_mask'), tf.int32)
    make = lambda shape, dtype: tf.Variable(tf.zeros(shape, dtype), trainable=False)
    found = {
      name: make((self.gradient_accumulation_steps, number, *shape), dtypes.get(name, tf.float32))
      for name, shape in widths.items()
    }
    return {**found, 'num_items_in_batch': make((), tf.float32)}

  @tf.autograph.experimental.do_not_convert
  def next_train_inputs(self, iterator: tf.data.Iterator) -> object:
    """The next rollouts, with their rewards; samples before an update's first micro-batch."""
    if self.micro_step == 0:
      count = self.gradient_accumulation_steps
      batches = [super(GrpoTrainer, self).next_train_inputs(iterator) for _ in range(count)]
      self._held = self._remembered(batches) if self._memory else self._sampled(batches)
    return self._held[self.micro_step]

  def _sampled(self, batches):
    """The rollouts of an update's micro-batches, by replicas."""
    weights = self.task.training_sampler.take_weights(self.model, self.global_step.read_value())
    with tf.control_dependencies([weights]):
      seed = tf.identity(self.task.make_seed('completions'))  # Every draw depends on it.
    found = []
    for number, batch in enumerate(batches):
      position = seed[1] * len(batches) + number
      found.append(self.strategy.run(self._roll_out, args=(batch, tf.stack([seed[0], position]))))
    totals = [self.strategy.reduce('SUM', rollout.pop('num_tokens'), axis=None) for rollout in found]
    share = tf.add_n(totals) / (len(batches) * self.strategy.num_replicas_in_sync)
    with_share = lambda rollout: {**rollout, 'num_items_in_batch': tf.identity(share)}
    return [self.strategy.run(with_share, args=(rollout,)) for rollout in found]

  def _roll_out(self, batch: Mapping[str, tf.Tensor], seed: tf.Tensor) -> rollouts.Rollout:
    """A replica's rollout, with rewards."""
    replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int64)
    position = seed[1] * self.strategy.num_replicas_in_sync + replica
    rollout = self.task.scored_rollout(self.model, batch, tf.stack([seed[0], position]))
    if self._memory:
      rollout['old_log_probs'] = rollouts.log_probs(self.model, rollout, self.config.task.temperature)
    tokens = tf.reduce_sum(self.task.loss_mask(rollout))
    return {**rollout, 'num_tokens': tokens}

  # Several updates with the same rollouts.

  def _remembered(self, batches):
    """The same, sampled again in the first of every `num_iterations` updates."""

    def fill():
      found = self._sampled(batches)
      for name, variable in self._memory.items():
        if name == 'num_items_in_batch':
          variable.assign(self.strategy.experimental_local_results(found[0][name])[0])
        else:
          variable.assign(tf.stack([self._gathered(rollout[name], variable.dtype) for rollout in found]))
      return 0

    is_first = tf.equal(self.global_step.read_value() % self._num_iterations, 0)
    tf.cond(is_first, fill, lambda: 0)
    return [self._share(number) for number in range(len(batches))]

  def _gathered(self, values, dtype):
    """The tensors of all replicas, concatenated. Truth values are gathered as numbers."""
    if dtype != tf.bool:
      return self.strategy.gather(values, axis=0)
    return tf.cast(self.strategy.gather(self.strategy.run(tf.cast, args=(values, tf.int32)), axis=0), tf.bool)

  def _share(self, number):
    """Each replica's part of the rollouts of a micro-batch."""
    num_replicas = self.strategy.num_replicas_in_sync
    values = {name: variable.read_value() for name, variable in self._memory.items()}

    def share():
      replica = tf.distribute.get_replica_context().replica_id_in_sync_group
      part = lambda value: tf.reshape(value[number], [num_replicas, -1, *value.shape[2:]])[replica]
      return {name: value if value.shape.rank == 0 else part(value) for name, value in values.items()}

    return self.strategy.run(share)
