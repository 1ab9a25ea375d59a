"""From the logits of the next token to a token: the steps of Hugging Face's logits processors, in their order."""

import dataclasses

import tensorflow as tf

from official_ext.base import base_config
from official_ext.base import errors
from official_ext.base import keyed_draws

_NEVER = -1e30  # A logit: finite, so that no difference of two of them is NaN.


@dataclasses.dataclass
class GenerationConfig(base_config.Config):
  """How text is continued. The names are those of Hugging Face's GenerationConfig.

  Attributes:
    max_new_tokens: how many tokens at most.
    temperature: logits are divided by it; 0 takes the likeliest token (Hugging Face's do_sample=False).
    top_k: only this many of the likeliest tokens; 0 for all.
    top_p: only the likeliest tokens that together have this probability (Holtzman et al., 2020); 1 for all.
    min_p: only tokens with at least this part of the likeliest one's probability (Nguyen et al., 2024); 0 for all.
    repetition_penalty: logits of earlier tokens, of the prompt too, are divided by it if they are positive, and
      multiplied if not (Keskar et al., 2019); 1 for none.
    stop_token_ids: a continuation ends with the first of these. Hugging Face calls them eos_token_id.
    pad_token_id: stands behind the end.
  """

  max_new_tokens: int = 128
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0
  stop_token_ids: tuple[int, ...] = ()
  pad_token_id: int = 0


def check(config: GenerationConfig) -> None:
  """Refuses invalid values.

  Raises:
    errors.UserError: with the field.
  """
  bounds = (
    ('max_new_tokens', config.max_new_tokens >= 1, 'must be 1 or more'),
    ('temperature', config.temperature >= 0, 'must be 0 (the likeliest token) or more'),
    ('top_k', config.top_k >= 0, 'must be 0 (all tokens) or more'),
    ('top_p', 0 < config.top_p <= 1, 'must be above 0, and 1 (all tokens) at most'),
    ('min_p', 0 <= config.min_p <= 1, 'must be between 0 (all tokens) and 1'),
    ('repetition_penalty', config.repetition_penalty > 0, 'must be above 0; 1 turns it off'),
  )
  with errors.Mistakes() as mistakes:
    for name, is_right, what in bounds:
      with mistakes.noted():
        if not is_right:
          raise errors.UserError(f'{name}: {getattr(config, name)!r} {what}')


def processed(logits: tf.Tensor, config: GenerationConfig, seen: tf.Tensor | None = None) -> tf.Tensor:
  """The logits that a token is drawn by.

  Args:
    logits: float32 [b, vocab_size].
    config: how.
    seen: bool [b, vocab_size], the earlier tokens; needed for a repetition penalty.

  Returns:
    float32 [b, vocab_size], with -1e30 for tokens that are out.
  """
  if config.repetition_penalty != 1:
    punished = tf.where(logits > 0, logits / config.repetition_penalty, logits * config.repetition_penalty)
    logits = tf.where(seen, punished, logits)
  if not config.temperature:
    return logits
  logits /= config.temperature
  ordered = None
  if 0 < config.top_k < logits.shape[-1]:
    ordered = tf.math.top_k(logits, config.top_k).values
    logits = _without(logits, logits < ordered[:, -1:])
  if config.top_p < 1:
    # Those that top_k left are in order already, but for others that equal the last one, and stay or go with it.
    ordered = tf.sort(logits, axis=-1, direction='DESCENDING') if ordered is None else ordered
    shares = tf.exp(ordered - tf.reduce_logsumexp(logits, axis=-1, keepdims=True))
    # A token stays if those before it have not reached top_p yet: the likeliest one always does.
    stays = tf.cumsum(shares, axis=-1, exclusive=True) < config.top_p
    logits = _without(logits, logits < tf.reduce_min(tf.where(stays, ordered, -_NEVER), axis=-1, keepdims=True))
  if config.min_p:
    shares = tf.nn.softmax(logits)
    logits = _without(logits, shares < config.min_p * tf.reduce_max(shares, axis=-1, keepdims=True))
  return logits


def _without(logits, is_out):
  return tf.where(is_out, _NEVER, logits)


def drawn(logits: tf.Tensor, config: GenerationConfig, seed: tf.Tensor) -> tf.Tensor:
  """A token of each row.

  Args:
    logits: float32 [b, vocab_size], `processed`.
    config: how.
    seed: int64 [2]; the same draws the same, in a graph and under XLA.

  Returns:
    int32 [b].
  """
  if not config.temperature:
    return tf.argmax(logits, axis=-1, output_type=tf.int32)
  return keyed_draws.categorical(logits, 1, seed, tf.int32)[:, 0]
