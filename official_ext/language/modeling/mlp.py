"""The MLP of a block."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import layers


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
      **options: those of `layers.Part`.
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
