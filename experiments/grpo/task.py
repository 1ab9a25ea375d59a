"""The task `grpo`: prompts, groups of completions, their rewards, and the loss."""

from collections.abc import Mapping
import functools
from typing import Any

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import arithmetic
from . import configs
from . import rollouts
from . import scoring
from . import trainer


@ext.register_task(configs.GrpoTaskConfig)
class GrpoTask(ext.FineTuningTask):
  """GRPO on prompts. In training the completions of a batch are sampled by the step itself, or before it by
  `trainer.GrpoTrainer`; an evaluation looks at the likeliest completion of each prompt.
  """

  def __init__(self, params: configs.GrpoTaskConfig, **kwargs: object):
    """See base class.

    Raises:
      UserError: several workers would each teach a base model, and not know whether they have the same one.
    """
    super().__init__(params, **kwargs)
    resolver = tf.distribute.get_strategy().cluster_resolver
    workers = resolver.cluster_spec().num_tasks('worker') if resolver and resolver.cluster_spec().jobs else 1
    if params.makes_base and workers > 1:
      raise ext.UserError(
        'task.model_path: is empty, and a base model is taught in one process; run it there, and give its result, '
        'RUN/model, to several workers'
      )

  @property
  def needs_reference(self) -> bool:
    """Only with a divergence from it in the loss."""
    return self.config.losses.grpo.beta > 0

  @functools.cached_property
  def rewards(self) -> list[Any]:
    """The registered rewards."""
    return ext.rewards.find(self.config.reward_names, 'task.reward_funcs')

  def code_files(self) -> Mapping[str, object]:
    """The rewards too: see base class."""
    return {**super().code_files(), **{f'reward {reward.name}': reward.function for reward in self.rewards}}

  @property
  def why_between_steps(self) -> str:
    """Why completions are not sampled within the step; '' if they are."""
    in_python = [reward.name for reward in self.rewards if not reward.in_graph]
    if not isinstance(self.training_sampler, ext.ModelSampler):
      return f'{type(self.training_sampler).__name__} is not the model'
    if in_python:
      return f'the reward {in_python[0]} is a function in Python'
    if self.config.num_iterations > 1:
      return 'task.num_iterations keeps them for several updates'
    if self.config.losses.grpo.normalization == 'dapo':
      return 'task.losses.grpo.normalization=dapo counts the tokens of the whole update'
    return ''

  @property
  def trainer_cls(self) -> type | None:
    """See base class."""
    return trainer.GrpoTrainer if self.why_between_steps else None

  # The arithmetic's parts.

  def make_tokenizer(self) -> ext.Tokenizer:
    """The arithmetic's tokenizer: otherwise there is a model, which has one."""
    return arithmetic.tokenizer()

  def built_in_records(self, split: str) -> ext.TextRecords:
    """See base class."""
    return ext.TextRecords(arithmetic.records(split == 'train'), 'problem')

  def initialize(self, model: tf_keras.Model) -> None:
    """See base class. The decoder of the arithmetic learns to answer sometimes, before GRPO begins."""
    config = self.config
    if config.makes_base and not config.init_checkpoint:
      weights = arithmetic.base_weights(config.model, config.pretraining, config.train_data.seed or 0)
      for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)
    super().initialize(model)

  # Prompts and rollouts.

  def training_shapes(self, num_replicas: int) -> ext.activation_memory.TrainingShapes:
    """Prompts with their completions, of all groups of a batch: see base class."""
    config = self.config
    sequences = -(-config.train_data.global_batch_size // num_replicas) * config.num_generations
    length = config.train_data.seq_length + config.max_completion_length
    return ext.activation_memory.TrainingShapes(sequences, length)

  def build_inputs(
    self, params: ext.TextDataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches of prompts: see rollouts.py; with `answer_ids`, if a reward requires them."""
    return ext.build_dataset(self._prompts(params), params, input_context)

  def _prompts(self, params):
    """The source of prompts, with answers if a reward requires them."""
    source: Any = self.source(params)
    scoring.check_columns(self.rewards, source, params)
    if any(scoring.takes_answers(reward) for reward in self.rewards):
      source = scoring.AnsweredPrompts(source, params.output_column, self.config.max_completion_length)
    return source

  @functools.cached_property
  def samplers(self) -> Mapping[bool, ext.ModelSampler]:
    """The model as a sampler, by whether it is for training: as configured; else the likeliest tokens."""
    return {training: ext.ModelSampler(self._sampling(training)) for training in (False, True)}

  @functools.cached_property
  def training_sampler(self) -> ext.Sampler:
    """The sampler of the steps: the model. Override it for another one, such as a server."""
    return self.samplers[True]

  def _sampling(self, training):
    config = self.config
    common = {
      'max_new_tokens': config.max_completion_length,
      'stop_token_ids': self.tokenizer.stop_token_ids,
      'pad_token_id': self.tokenizer.fill_token_id,
    }
    if not training:
      return ext.GenerationConfig(**common)
    filters = {name: getattr(config, name) for name in ('temperature', 'top_k', 'top_p', 'min_p')}
    return ext.GenerationConfig(**common, **filters)

  def rollout(
    self,
    sampler: ext.Sampler,
    model: tf_keras.Model,
    batch: Mapping[str, tf.Tensor],
    count: int,
    seed: tf.Tensor,
  ) -> rollouts.Rollout:
    """Completions of prompts, without rewards: see `rollouts.rollout`."""
    return rollouts.rollout(sampler, self.tokenizer.stop_token_ids, model, batch, count, seed)

  def scored_rollout(self, model: tf_keras.Model, batch: Mapping[str, tf.Tensor], seed: tf.Tensor) -> rollouts.Rollout:
    """Groups of completions with their rewards, for training. See rollouts.py."""
    rollout = self.rollout(self.training_sampler, model, batch, self.config.num_generations, seed)
    return {**rollout, 'rewards': self._scores(rollout, batch, self.config.train_data)}

  def _scores(self, rollout, batch, params):
    in_python = any(not reward.in_graph for reward in self.rewards)
    host = scoring.HostRewards(self.source(params), params) if in_python else None
    return scoring.scores(self.rewards, rollout, batch, host)

  def logged_completions(self, model: tf_keras.Model, step: int) -> Mapping[str, object]:
    """Groups of completions of the first validation prompts, sampled as in training, with each reward and advantage.

    Names are as in TRL's `log_completions`: see base class.
    """
    config, data = self.config, self.config.validation_data
    source, count = self._prompts(data), config.num_generations
    rows = source.fetch(range(min(config.completions.num_prompts, len(source))))
    batch = {name: tf.stack([row[name] for row in rows]) for name in rows[0]}
    seed = tf.constant([config.train_data.seed or 0, step], tf.int64)
    rollout = self.rollout(self.samplers[True], model, batch, count, seed)
    scores = self._scores(rollout, batch, data)
    rewards = rollouts.weighted(scores, config.reward_weights)
    words = self.tokenizer
    prompts = [words.decode(row['input_ids'][row['segment_ids'] > 0]) for row in rows]
    lengths = tf.reduce_sum(rollout['completion_mask'], axis=1).numpy().tolist()
    tokens = [ids[:length] for ids, length in zip(rollout['completion_ids'].numpy().tolist(), lengths)]
    return ext.completions.event_values(
      [prompt for prompt in prompts for _ in range(count)],
      [words.decode(ids, skip_special_tokens=True) for ids in tokens],
      num_tokens=lengths,
      rewards=dict(zip(config.reward_names, tf.transpose(scores).numpy().tolist())),
      advantages=ext.losses.group_advantages(rewards, count, config.scale_rewards).numpy().tolist(),
    )

  # The step.

  def why_no_update(self, logs: Mapping[str, Any]) -> str:
    """See base class."""
    if logs['frac_reward_zero_std'] < 1:
      return ''
    return 'all completions of a prompt earn the same reward, so that there is nothing to prefer'

  def train_step(self, inputs, model, optimizer, metrics=None):
    """See base class. Samples before the gradient's tape begins."""
    return super().train_step(self._with_rollout(inputs, model), model, optimizer, metrics)

  def _with_rollout(self, inputs, model):
    if 'completion_ids' in inputs:
      return inputs
    return self.scored_rollout(model, inputs, self.make_seed('completions'))

  def loss_mask(self, rollout: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Which tokens the loss counts: float32 [n, max_completion_length]."""
    mask = tf.cast(rollout['completion_mask'], tf.float32)
    if self.config.mask_truncated_completions:
      mask *= 1 - tf.cast(rollout['is_truncated'], tf.float32)[:, tf.newaxis]
    return mask

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """The loss of a rollout, or of prompts that are completed first; in an evaluation the mean reward, negative."""
    if not training:
      return self._evaluated(inputs, model)
    config, rollout = self.config, self._with_rollout(inputs, model)
    rewards = rollouts.weighted(rollout['rewards'], config.reward_weights)
    settings, reference = config.losses.grpo, None
    if settings.beta:  # First: a model's own losses are its last call's.
      reference = rollouts.log_probs(self.reference(model), rollout, config.temperature)
    policy = rollouts.log_probs(model, rollout, config.temperature, training=True)
    parts = {
      'log_probs': policy,
      'old_log_probs': tf.stop_gradient(self.old_log_probs(rollout, policy)),
      'advantages': ext.losses.group_advantages(rewards, config.num_generations, config.scale_rewards),
      'mask': self.loss_mask(rollout),
    }
    logs = rollouts.logs_of(rollout, rewards, config.reward_names, config.num_generations)
    logs.update(rollouts.token_counts(rollout, parts['mask'], config.num_generations))
    logs['clip_fraction'] = ext.losses.clip_fraction(
      **parts, epsilon_low=settings.epsilon_low, epsilon_high=settings.epsilon_high
    )
    if config.temperature == 1:  # The sampler's state is at that step.
      difference = tf.abs(policy - rollout['sampled_log_probs']) * tf.cast(rollout['completion_mask'], tf.float32)
      difference = tf.where(tf.math.is_nan(difference), 0.0, difference)  # Unknown to the sampler.
      logs['sampling/sampling_logp_difference/max'] = tf.reduce_max(difference)
    if settings.beta:
      sampled = parts['old_log_probs'] if settings.use_bias_correction_kl else None
      divergence = tf.where(parts['mask'] > 0, ext.losses.kl_estimate(policy, reference, sampled), 0.0)
      logs['kl'] = tf.reduce_sum(divergence) / tf.maximum(tf.reduce_sum(parts['mask']), 1)
    inputs_of_loss = {
      **parts,
      'reference_log_probs': reference,
      'max_completion_length': config.max_completion_length,
      'num_items_in_batch': rollout.get('num_items_in_batch'),
    }
    loss, _ = ext.weighted_losses.total(config.losses, {ext.losses.grpo.__name__: inputs_of_loss})
    return loss, logs

  def old_log_probs(self, rollout: Mapping[str, tf.Tensor], policy: tf.Tensor) -> tf.Tensor:
    """The log-probabilities that the loss takes the policy's ratio to: float32 [n, max_completion_length].

    Override it to return `rollout['sampled_log_probs']` if a sampler has older weights than the update.

    Args:
      rollout: see rollouts.py.
      policy: the present ones, for a rollout of the present weights.
    """
    return rollout.get('old_log_probs', policy)

  def _evaluated(self, batch, model):
    """The rewards of the likeliest completions of prompts, of which there may be fewer than a full batch, or none."""
    number = tf.shape(batch['input_ids'])[0]
    full = self._filled(batch)
    rollout = self.rollout(self.samplers[False], model, full, 1, tf.constant([0, 0], tf.int64))
    rollout['rewards'] = self._scores(rollout, full, self.config.validation_data)
    rollout = {name: value[:number] for name, value in rollout.items()}
    rewards = rollouts.weighted(rollout['rewards'], self.config.reward_weights)
    logs = rollouts.logs_of(rollout, rewards, self.config.reward_names, 1)
    logs = {
      name: tf.where(number > 0, value, 0.0)
      for name, value in logs.items()
      if name not in ('reward_std', 'frac_reward_zero_std')  # Of a group of one.
    }
    return -logs['reward'], logs

  def _filled(self, batch):
    """A batch of a static number of prompts: missing ones are one token."""
    rows = batch['input_ids'].shape[0]
    if rows is None:
      replicas = tf.distribute.get_strategy().num_replicas_in_sync
      rows = self.config.validation_data.global_batch_size // replicas
    filled = {}
    for name, value in batch.items():
      lacking = [[0, rows - tf.shape(value)[0]], *[[0, 0]] * (value.shape.rank - 1)]
      padded = tf.pad(value, lacking, constant_values=1 if name == 'segment_ids' else 0)
      filled[name] = tf.ensure_shape(padded, [rows, *value.shape[1:]])
    return filled
