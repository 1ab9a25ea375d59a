"""The losses of language models, as functions: tensors in, a float32 scalar out.

b is the number of sequences, t the number of their tokens. All is computed in float32, for any input type.
`weighted_losses` gives them weights in a configuration.

Example:

  >>> logits = tf.math.log([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]])  # [batch, length, vocabulary].
  >>> labels = tf.constant([[0, -100]])  # The second token does not count.
  >>> round(float(ext.losses.label(logits, labels)), 4)  # -log(0.5).
  0.6931
  >>> ext.losses.group_advantages(tf.constant([1.0, 0.0, 1.0, 1.0]), num_generations=2).numpy().round(2)
  array([ 0.71, -0.71,  0.  ,  0.  ], dtype=float32)
"""

from collections.abc import Callable, Mapping

import tensorflow as tf

from official_ext.training.model_parts import clusters

IGNORED_LABEL = -100  # Hugging Face's.
_LOG_ONE_HALF = -0.6931471805599453
# At 0 the odds are infinite. A mean over tokens that is not 0 is farther away: 6e-8, float32's distance from 1, over
# their number.
_CERTAIN = -1e-15


def log_probs(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
  """The logarithm of the probability of each label: log softmax(logits)[label].

  Args:
    logits: [b, t, vocabulary]: position i is for the label at i. A decoder's logits are for the next token.
    labels: integers [b, t]; `IGNORED_LABEL` gets 0.

  Returns:
    float32 [b, t].
  """
  return _log_probs(tf.convert_to_tensor(logits), tf.convert_to_tensor(labels))


def _of_labels(logits, labels):
  is_ignored = tf.equal(labels, IGNORED_LABEL)
  found = -tf.nn.sparse_softmax_cross_entropy_with_logits(
    tf.where(is_ignored, tf.zeros_like(labels), labels), tf.cast(logits, tf.float32)
  )
  return tf.where(is_ignored, 0.0, found)


_log_probs = clusters.cluster(_of_labels, num_constants=1)


def label(logits: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
  """Cross-entropy with the labels, the mean over the tokens that count: -sum(mask * log_probs) / sum(mask).

  Args:
    logits: [b, t, vocabulary].
    labels: integers [b, t]; `IGNORED_LABEL` does not count.
    mask: [b, t], 1 for a token that counts, 0 for another; None: all do.
  """
  return -_token_mean(log_probs(logits, labels), _counted(labels, mask))


def distillation(
  logits: tf.Tensor, teacher_logits: tf.Tensor, mask: tf.Tensor | None = None, temperature: float = 1.0
) -> tf.Tensor:
  """Kullback-Leibler divergence from the teacher's softened probabilities, times temperature^2; a mean over tokens.

  Hinton et al. 2015, https://arxiv.org/abs/1503.02531. With p = softmax(teacher_logits / temperature) and
  q = softmax(logits / temperature): temperature^2 * sum p * (log p - log q). No gradient reaches the teacher.

  Args:
    logits: the student's, [b, t, vocabulary].
    teacher_logits: the teacher's, of the same shape.
    mask: [b, t], 1 for a token that counts, 0 for another; None: all do.
    temperature: above 0.
  """
  wanted = tf.nn.log_softmax(tf.stop_gradient(tf.cast(teacher_logits, tf.float32)) / temperature)
  found = tf.nn.log_softmax(tf.cast(logits, tf.float32) / temperature)
  divergence = tf.reduce_sum(tf.exp(wanted) * (wanted - found), axis=-1)
  return temperature**2 * _token_mean(divergence, mask)


def z_loss(logits: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
  """The square of the logarithm of softmax's normalizer, which keeps it near 1: the mean over tokens of logsumexp^2.

  Chowdhery et al. 2022 (PaLM), https://arxiv.org/abs/2204.02311, section 5, with a weight of 1e-4.

  Args:
    logits: [b, t, vocabulary].
    mask: [b, t], 1 for a token that counts, 0 for another; None: all do.
  """
  return _token_mean(tf.square(tf.reduce_logsumexp(tf.cast(logits, tf.float32), axis=-1)), mask)


def dpo(
  policy_chosen: tf.Tensor,
  policy_rejected: tf.Tensor,
  reference_chosen: tf.Tensor,
  reference_rejected: tf.Tensor,
  beta: float = 0.1,
) -> tf.Tensor:
  """Direct preference optimization, the sigmoid form: the mean over pairs of

      -log sigmoid(beta * ((policy_chosen - reference_chosen) - (policy_rejected - reference_rejected)))

  Rafailov et al. 2023, https://arxiv.org/abs/2305.18290, equation 7.

  Args:
    policy_chosen: sums of the log-probabilities of the preferred answer's tokens, under the trained model: [b].
    policy_rejected: the same for the other answer.
    reference_chosen: the same two under the reference, to which no gradient flows.
    reference_rejected: see above.
    beta: how much it costs to leave the reference.
  """  # fmt: skip
  difference = _gain(policy_chosen, reference_chosen) - _gain(policy_rejected, reference_rejected)
  return _logistic(difference, beta)


def ipo(
  policy_chosen: tf.Tensor,
  policy_rejected: tf.Tensor,
  reference_chosen: tf.Tensor,
  reference_rejected: tf.Tensor,
  beta: float = 0.1,
) -> tf.Tensor:
  """Identity preference optimization: the mean over pairs of

      (((policy_chosen - reference_chosen) - (policy_rejected - reference_rejected)) - 1 / (2 * beta))^2

  Azar et al. 2023, https://arxiv.org/abs/2310.12036, equation 17, where beta is tau. As in TRL, the log-probabilities
  are means over the tokens of an answer, so that the target margin does not depend on its length.

  Args:
    policy_chosen: means of the log-probabilities of the preferred answer's tokens, under the trained model: [b].
    policy_rejected: the same for the other answer.
    reference_chosen: the same two under the reference, to which no gradient flows.
    reference_rejected: see above.
    beta: the strength of the regularization: the margin is drawn towards 1 / (2 * beta).
  """  # fmt: skip
  return tf.reduce_mean(
    tf.square(_gain(policy_chosen, reference_chosen) - _gain(policy_rejected, reference_rejected) - 1 / (2 * beta))
  )


def simpo(policy_chosen: tf.Tensor, policy_rejected: tf.Tensor, beta: float = 2.0, gamma: float = 1.0) -> tf.Tensor:
  """Simple preference optimization, without a reference: the mean over pairs of

      -log sigmoid(beta * (policy_chosen - policy_rejected) - gamma)

  Meng et al. 2024, https://arxiv.org/abs/2405.14734, equation 6. The defaults are the paper's for Llama 3 8B; TRL's are
  CPO's, beta 0.1 and gamma 0.5.

  Args:
    policy_chosen: means of the log-probabilities of the preferred answer's tokens: [b].
    policy_rejected: the same for the other answer.
    beta: the scale of the rewards.
    gamma: the margin between the two rewards that is aimed at.
  """  # fmt: skip
  return _logistic(tf.cast(policy_chosen, tf.float32) - tf.cast(policy_rejected, tf.float32), beta, gamma)


def cpo(policy_chosen: tf.Tensor, policy_rejected: tf.Tensor, beta: float = 0.1) -> tf.Tensor:
  """The preference term of contrastive preference optimization, without a reference: the mean over pairs of

      -log sigmoid(beta * (policy_chosen - policy_rejected))

  Xu et al. 2024, https://arxiv.org/abs/2401.08417, equation 3. CPO adds it to `label` of the preferred answer,
  equation 5, which is the paper's negative log-likelihood.

  Args:
    policy_chosen: sums of the log-probabilities of the preferred answer's tokens: [b].
    policy_rejected: the same for the other answer.
    beta: the scale of the rewards.
  """  # fmt: skip
  return _logistic(tf.cast(policy_chosen, tf.float32) - tf.cast(policy_rejected, tf.float32), beta)


def kto(
  policy: tf.Tensor,
  reference: tf.Tensor,
  kl: tf.Tensor,
  is_desirable: tf.Tensor,
  beta: float = 0.1,
  desirable_weight: float = 1.0,
  undesirable_weight: float = 1.0,
) -> tf.Tensor:
  """Kahneman-Tversky optimization of single answers: with gain = policy - reference, the mean over answers of

      desirable_weight * (1 - sigmoid(beta * (gain - kl)))       of a desirable answer
      undesirable_weight * (1 - sigmoid(beta * (kl - gain)))     of an undesirable one

  Ethayarajh et al. 2024, https://arxiv.org/abs/2402.01306, equations 7 and 8.

  Args:
    policy: sums of the log-probabilities of the answers' tokens, under the trained model: [b].
    reference: the same under the reference; no gradient.
    kl: the estimate of the divergence from the reference, at least 0: a scalar, see `kto_kl`; no gradient.
    is_desirable: [b], true or 1 of desirable answers.
    beta: how much it costs to leave the reference.
    desirable_weight: of desirable answers.
    undesirable_weight: of undesirable answers.
  """  # fmt: skip
  gain = _gain(policy, reference) - tf.stop_gradient(tf.cast(kl, tf.float32))
  is_desirable = tf.cast(is_desirable, tf.bool)
  signed = tf.where(is_desirable, gain, -gain)
  weights = tf.where(is_desirable, float(desirable_weight), float(undesirable_weight))
  return tf.reduce_mean(weights * (1 - tf.sigmoid(beta * signed)))


def kto_kl(policy: tf.Tensor, reference: tf.Tensor) -> tf.Tensor:
  """KTO's estimate of the divergence from the reference: the mean of policy - reference over mismatched answers.

  Ethayarajh et al. 2024, https://arxiv.org/abs/2402.01306, section 4.2. As in TRL, it is not below 0, and a mean over
  all replicas. A replica with one row has no answer to another prompt, and is left out.

  Args:
    policy: sums of the log-probabilities of the tokens of answers to the prompts of others: [b].
    reference: the same under the reference.

  Returns:
    A float32 scalar, without a gradient.
  """
  gains = tf.stop_gradient(_gain(policy, reference))
  has_others = tf.cast(tf.size(gains) > 1, tf.float32)
  total, count = has_others * tf.reduce_sum(gains), has_others * tf.cast(tf.size(gains), tf.float32)
  context = tf.distribute.get_replica_context()
  if context is not None and context.num_replicas_in_sync > 1:
    total, count = context.all_reduce(tf.distribute.ReduceOp.SUM, [total, count])
  return tf.maximum(total / tf.maximum(count, 1), 0.0)


def _logistic(difference, beta, gamma=0.0):
  """The mean over pairs of -log sigmoid(beta * difference - gamma)."""
  return -tf.reduce_mean(tf.math.log_sigmoid(beta * difference - gamma))


def _gain(policy, reference):
  """How much likelier answers are than under the reference, in nats; no gradient to the reference."""
  return tf.cast(policy, tf.float32) - tf.stop_gradient(tf.cast(reference, tf.float32))


def orpo(policy_chosen: tf.Tensor, policy_rejected: tf.Tensor, beta: float = 0.1) -> tf.Tensor:
  """The odds ratio of ORPO: with log_odds(x) = x - log(1 - exp(x)), the mean over pairs of

      -beta * log sigmoid(log_odds(policy_chosen) - log_odds(policy_rejected))

  Hong et al. 2024, https://arxiv.org/abs/2403.07691, equations 6 and 7. ORPO adds it to `label` of the preferred prompt
  and answer.

  Args:
    policy_chosen: means, not sums, of the log-probabilities of the preferred answer's tokens: [b], at most 0.
    policy_rejected: the same for the other answer.
    beta: the weight, lambda in the paper.
  """  # fmt: skip
  chosen, rejected = (tf.minimum(tf.cast(x, tf.float32), _CERTAIN) for x in (policy_chosen, policy_rejected))
  # In this order, which is TRL's: the difference of the two log_odds would be rounded four times as coarsely.
  log_ratio = (chosen - rejected) - (_log_rest(chosen) - _log_rest(rejected))
  return -beta * tf.reduce_mean(tf.math.log_sigmoid(log_ratio))


def _log_rest(x):
  """The logarithm of 1 - exp(x) for x < 0, without cancellation."""
  low, high = tf.minimum(x, _LOG_ONE_HALF), tf.maximum(x, _LOG_ONE_HALF)  # Both branches have a finite gradient.
  return tf.where(x < _LOG_ONE_HALF, tf.math.log1p(-tf.exp(low)), tf.math.log(-tf.math.expm1(high)))


def grpo(
  log_probs: tf.Tensor,
  old_log_probs: tf.Tensor,
  reference_log_probs: tf.Tensor,
  advantages: tf.Tensor,
  mask: tf.Tensor,
  epsilon_low: float = 0.2,
  epsilon_high: float = 0.2,
  beta: float = 0.0,
  normalization: str = 'grpo',
  max_completion_length: int | None = None,
  num_items_in_batch: tf.Tensor | None = None,
  use_bias_correction_kl: bool = True,
) -> tf.Tensor:
  """Group relative policy optimization: of each token, with ratio = exp(log_probs - old_log_probs),

      -min(ratio * advantage, clip(ratio, 1 - epsilon_low, 1 + epsilon_high) * advantage) + beta * kl

  normalized in one of the ways of `NORMALIZATIONS`, under TRL's names. kl: see `kl_estimate`.

  Shao et al. 2024, https://arxiv.org/abs/2402.03300; the two epsilons are from Yu et al. 2025 (DAPO),
  https://arxiv.org/abs/2503.14476.

  Args:
    log_probs: of the tokens of the completions, under the trained model: [b, t].
    old_log_probs: the same when they were sampled, `log_probs` itself if nothing has changed since; no gradient.
    reference_log_probs: the same under the reference; no gradient; None if `beta` is 0.
    advantages: of each completion: [b]; see `group_advantages`. No gradient.
    mask: [b, t], 1 for a token of the completion, its end included, 0 after it, where the rest is of no interest.
    epsilon_low: how far below 1 a ratio counts.
    epsilon_high: how far above 1.
    beta: the weight of the divergence from the reference.
    normalization: 'grpo', 'bnpo', 'dr_grpo' or 'dapo'.
    max_completion_length: of 'dr_grpo': how many tokens a completion could have; None: t.
    num_items_in_batch: of 'dapo': how many tokens the completions of the whole update have, over the number of batches
      that make it, of all replicas and micro-batches; None: of this batch.
    use_bias_correction_kl: whether kl is multiplied by the ratio, as TRL does: it estimates the divergence of the
      trained model, from tokens that its earlier version sampled (DeepSeek-AI 2025, https://arxiv.org/abs/2512.02556).

  Raises:
    ValueError: an unknown `normalization`, or `beta` without a reference.
  """  # fmt: skip
  if normalization not in NORMALIZATIONS:
    raise ValueError(f'normalization: {normalization!r} is not one of {", ".join(NORMALIZATIONS)}')
  if beta and reference_log_probs is None:
    raise ValueError('reference_log_probs: needed, because beta is not 0')
  mask = tf.cast(mask, tf.float32)
  log_probs = _within(log_probs, mask)
  advantages = tf.stop_gradient(tf.cast(advantages, tf.float32))[:, None]
  old_log_probs = _within(old_log_probs, mask)
  ratio = _ratio(log_probs, old_log_probs)
  clipped = tf.clip_by_value(ratio, 1 - epsilon_low, 1 + epsilon_high)
  losses = -tf.minimum(ratio * advantages, clipped * advantages)
  if beta:
    sampled = old_log_probs if use_bias_correction_kl else None
    losses += beta * kl_estimate(log_probs, _within(reference_log_probs, mask), sampled)
  return NORMALIZATIONS[normalization](losses * mask, mask, max_completion_length, num_items_in_batch)


def _ratio(log_probs, old_log_probs):
  """How much likelier tokens are than when they were sampled; no gradient through the latter."""
  return tf.exp(tf.cast(log_probs, tf.float32) - tf.stop_gradient(tf.cast(old_log_probs, tf.float32)))


def _within(values, mask):
  """Values of tokens that count, as float32, and 0 for the others: an infinity there times 0 would not be 0."""
  return tf.where(mask > 0, tf.cast(values, tf.float32), 0.0)


def _of_sequences(losses, mask, max_completion_length, num_items_in_batch):
  """The mean over sequences of their means over tokens."""
  del max_completion_length, num_items_in_batch
  return tf.reduce_mean(tf.reduce_sum(losses, axis=1) / tf.maximum(tf.reduce_sum(mask, axis=1), 1))


def _of_tokens(losses, mask, max_completion_length, num_items_in_batch):
  """The mean over the tokens of the batch."""
  del max_completion_length, num_items_in_batch
  return tf.reduce_sum(losses) / tf.maximum(tf.reduce_sum(mask), 1)


def _of_longest(losses, mask, max_completion_length, num_items_in_batch):
  """The sum, divided by the number of terms if all sequences had the maximal length."""
  del num_items_in_batch
  length = tf.shape(mask)[1] if max_completion_length is None else max_completion_length
  return tf.reduce_sum(losses) / (tf.cast(tf.shape(mask)[0], tf.float32) * tf.cast(length, tf.float32))


def _of_update(losses, mask, max_completion_length, num_items_in_batch):
  """The sum, over the tokens of the update."""
  del max_completion_length
  tokens = tf.reduce_sum(mask) if num_items_in_batch is None else tf.cast(num_items_in_batch, tf.float32)
  return tf.reduce_sum(losses) / tf.maximum(tokens, 1)


# 'grpo': every sequence counts the same, a token of a long one less. 'bnpo': every token of a batch counts the same.
# 'dr_grpo': the same, for any lengths (Liu et al. 2025, https://arxiv.org/abs/2503.20783). 'dapo': every token
# of an update counts the same.
NORMALIZATIONS: Mapping[str, Callable[..., tf.Tensor]] = {
  'grpo': _of_sequences,
  'bnpo': _of_tokens,
  'dr_grpo': _of_longest,
  'dapo': _of_update,
}


def kl_estimate(
  log_probs: tf.Tensor, reference_log_probs: tf.Tensor, old_log_probs: tf.Tensor | None = None
) -> tf.Tensor:
  """The contribution of each token to the divergence from the reference: exp(d) - d - 1, d = reference_log_probs -
  log_probs.

  Unbiased for tokens that were sampled from the trained model, and never below 0: Schulman 2020,
  http://joschu.net/blog/kl-approx.html, the third estimate.

  Args:
    log_probs: [b, t].
    reference_log_probs: [b, t]; no gradient.
    old_log_probs: [b, t], when the tokens were sampled; no gradient. The contribution of each token is then multiplied
      by exp(log_probs - old_log_probs), and is unbiased for these tokens. None: without it.

  Returns:
    float32 [b, t].
  """
  reference, log_probs = tf.stop_gradient(tf.cast(reference_log_probs, tf.float32)), tf.cast(log_probs, tf.float32)
  difference = reference - log_probs
  near = tf.minimum(difference, 1.0)  # So that the branch that is not taken is finite.
  found = tf.math.expm1(near) - near
  if old_log_probs is None:
    return tf.where(difference < 1, found, tf.exp(difference) - difference - 1)
  # Multiplied out far from the reference, where exp(difference) may overflow, and its product with the ratio does not.
  ratio = _ratio(log_probs, old_log_probs)
  of_reference = _ratio(reference, old_log_probs)
  return tf.where(difference < 1, found * ratio, of_reference - (difference + 1) * ratio)


def clip_fraction(
  log_probs: tf.Tensor,
  old_log_probs: tf.Tensor,
  advantages: tf.Tensor,
  mask: tf.Tensor,
  epsilon_low: float = 0.2,
  epsilon_high: float = 0.2,
) -> tf.Tensor:
  """The fraction of tokens whose gradient `grpo` clips away: float32 []. Arguments as there."""
  ratio = _ratio(log_probs, old_log_probs)
  advantages = tf.cast(advantages, tf.float32)[:, None]
  is_clipped = (ratio < 1 - epsilon_low) & (advantages < 0) | (ratio > 1 + epsilon_high) & (advantages > 0)
  return _token_mean(tf.cast(is_clipped, tf.float32), mask)


def group_advantages(rewards: tf.Tensor, num_generations: int, scale_rewards: str = 'group') -> tf.Tensor:
  """How much better completions are than the others of their prompt.

  Args:
    rewards: [prompts * num_generations], grouped by prompt; NaN of completions that no reward function scores.
    num_generations: completions of a prompt.
    scale_rewards: their divisor: the standard deviation of the 'group', or of the 'batch', of a sample and
      plus 1e-4; or 'none': Dr. GRPO.

  Returns:
    float32 of the shape of `rewards`: of each group the mean is 0. Completions without a reward have 0, and do not
    count in the mean and the deviation of the others, as in TRL.

  Raises:
    ValueError: an unknown `scale_rewards`.
  """
  if scale_rewards not in ('group', 'batch', 'none'):
    raise ValueError(f'scale_rewards: {scale_rewards!r} is not one of group, batch, none')
  groups = tf.reshape(tf.cast(rewards, tf.float32), [-1, num_generations])
  advantages, _, deviation = _centered(groups, axis=1)
  if scale_rewards == 'batch':
    _, deviation = known_moments(groups, axis=None)
  if scale_rewards != 'none':
    advantages /= deviation + 1e-4
  return tf.reshape(tf.where(tf.math.is_nan(advantages), 0.0, advantages), tf.shape(rewards))


def known_moments(values: tf.Tensor, axis: int | None) -> tuple[tf.Tensor, tf.Tensor]:
  """(mean, standard deviation of a sample) of the values that are not NaN: 0 of none, and the deviation 0 of one.

  Args:
    values: float32.
    axis: over which; None for all.

  Returns:
    Two tensors of the rank of `values`.
  """
  return _centered(values, axis)[1:]


def _centered(values, axis):
  """(values less their mean, the mean, the standard deviation), see `known_moments`; exactly 0 of equal values.

  The sum of values that float32 does not hold exactly, over their number, is another value; that of their distances
  from one of them is 0.
  """
  is_known = ~tf.math.is_nan(values)
  total = lambda x: tf.reduce_sum(tf.where(is_known, x, 0.0), axis=axis, keepdims=True)
  count = total(tf.ones_like(values))
  smallest = tf.reduce_min(tf.where(is_known, values, tf.float32.max), axis=axis, keepdims=True)
  smallest = tf.where(count > 0, smallest, 0.0)
  distances = values - smallest
  mean = total(distances) / tf.maximum(count, 1)
  centered = distances - mean
  return centered, smallest + mean, tf.sqrt(total(tf.square(centered)) / tf.maximum(count - 1, 1))


def _counted(labels, mask):
  """The tokens whose labels count, as float32."""
  counted = tf.cast(tf.not_equal(labels, IGNORED_LABEL), tf.float32)
  return counted if mask is None else counted * tf.cast(mask, tf.float32)


def _token_mean(values, mask):
  """The mean over the tokens that count; 0 if none does."""
  if mask is None:
    return tf.reduce_mean(values)
  mask = tf.cast(mask, tf.float32)
  return tf.reduce_sum(values * mask) / tf.maximum(tf.reduce_sum(mask), 1)
