"""Configurations of the experiments `reinforcement` and `reinforcement_gymnasium`."""

import dataclasses

from official.modeling.hyperparams import base_config

import official_ext as ext


@dataclasses.dataclass
class ActorCriticConfig(base_config.Config):
  """The network.

  Attributes:
    hidden_sizes: Units of each hidden layer, of the policy and of the value alike.
  """

  RANGES = {'hidden_sizes': '[1, inf)'}

  hidden_sizes: tuple[int, ...] = (64, 64)


@dataclasses.dataclass
class PpoConfig(base_config.Config):
  """Proximal policy optimization.

  Attributes:
    num_environments: Games that are played side by side.
    rollout_steps: Steps of each game that are played with one policy, and then learned from.
    epochs: How often all these steps are gone through, in minibatches of `train_data.global_batch_size`.
    discount: Of a reward that is one step away.
    gae_lambda: How much later steps count for an advantage.
    clip_ratio: How far the probability of an action may move away from its old value, as a fraction.
    value_loss_weight: Of the error of the values.
    entropy_weight: Of the bonus for entropy.
  """

  RANGES = {
    **dict.fromkeys(('num_environments', 'rollout_steps', 'epochs'), '[1, inf)'),
    'discount': '[0, 1]',
    'gae_lambda': '[0, 1]',
    'clip_ratio': '(0, inf)',
    'value_loss_weight': '[0, inf)',
    'entropy_weight': '[0, inf)',
  }

  num_environments: int = 16
  rollout_steps: int = 64
  epochs: int = 8
  discount: float = 0.99
  gae_lambda: float = 0.95
  clip_ratio: float = 0.2
  value_loss_weight: float = 0.5
  entropy_weight: float = 0.01


@dataclasses.dataclass
class StepsDataConfig(ext.InMemoryDataConfig):
  """Steps of games, as the policy plays them.

  Attributes:
    global_batch_size: In training the size of a minibatch of steps; in evaluation the games that are played side by
      side.
    num_episodes: For evaluation only: how many episodes are played. Episode k begins as gymnasium's `reset(seed=k)`.
  """

  RANGES = {'num_episodes': '[1, inf)'}

  num_episodes: int = 100


@dataclasses.dataclass
class ReinforcementTaskConfig(ext.TaskConfig):
  """Learning to play.

  Attributes:
    model: The network.
    ppo: The algorithm.
    environment: 'tensorflow': CartPole-v1 in TensorFlow ops, whose state is in every checkpoint. 'gymnasium': any
      environment of gymnasium with discrete actions, on the host; a continued run begins new episodes.
    environment_id: The name of gymnasium's environment.
    train_data: Minibatches of steps.
    validation_data: Episodes.
  """

  model: ActorCriticConfig = dataclasses.field(default_factory=ActorCriticConfig)
  ppo: PpoConfig = dataclasses.field(default_factory=PpoConfig)
  environment: str = 'tensorflow'
  environment_id: str = 'CartPole-v1'
  train_data: StepsDataConfig = dataclasses.field(
    default_factory=lambda: StepsDataConfig(global_batch_size=256, is_training=True)
  )
  validation_data: StepsDataConfig = dataclasses.field(
    default_factory=lambda: StepsDataConfig(global_batch_size=100, is_training=False)
  )


def _experiment(environment: str) -> ext.ExperimentConfig:
  num_steps = 6400
  return ext.ExperimentConfig(
    task=ReinforcementTaskConfig(environment=environment),
    trainer=ext.TrainerConfig(
      train_steps=num_steps,
      steps_per_loop=320,
      summary_interval=320,
      validation_interval=1600,
      checkpoint_interval=1600,
      # Between two steps the policy may have to play.
      steps_per_execution=1,
      best_checkpoint_export_subdir='best',
      best_checkpoint_eval_metric='mean_return',
      best_checkpoint_metric_comp='higher',
      optimizer_config=ext.OptimizationConfig(
        {
          'optimizer': {
            'type': 'adam_experimental',
            'adam_experimental': {'epsilon': 1e-5, 'global_clipnorm': 0.5},
          },
          'learning_rate': {
            'type': 'polynomial',
            'polynomial': {
              'initial_learning_rate': 1e-3,
              'decay_steps': num_steps,
              'end_learning_rate': 0.0,
            },
          },
        }
      ),
    ),
  )


@ext.register_experiment('reinforcement')
def reinforcement() -> ext.ExperimentConfig:
  """PPO on CartPole-v1 written in TensorFlow ops: the games too run in XLA, and are part of every checkpoint.

  Command: python train.py --experiment=reinforcement --mode=train_and_eval --model_dir=runs/reinforcement
  Hardware and time: 2 CPU cores, 30 seconds, start-up included.
  Result: mean return 500, the greatest there is, over 100 episodes with seeds 0, 1 and 2.
  Reference: gymnasium counts CartPole-v1 as solved from 475 on.
  """
  return _experiment('tensorflow')


@ext.register_experiment('reinforcement_gymnasium')
def reinforcement_gymnasium() -> ext.ExperimentConfig:
  """PPO on gymnasium's CartPole-v1, with environments on the host: docs/how_to/reinforcement.md states their cost.

  Command: python train.py --experiment=reinforcement_gymnasium --mode=train_and_eval --model_dir=runs/gymnasium
  Hardware and time: 2 CPU cores, 48 seconds, start-up included.
  Result: mean return 500, the greatest there is, over 100 episodes with seeds 0, 1 and 2.
  Reference: gymnasium counts CartPole-v1 as solved from 475 on.
  """
  return _experiment('gymnasium')
