"""Samplers: completions of prompts, by the model in this process or by anything else that has its weights."""

from typing import Any, Protocol

import tensorflow as tf

from official_ext.language.modeling import generation


class Sampler(Protocol):
  """Draws completions of prompts. A `generation.GenerationConfig` has temperature, filters, length and stops.

  Example:

    >>> class Echo:  # A sampler that repeats the last token of a prompt.
    ...   def prepare(self, model, prompt_length):
    ...     pass
    ...
    ...   def take_weights(self, model, step):
    ...     return step
    ...
    ...   def __call__(self, model, prompts, mask, count, seed):
    ...     tokens = tf.repeat(prompts[:, -1:], count, axis=0)
    ...     return ext.generation.Samples(tokens, tf.fill(tokens.shape, np.nan), tf.ones_like(tokens))
    >>> sampler: ext.Sampler = Echo()
    >>> sampler(None, tf.constant([[5, 6]]), tf.ones([1, 2], tf.int32), 3, None).tokens.numpy().tolist()
    [[6], [6], [6]]
  """

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
  """Samples by the model in this process. Called eagerly, it is compiled once for prompts of one shape.

  Example:

    >>> config = ext.DecoderConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
    >>> sampler = ext.ModelSampler(ext.GenerationConfig(max_new_tokens=4, temperature=1.0))
    >>> prompts = tf.constant([[0, 5, 6], [7, 8, 9]])
    >>> mask = tf.constant([[0, 1, 1], [1, 1, 1]])  # Prompts are padded on the left.
    >>> found = sampler(ext.LanguageModel(config), prompts, mask, count=2, seed=tf.constant([0, 1], tf.int64))
    >>> found.tokens.shape, found.log_probs.shape  # Two completions of each prompt.
    (TensorShape([4, 4]), TensorShape([4, 4]))
  """

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
