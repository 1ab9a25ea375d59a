"""The task `reinforcement`: environments, model and loss."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

import official_ext as ext

from . import cart_pole
from . import configs
from . import gym_environments
from . import ppo
from . import rollouts
from . import trainer


@ext.register_task(configs.ReinforcementTaskConfig)
class ReinforcementTask(ext.Task):
  """PPO. The trainer plays, in `next_train_inputs`; the task learns from minibatches of the rollout."""

  trainer_cls = trainer.PpoTrainer

  def __init__(self, params: configs.ReinforcementTaskConfig, **kwargs: object):
    """See base class.

    Raises:
      UserError: there is no such environment.
    """
    super().__init__(params, **kwargs)
    self.make_environments()  # Fails at once where it cannot.

  def make_environments(self) -> Any:
    """A `cart_pole.CartPole` or a `gym_environments.GymEnvironments`."""
    kind = self.config.environment
    if kind == 'gymnasium':
      return gym_environments.GymEnvironments(self.config.environment_id)
    if kind != 'tensorflow':
      raise ext.UserError(f"task.environment: expected 'tensorflow' or 'gymnasium', got {kind!r}")
    if self.config.environment_id != 'CartPole-v1':
      raise ext.UserError(
        f'task.environment_id: {self.config.environment_id}: only CartPole-v1 has TensorFlow ops; set '
        'task.environment=gymnasium'
      )
    return cart_pole.CartPole()

  def build_model(self) -> tf_keras.Model:
    """Policy and value: see `ppo.build_actor_critic`."""
    environments = self.make_environments()
    return ppo.build_actor_critic(
      environments.observation_size, environments.num_actions, self.config.model.hidden_sizes
    )

  def build_inputs(
    self, params: configs.StepsDataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """For training the numbers of the minibatches, which the trainer looks up; for evaluation the episodes."""
    if params.is_training:
      num_local = 1
      if input_context is not None:
        num_local = input_context.num_replicas_in_sync // input_context.num_input_pipelines
      # Once for each replica: all of them take part in the same global minibatch.
      numbers = tf.data.Dataset.counter(ext.take_start())
      return numbers.flat_map(lambda number: tf.data.Dataset.from_tensors(number).repeat(num_local))
    episodes = ext.ArraySource({'seed': np.arange(params.num_episodes, dtype=np.int64)})
    return ext.build_dataset(episodes, params, input_context)

  def build_metrics(self, training: bool = True):
    """The number of episodes that were played."""
    return [] if training else [tf_keras.metrics.Sum('num_episodes')]

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """The loss of PPO on a minibatch of steps."""
    return ppo.ppo_loss(model(inputs['observation'], training=training), inputs, self.config.ppo)

  @tf.autograph.experimental.do_not_convert
  def validation_step(
    self,
    inputs: Mapping[str, tf.Tensor],
    model: tf_keras.Model,
    metrics: Sequence[tf_keras.metrics.Metric] | None = None,
  ) -> Mapping[str, object]:
    """Plays episodes by the likeliest action. The loss is the mean return, negative."""
    environments = self.make_environments()  # Every replica's own.
    specs = environments.state_specs()

    def begin(seeds):
      return tf.nest.flatten(environments.begin(seeds.tolist()))

    flat = tf.numpy_function(begin, [inputs['seed']], [spec.dtype for spec in tf.nest.flatten(specs)])
    for part, spec in zip(flat, tf.nest.flatten(specs)):
      part.set_shape([None, *spec.shape])
    state = tf.nest.pack_sequence_as(specs, flat)
    returns = rollouts.play_episodes(environments, lambda observation: model(observation, training=False), state)
    for metric in metrics or ():
      metric.update_state(tf.ones_like(returns))
    mean_return = tf.reduce_mean(returns)
    return {self.loss: -mean_return, 'mean_return': mean_return}
