"""Hugging Face's names of the linear layers of a decoder."""

from typing import NamedTuple

from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import families


class Place(NamedTuple):
  """A linear layer in a Hugging Face model.

  Attributes:
    module: the name of its module there: 'model.layers.0.self_attn.q_proj'.
    in_block: its name in its block, or that of `module` outside of blocks: 'self_attn.q_proj'.
    row: the row of stacked weights; None if they are not stacked.
    part: which of the layers it is that lie in this module, one behind the other along the outputs.
    is_transposed: whether its weight is [out, in] there.
    num_groups: the groups of its outputs, within each of which the layers lie one behind the other.
  """

  module: str
  in_block: str
  row: int | None
  part: int
  is_transposed: bool
  num_groups: int = 1


def places(config: decoder_config.DecoderConfig, name: str) -> list[Place]:
  """The place of a linear layer.

  Args:
    config: the decoder's configuration.
    name: the layer's: 'decoder/blocks/0/self_attn/q_proj', without the number if the blocks are stacked, or 'lm_head'.

  Returns:
    One place; one for each row of stacked blocks; none if the family does not have the layer.
  """
  family = families.find(config.model_type, 'model_type')
  if not name.startswith('decoder/blocks/'):
    return _found(config, family.tensors, name, '', None)
  rest = name.removeprefix('decoder/blocks/')
  if config.scan_layers:
    rows: list[tuple[int, int | None]] = [(number, number) for number in range(config.num_hidden_layers)]
  else:
    number, _, rest = rest.partition('/')
    rows = [(int(number), None)]
  block = family.prefix + family.block_prefix
  return [
    place for number, row in rows for place in _found(config, family.block_tensors, rest, block.format(number), row)
  ]


def _found(config, tensors, name, prefix, row):
  kernel = f'{name}/kernel'
  return [
    Place(
      prefix + theirs.removesuffix('.weight'),
      theirs.removesuffix('.weight'),
      row,
      tensor.ours.index(kernel),
      tensor.is_transposed,
      config.num_key_value_heads if tensor.is_grouped else 1,
    )
    for theirs, tensor in tensors.items()
    if kernel in tensor.ours
  ]
