"""The place of each tensor of a Hugging Face folder in a model: one weight, or several side by side."""

from collections.abc import Mapping
import dataclasses

import numpy as np

from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import families
from official_ext.language.modeling import weight_slots
from official_ext.language.modeling.families import family as family_lib


@dataclasses.dataclass(frozen=True)
class Place:
  """The place of a tensor of a file: these slots, side by side along the outputs, in each of so many groups.

  Attributes:
    paths: the paths of the slots, see `weight_slots.find`.
    slots: the slots.
    is_transposed: whether a matrix is [out, in] in the file.
    num_groups: into how many groups the outputs are divided; each has a part of each slot.
  """

  paths: tuple[str, ...]
  slots: tuple[weight_slots.Slot, ...]
  is_transposed: bool
  num_groups: int = 1

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the tensor in the file."""
    first = self.slots[0].shape
    whole = (*first[:-1], sum(slot.shape[-1] for slot in self.slots))
    return whole[::-1] if self.is_transposed else whole

  def assign(self, value: np.ndarray) -> None:
    """Sets the weights from a tensor of `shape`."""
    value = value.T if self.is_transposed else value
    sizes = [slot.shape[-1] for slot in self.slots]
    for slot, part in zip(self.slots, family_lib.parted(value, sizes, self.num_groups)):
      slot.assign(part)

  def numpy(self) -> np.ndarray:
    """The tensor of the file."""
    value = family_lib.joined([slot.numpy() for slot in self.slots], self.num_groups)
    return np.ascontiguousarray(value.T if self.is_transposed else value)


def find(config: decoder_config.DecoderConfig, slots: Mapping[str, weight_slots.Slot]) -> dict[str, Place]:
  """Full name of a tensor -> its place, of all tensors that the family has for these slots.

  Args:
    config: of the decoder.
    slots: of `weight_slots.find`.
  """
  family = families.find(config.model_type, 'model_type')
  found: dict[str, Place] = {}

  def add(name, tensor, prefix=''):
    paths = tuple(f'{prefix}{path}' for path in tensor.ours)
    has_it = not tensor.block_types or config.block_type in tensor.block_types
    if paths[0] in slots and has_it:
      num_groups = config.num_key_value_heads if tensor.is_grouped else 1
      found[name] = Place(paths, tuple(slots[path] for path in paths), tensor.is_transposed, num_groups)

  for name, tensor in family.tensors.items():
    add(family_lib.full_name(family, name), tensor)
  add(family_lib.SCORES, family_lib.Tensor(('score/kernel',), is_transposed=True))
  for number in range(config.num_hidden_layers):
    for name, tensor in family_lib.of_experts(family.block_tensors, config.num_experts):
      add(f'{family.prefix}{family.block_prefix.format(number)}{name}', tensor, f'decoder/blocks/{number}/')
  return found
