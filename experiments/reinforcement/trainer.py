"""The trainer of PPO: between the steps it plays, and keeps the rollouts."""

from collections.abc import Mapping
import hashlib
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

import official_ext as ext

from . import ppo
from . import rollouts

_FLOATS = ('log_probability', 'advantage', 'target')


class Memory(tf.Module):
  """The rollout of one policy, and the state of the games: all of it variables, and so part of every checkpoint.

  Attributes:
    iteration: the number of the rollout that is held, -1 for none: int64 scalar.
    steps: {'observation': float32 [m, size], 'action': int32 [m], 'log_probability', 'advantage', 'target': float32
      [m]}, m being the steps of all games.
    order: the steps' numbers, shuffled for each epoch: int32 [epochs, m].
    state: of the environments.
    running_return: the rewards so far of every episode that is being played: float32 [n].
  """

  def __init__(self, num_steps: int, epochs: int, observation_size: int, state: dict[str, np.ndarray]):
    super().__init__(name='memory')
    variable = lambda shape, dtype: tf.Variable(tf.zeros(shape, dtype), trainable=False)
    self.iteration = tf.Variable(tf.constant(-1, tf.int64), trainable=False)
    self.steps = {
      'observation': variable([num_steps, observation_size], tf.float32),
      'action': variable([num_steps], tf.int32),
      **{name: variable([num_steps], tf.float32) for name in _FLOATS},
    }
    self.order = variable([epochs, num_steps], tf.int32)
    self.state = {name: tf.Variable(value, trainable=False) for name, value in state.items()}
    self.running_return = variable([len(state['observation'])], tf.float32)


class PpoTrainer(ext.Trainer):
  """Trains on minibatches of rollouts: see base class.

  Batch number b belongs to rollout b // (epochs * minibatches). If the memory holds another one, the present policy
  plays first: the draws are a function of (seed, number of the rollout).
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
      UserError: the sizes do not fit together.
    """
    super().__init__(config, task, model, optimizer, train=train, **kwargs)
    self._plays = train
    if not train:
      return
    self._ppo, self._seed = config.task.ppo, config.runtime.seed
    self._batch_size = config.task.train_data.global_batch_size
    num_steps = self._ppo.num_environments * self._ppo.rollout_steps
    _check_sizes(config, num_steps, self.strategy.num_replicas_in_sync)
    self._minibatches = num_steps // self._batch_size
    self._environments = task.make_environments()
    self._memory = Memory(num_steps, self._ppo.epochs, self._environments.observation_size, self._begin(0))
    self.checkpoint.memory = self._memory
    self._finished = tf.Variable([0.0, 0.0], trainable=False)  # Returns and number of episodes, since the last log.
    use_xla = self._environments.is_tensorflow and config.runtime.enable_xla is not False
    self._play = tf.function(self._roll_out, jit_compile=use_xla, autograph=False)
    if not self._environments.is_tensorflow:
      print(
        'The environments run on the host, and no checkpoint holds their state: a continued run begins new '
        'episodes, and is not the uninterrupted one bit for bit.',
        flush=True,
      )

  def _begin(self, step: int) -> dict[str, np.ndarray]:
    """The environments at the start of episodes that belong to a step of training."""
    seeds = np.random.SeedSequence([self._seed, step]).generate_state(self._ppo.num_environments) >> 1
    return self._environments.begin(seeds.tolist())

  def checkpoint_restored(self, *args: Any, **kwargs: Any) -> None:
    """See base class. The environments' state on the host is reset."""
    super().checkpoint_restored(*args, **kwargs)
    if self._plays and not self._environments.is_tensorflow:
      for name, value in self._begin(int(self.global_step.numpy())).items():
        self._memory.state[name].assign(value)
      self._memory.running_return.assign(tf.zeros_like(self._memory.running_return))

  @tf.autograph.experimental.do_not_convert
  def next_train_inputs(self, iterator: tf.data.Iterator) -> object:
    """The next minibatch; plays before, where it is the first of a rollout. Cross-replica context."""
    number = self.strategy.experimental_local_results(next(iterator))[0]
    per_rollout = self._ppo.epochs * self._minibatches
    iteration = number // per_rollout

    def play():
      self._fill_memory(iteration)
      return 0

    tf.cond(tf.equal(self._memory.iteration, iteration), lambda: 0, play)
    return self._minibatch(number % per_rollout)

  def _minibatch(self, number: tf.Tensor) -> object:
    """A minibatch of the memory: 'observation', 'action' and the inputs of the loss, by replicas."""
    order = self._memory.order[number // self._minibatches]
    rows = tf.reshape(order, [self._minibatches, self._batch_size])[number % self._minibatches]
    batch = {name: tf.gather(values, rows) for name, values in self._memory.steps.items()}
    advantage = batch['advantage']
    deviation = tf.math.reduce_std(advantage)
    batch['advantage'] = (advantage - tf.reduce_mean(advantage)) / (deviation + 1e-8)
    num_replicas = self.strategy.num_replicas_in_sync
    if num_replicas == 1:
      return batch

    def share():
      replica = tf.distribute.get_replica_context().replica_id_in_sync_group
      size = self._batch_size // num_replicas
      return {
        name: tf.reshape(values, [num_replicas, size, *values.shape[1:]])[replica] for name, values in batch.items()
      }

    return self.strategy.run(share)

  def _fill_memory(self, iteration: tf.Tensor) -> None:
    """Plays with the present policy."""
    memory = self._memory
    state = {name: variable.read_value() for name, variable in memory.state.items()}
    out = self._play(state, memory.running_return.read_value(), iteration)
    tf.nest.map_structure(lambda variable, value: variable.assign(value), dict(memory.state), out['state'])
    tf.nest.map_structure(lambda variable, value: variable.assign(value), dict(memory.steps), out['steps'])
    memory.running_return.assign(out['running_return'])
    memory.order.assign(self._shuffled(iteration))
    memory.iteration.assign(iteration)
    self._finished.assign_add(out['finished'])

  def _roll_out(
    self, state: Mapping[str, tf.Tensor], running_return: tf.Tensor, iteration: tf.Tensor
  ) -> dict[str, object]:
    """The result of `rollouts.roll_out`, its 'steps' as the memory holds them."""
    config = self._ppo
    policy = lambda observation: self.model(observation, training=False)
    out = rollouts.roll_out(
      self._environments, policy, state, running_return, config.rollout_steps, self._stream('actions', iteration)
    )
    steps = out['steps']
    advantage = ppo.advantages_of(
      steps['reward'],
      steps['value'],
      steps['next_value'],
      steps['terminated'],
      steps['truncated'],
      config.discount,
      config.gae_lambda,
    )
    steps.update(advantage=advantage, target=advantage + steps['value'])
    out['steps'] = {name: tf.reshape(steps[name], variable.shape) for name, variable in self._memory.steps.items()}
    return out

  def _shuffled(self, iteration: tf.Tensor) -> tf.Tensor:
    """`Memory.order`. XLA has no kernel for it."""
    epochs, num_steps = self._memory.order.shape
    return tf.stack(
      [
        tf.random.experimental.stateless_shuffle(
          tf.range(num_steps), self._stream(f'epoch {epoch}', iteration), alg='philox'
        )
        for epoch in range(epochs)
      ]
    )

  def _stream(self, name: str, iteration: tf.Tensor) -> tf.Tensor:
    """A seed for stateless ops, a function of (seed, name, iteration): int64 of shape [2]."""
    digest = hashlib.sha256(f'{self._seed}/{name}'.encode()).digest()
    return tf.stack([tf.constant(int.from_bytes(digest[:8], 'little', signed=True), tf.int64), iteration])

  def train_loop_end(self) -> dict[str, object]:
    """See base class. Adds the mean return of the episodes that ended in this loop, and how many did."""
    logs = super().train_loop_end()
    total, number = self._finished.numpy()
    if number:
      logs.update(episode_return=total / number, episodes=number)
    self._finished.assign([0.0, 0.0])
    return logs


def _check_sizes(config: Any, num_steps: int, num_replicas: int) -> None:
  """Refuses sizes that cannot be cut evenly, and programs that would run over the end of a rollout.

  Raises:
    UserError: with the field.
  """
  batch_size, epochs = config.task.train_data.global_batch_size, config.task.ppo.epochs
  if num_steps % batch_size:
    raise ext.UserError(
      f'task.train_data.global_batch_size: {batch_size} does not divide the {num_steps} steps of a rollout '
      '(task.ppo.num_environments times task.ppo.rollout_steps)'
    )
  if batch_size % num_replicas:
    raise ext.UserError(
      f'task.train_data.global_batch_size: {batch_size} steps cannot be divided evenly among {num_replicas} replicas'
    )
  accumulation = config.trainer.gradient_accumulation_steps
  if (num_steps // batch_size * epochs) % accumulation:
    raise ext.UserError(
      f'trainer.gradient_accumulation_steps: {accumulation} does not divide the {num_steps // batch_size * epochs} '
      'minibatches of a rollout'
    )
  if config.trainer.steps_per_execution != 1:
    raise ext.UserError(
      f'trainer.steps_per_execution: {config.trainer.steps_per_execution}: the policy plays between steps; set it to 1'
    )
