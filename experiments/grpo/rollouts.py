"""Groups of sampled completions: from a batch of prompts to GRPO's training data.

Prompts are rows of ext.TextDataConfig's `prompt`: `input_ids` and `segment_ids`, int32 [p, seq_length], padded on the
left, and `record`. A rollout holds n = p * num_generations completions, grouped by prompt:

  prompt_ids, prompt_mask          int32 [n, seq_length]
  completion_ids, completion_mask  int32 [n, max_completion_length], padded on the right; the end counts
  sampled_log_probs                float32 [n, max_completion_length], the sampler's, at temperature 1; NaN if unknown
  is_truncated                     bool [n], cut off before the end
  rewards                          float32 [n, rewards], by the columns of `task.reward_funcs`; NaN for none
"""

from collections.abc import Callable, Mapping

import tensorflow as tf

import official_ext as ext

Rollout = dict[str, tf.Tensor]


def rollout(
  sampler: ext.Sampler,
  stop_token_ids: tuple[int, ...],
  model: ext.LanguageModel,
  batch: Mapping[str, tf.Tensor],
  count: int,
  seed: tf.Tensor,
) -> Rollout:
  """A rollout without rewards.

  Args:
    sampler: draws the completions.
    stop_token_ids: a completion without one of these was cut off.
    model: the policy.
    batch: the prompts, of a static number.
    count: completions of each prompt.
    seed: int64 [2]; the same draws the same.
  """
  found = sampler(model, batch['input_ids'], batch['segment_ids'], count, seed)
  stops = [found.tokens == stop for stop in stop_token_ids] or [tf.zeros_like(found.tokens, tf.bool)]
  has_ended = tf.reduce_any(tf.reduce_any(stops, axis=0) & (found.mask > 0), axis=1)
  return {
    'prompt_ids': tf.repeat(batch['input_ids'], count, axis=0),
    'prompt_mask': tf.repeat(batch['segment_ids'], count, axis=0),
    'completion_ids': found.tokens,
    'completion_mask': found.mask,
    'sampled_log_probs': found.log_probs,
    'is_truncated': ~has_ended,
  }


def log_probs(
  model: Callable[..., tf.Tensor], rollout: Mapping[str, tf.Tensor], temperature: float, training: bool = False
) -> tf.Tensor:
  """The logarithms of the probabilities of the completions' tokens, in the distribution at a temperature.

  Args:
    model: takes (input_ids, segments=..., training=...), as a language model does.
    rollout: the completions.
    temperature: logits are divided by it, as TRL does; filters such as top_p are taken no notice of.
    training: whether there is dropout.

  Returns:
    float32 [n, max_completion_length]; without meaning after the end.
  """
  ids = tf.concat([rollout['prompt_ids'], rollout['completion_ids']], axis=1)
  segments = tf.concat([rollout['prompt_mask'], rollout['completion_mask']], axis=1)
  length = rollout['prompt_ids'].shape[1]
  logits = model(ids[:, :-1], segments=segments[:, :-1], training=training)[:, length - 1 :]
  return ext.losses.log_probs(logits / temperature, rollout['completion_ids'])


def weighted(rewards: tf.Tensor, weights: tuple[float, ...]) -> tf.Tensor:
  """The reward of each completion: the sum of the known ones, times their weights; NaN if none is known.

  Args:
    rewards: float32 [n, rewards], NaN for none.
    weights: of each; () for 1.
  """
  is_absent = tf.math.is_nan(rewards)
  total = tf.linalg.matvec(
    tf.where(is_absent, 0.0, rewards), tf.constant(weights or (1.0,) * rewards.shape[1], tf.float32)
  )
  return tf.where(tf.reduce_all(is_absent, axis=1), tf.constant(float('nan')), total)


def token_counts(rollout: Mapping[str, tf.Tensor], mask: tf.Tensor, count: int) -> dict[str, tf.Tensor]:
  """The tokens of a prompt with its `count` completions, and the tokens that the loss counts, for the training speed.

  Args:
    rollout: the completions.
    mask: float32 [n, max_completion_length], 1 on tokens that the loss counts.
    count: completions of a prompt.
  """
  tokens = tf.concat([rollout['prompt_mask'], rollout['completion_mask']], axis=1)
  labels = tf.where(mask > 0, 0, ext.losses.IGNORED_LABEL)
  found = ext.token_metrics.counts(tokens, labels)
  return {name: value * count for name, value in found.items()}


def logs_of(
  rollout: Mapping[str, tf.Tensor], rewards: tf.Tensor, names: tuple[str, ...], count: int
) -> dict[str, tf.Tensor]:
  """The metrics of a rollout, under TRL's names: float32 scalars, over the completions that have a reward.

  Args:
    rollout: the completions.
    rewards: float32 [n], see `weighted`.
    names: of the rewards.
    count: completions of a prompt.
  """
  _, deviations = ext.losses.known_moments(tf.reshape(rewards, [-1, count]), axis=1)
  lengths = tf.cast(tf.reduce_sum(rollout['completion_mask'], axis=1), tf.float32)
  found = {
    'reward': ext.losses.known_moments(rewards, axis=0)[0][0],
    'reward_std': tf.reduce_mean(deviations),
    'frac_reward_zero_std': tf.reduce_mean(tf.cast(deviations < 1e-8, tf.float32)),
    'completions/mean_length': tf.reduce_mean(lengths),
    'completions/min_length': tf.reduce_min(lengths),
    'completions/max_length': tf.reduce_max(lengths),
    'completions/clipped_ratio': tf.reduce_mean(tf.cast(rollout['is_truncated'], tf.float32)),
  }
  for number, name in enumerate(names):
    found[f'rewards/{name}'] = ext.losses.known_moments(rollout['rewards'][:, number], axis=0)[0][0]
  return found
