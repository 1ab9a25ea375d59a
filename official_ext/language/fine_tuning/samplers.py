"""Samplers: completions of prompts, by the model in this process or by anything else that has its weights."""

from typing import Any, Protocol

import tensorflow as tf

from official_ext.language.modeling import generation


class Sampler(Protocol):
  """Draws completions of prompts. A `generation.GenerationConfig` has temperature, filters, length and stops."""

  def prepare(self, model: Any, prompt_length: int) -> None:
    """Checks, before training, that completions can be sampled.

    Args:
      model: the policy.
      prompt_length: tokens of the longest prompt.

    Raises:
      UserError: they cannot.
    """

  def take_weights(self, model: Any, step: tf.Tensor) -> tf.Tensor:
    """Takes the present weights, if the sampler has a copy of them. Eagerly or in a graph, in cross-replica context.

    Args:
      model: the policy.
      step: int64 scalar, the updates so far.

    Returns:
      A tensor without meaning: `__call__` must run after it.
    """

  def __call__(
    self, model: Any, prompts: tf.Tensor, mask: tf.Tensor, count: int, seed: tf.Tensor
  ) -> generation.Samples:
    """Completions of prompts. Eagerly or in a graph, in replica context.

    Args:
      model: the policy.
      prompts: int32 [p, t] of static shape, padded on the left.
      mask: int32 [p, t], 0 for padding.
      count: completions of each prompt.
      seed: int64 [2]; the same draws the same.

    Returns:
      p * count rows, grouped by prompt. Log-probabilities are NaN if the sampler does not know them.
    """


class ModelSampler:
  """Samples by the model in this process. Called eagerly, it is compiled once for prompts of one shape."""

  def __init__(self, config: generation.GenerationConfig):
    """Compiles nothing yet.

    Args:
      config: how to draw.
    """
    # The cache of keys and values is made for XLA. Inside of another XLA program this is a part of it.
    self._draw = tf.function(
      lambda model, count, prompts, mask, seed: generation.sample(model, config, prompts, mask, seed, count=count),
      jit_compile=True,
      autograph=False,
    )

  def prepare(self, model: Any, prompt_length: int) -> None:
    """Nothing: see base class."""

  def take_weights(self, model: Any, step: tf.Tensor) -> tf.Tensor:
    """Nothing, since the model itself samples: see base class."""
    del model
    return step

  def __call__(
    self, model: Any, prompts: tf.Tensor, mask: tf.Tensor, count: int, seed: tf.Tensor
  ) -> generation.Samples:
    """See base class."""
    found: generation.Samples = self._draw(model, count, prompts, mask, seed)
    return found
