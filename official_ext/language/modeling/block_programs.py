"""One XLA program for all blocks of a decoder that are alike: it compiles in the time of one block, not of all.

programs = BlockPrograms()
x, cache = programs(block, x, context)     # compiled for the first block, and run for the others with their weights
"""

from typing import Any

import tensorflow as tf

from official_ext.base import tf_internals
from official_ext.language.modeling import attention
from official_ext.language.modeling import decoder
from official_ext.language.modeling import key_value_cache
from official_ext.training.model_parts import layer_weights

_PLAIN = (bool, int, float, str, type(None))


class BlockPrograms:
  """Runs blocks of one decoder eagerly, each by one program that takes its weights as arguments."""

  def __init__(self) -> None:
    self._variables: dict[int, tuple[Any, list[tf.Variable]]] = {}  # By the block's id, which lives as long.
    self._programs: dict[Any, Any] = {}

  def __call__(
    self, block: Any, x: tf.Tensor, context: attention.LayerContext
  ) -> tuple[tf.Tensor, key_value_cache.LayerCache]:
    """What `block(x, context)` computes, up to rounding.

    Args:
      block: a `decoder.Block`, without stacked weights.
      x: [b, t, hidden_size].
      context: with a cache.
    """
    if id(block) not in self._variables:
      self._variables[id(block)] = _kind(block), block.variables
    kind, variables = self._variables[id(block)]
    # With a cache, `is_causal` is False, its default.
    tensors = {name: value for name, value in vars(context).items() if value is not None and value is not False}
    inputs, weights = [x, *tf.nest.flatten(tensors)], [layer_weights.value_of(variable) for variable in variables]
    key = (kind, *tensors, *(tuple(value.shape) for value in inputs))
    if key not in self._programs:
      self._programs[key] = self._program(block, x, tensors, weights, variables)
    return self._programs[key](*inputs, *weights)

  def _program(self, block, x, tensors, weights, variables):
    """The program of a block for inputs of these shapes."""

    @tf.function(jit_compile=True, autograph=False)
    def program(x, tensors, weights):
      with layer_weights.handed_in(variables, weights):
        return block(x, attention.LayerContext(**tensors))

    concrete = program.get_concrete_function(x, tensors, weights)
    return lambda *inputs: tf_internals.call_with_captures(concrete, inputs, concrete.captured_inputs)


def _kind(block):
  """Equal for blocks that compute the same from their weights: of all layers inside, the class and the numbers.

  Names begin with the block's own. A block of another class may depend on more, and is alike to none.
  """
  if type(block) is not decoder.Block:
    return id(block)
  weights = tuple((v.name.removeprefix(block.name), tuple(v.shape), v.dtype) for v in block.variables)
  layers = []
  for layer in (block, *block.submodules):
    values = ((name, value) for name, value in sorted(vars(layer).items()) if isinstance(value, _PLAIN))
    named = tuple((name, value.removeprefix(block.name) if isinstance(value, str) else value) for name, value in values)
    layers.append((type(layer), named))
  return weights, tuple(layers)
