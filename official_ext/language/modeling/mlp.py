"""The MLP of a block, and the mixture of experts in its place.

Each token goes through the k likeliest experts of a softmax, as in Qwen3-MoE: no capacity, no token dropped (Shazeer et
al., 2017, https://arxiv.org/abs/1701.06538). Shapes are static, so that all of it is part of an XLA program: tokens are
sorted by expert into blocks of one expert each: see grouped.py.
"""

from collections.abc import Callable
import functools
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import layers
from official_ext.training.model_parts import grouped
from official_ext.training.model_parts import remat


class MLP(layers.Part):
  """down_proj(act(gate_proj(x)) * up_proj(x)), or without the gate down_proj(act(up_proj(x)))."""

  def __init__(
    self,
    config: decoder_config.DecoderConfig,
    initializer: Callable[[], tf_keras.initializers.Initializer],
    intermediate_size: int | None = None,
    **options: Any,
  ):
    """Makes the MLP.

    Args:
      config: of the decoder.
      initializer: see `decoder.Decoder`.
      intermediate_size: width inside; None for the decoder's.
      **options: of `layers.Part`.
    """
    super().__init__(**options)
    width, inner, bias = config.hidden_size, intermediate_size or config.intermediate_size, config.mlp_bias
    make = lambda name, before, after: layers.Linear(before, after, bias, initializer(), **self.inside(name))
    self.gate_proj = make('gate_proj', width, inner) if config.gated_mlp else None
    self.up_proj = make('up_proj', width, inner)
    self.down_proj = make('down_proj', inner, width)
    self._activation = layers.activation(config.hidden_act, config.gated_mlp)

  def call(self, x: tf.Tensor) -> tf.Tensor:
    """A tensor of x's shape and dtype."""
    up = self.up_proj(x)
    inner = self._activation(up) if self.gate_proj is None else self._activation(self.gate_proj(x), up)
    return self.down_proj(inner)


class Router(layers.Part):
  """x kernel: a logit for each expert.

  Attributes:
    kernel: [hidden_size, experts].
  """

  def __init__(
    self,
    config: decoder_config.DecoderConfig,
    initializer: Callable[[], tf_keras.initializers.Initializer],
    **options: Any,
  ):
    super().__init__(**options)
    self.kernel = self.make_weight('kernel', (config.hidden_size, config.num_experts), initializer())

  def call(self, x: tf.Tensor) -> tf.Tensor:
    """[..., hidden_size] -> [..., experts], in the compute dtype."""
    return layers.product(x, self.value(self.kernel))


class Experts(layers.Part):
  """The MLPs: down_proj(act(gate_proj(x)) * up_proj(x)) each.

  Attributes:
    gate_proj, up_proj: [experts, hidden_size, moe_intermediate_size].
    down_proj: [experts, moe_intermediate_size, hidden_size].
  """

  def __init__(
    self,
    config: decoder_config.DecoderConfig,
    initializer: Callable[[], tf_keras.initializers.Initializer],
    **options: Any,
  ):
    super().__init__(**options)
    self.num_slices = config.num_experts
    count, width, inner = config.num_experts, config.hidden_size, config.moe_intermediate_size
    self.gate_proj = self.make_weight('gate_proj', (count, width, inner), initializer())
    self.up_proj = self.make_weight('up_proj', (count, width, inner), initializer())
    self.down_proj = self.make_weight('down_proj', (count, inner, width), initializer())
    self._activation = layers.ACTIVATIONS[config.hidden_act]

  def call(self, x: tf.Tensor, numbers: tf.Tensor, shares: tf.Tensor) -> tf.Tensor:
    """The sum of the outputs of each token's experts, weighted by their shares.

    Of many tokens, each is computed by its experts alone, in blocks of rows. If the tokens need fewer experts than
    there are, as the next token of a text does, only their weights are read. Otherwise, and on a mesh, all experts
    compute all tokens, with shares of 0 for experts that a token does not use.

    Args:
      x: [tokens, hidden_size].
      numbers: int32 [tokens, k], of each token's experts.
      shares: [tokens, k], in the compute dtype.

    Returns:
      [tokens, hidden_size], in the compute dtype.
    """
    gate, up, down = (self.value(weight) for weight in (self.gate_proj, self.up_proj, self.down_proj))
    num_tokens, k = x.shape[0], numbers.shape[1]
    if num_tokens is not None and num_tokens * k < self.num_slices:
      gate, up, down = (tf.gather(weight, numbers) for weight in (gate, up, down))
      inner = self._activation(tf.einsum('th,tkhi->tki', x, gate)) * tf.einsum('th,tkhi->tki', x, up)
      return tf.einsum('tki,tkih->th', inner * shares[:, :, tf.newaxis], down)
    rows = 0 if num_tokens is None else grouped.rows_of_block(num_tokens, k, self.num_slices)
    if rows:
      blocks = grouped.blocks_of(numbers, self.num_slices, rows)
      parts = grouped.dispatched(x, blocks)
      product = functools.partial(grouped.products, groups=blocks.groups)
      inner = self._activation(product(parts, gate)) * product(parts, up)
      outputs = grouped.collected(product(inner, down), blocks)
      return tf.reduce_sum(outputs * shares[:, :, tf.newaxis], axis=1)
    of_all = tf.reduce_sum(tf.one_hot(numbers, self.num_slices, dtype=x.dtype) * shares[:, :, tf.newaxis], axis=1)
    inner = self._activation(tf.einsum('th,ehi->tei', x, gate)) * tf.einsum('th,ehi->tei', x, up)
    return tf.einsum('tei,eih->th', inner * of_all[:, :, tf.newaxis], down)


class SparseMLP(layers.Part):
  """Router and experts.

  Attributes:
    gate: the `Router`.
    experts: the `Experts`.
    shared_expert: a `MLP` of all tokens; None without `config.shared_expert_intermediate_size`.
    shared_expert_gate: a `layers.Linear` to one number, the logit of the shared expert's factor.
  """

  def __init__(
    self,
    config: decoder_config.DecoderConfig,
    initializer: Callable[[], tf_keras.initializers.Initializer],
    **options: Any,
  ):
    super().__init__(**options)
    self._config = config
    self.gate = Router(config, initializer, **self.inside('gate'))
    self.experts = Experts(config, initializer, **self.inside('experts'))
    self.shared_expert = self.shared_expert_gate = None
    if config.shared_expert_intermediate_size:
      width = config.shared_expert_intermediate_size
      self.shared_expert = MLP(config, initializer, width, **self.inside('shared_expert'))
      gate = self.inside('shared_expert_gate')
      self.shared_expert_gate = layers.Linear(config.hidden_size, 1, False, initializer(), **gate)

  def call(self, x: tf.Tensor, is_token: tf.Tensor | None = None) -> tf.Tensor:
    """A tensor of x's shape and dtype. Reports how tokens were spread: see `router_loss`.

    Args:
      x: [b, t, hidden_size].
      is_token: float32 [b, t], 0 for padding, which counts for nothing in the report; None for tokens alone.
    """
    config = self._config
    rows = tf.reshape(x, [-1, config.hidden_size])
    chances = tf.nn.softmax(tf.cast(self.gate(rows), tf.float32))
    shares, numbers = tf.math.top_k(chances, config.num_experts_per_tok)
    if config.norm_topk_prob:
      shares /= tf.reduce_sum(shares, axis=-1, keepdims=True)
    if remat.is_wanted():
      remat.report(_spread(chances, numbers, is_token))
    y = self.experts(rows, numbers, tf.cast(shares, rows.dtype))
    if self.shared_expert is not None and self.shared_expert_gate is not None:
      y += tf.sigmoid(self.shared_expert_gate(rows)) * self.shared_expert(rows)
    return tf.reshape(y, layers.sizes(x))


def _spread(chances, numbers, is_token):
  """How many of a token's k experts each one is, and with which probability, on average: float32 [2, experts]."""
  hits = tf.reduce_sum(tf.one_hot(numbers, chances.shape[-1]), axis=1)
  weights = tf.ones(tf.shape(chances)[:1]) if is_token is None else tf.reshape(is_token, [-1])
  both = tf.stack([tf.stop_gradient(hits), chances])
  return tf.einsum('t,ste->se', weights, both) / tf.reduce_sum(weights)


def report_spec(config: decoder_config.DecoderConfig) -> tf.TensorSpec:
  """The report of each sparse layer."""
  return tf.TensorSpec([2, config.num_experts], tf.float32)


def router_loss(reports: list[tf.Tensor]) -> tf.Tensor:
  """How unevenly all routers together spread the tokens: Fedus et al., 2021, https://arxiv.org/abs/2101.03961.

  experts * sum over experts e of f_e P_e, with f_e the number of times that a token goes to e and P_e the probability
  of e, both means over the tokens of all sparse layers: as in transformers' load_balancing_loss_func. It is
  the number of experts of a token if all are used alike.

  Args:
    reports: of the sparse layers: [2, experts] each, or [layers, 2, experts] of stacked ones.

  Returns:
    A float32 scalar.
  """
  num_experts = reports[0].shape[-1]
  means = tf.reduce_mean(tf.concat([tf.reshape(found, [-1, 2, num_experts]) for found in reports], axis=0), axis=0)
  return num_experts * tf.reduce_sum(means[0] * means[1])
