"""The weights of a model: frozen ones, modules that are trained whole, and the places of all in Hugging Face's folders.

A frozen weight is a constant, the base of adapters: it gets no gradient, and checkpoints leave it out. Every start
loads it from the model's folder. A variable with the weights' digest in its name is in the checkpoint: other weights
have another name, and a restore is refused with both.

Then in this order: `Slot`, the weight of one layer: a variable, a row of stacked ones, or an expert's slice;
`TensorPlace`, a tensor of a folder: one slot, or several side by side; `ModulePlace`, Hugging Face's name of a linear
layer; and peft's `modules_to_save`, which are trained whole with adapters, and saved with them.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import re
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import families
from official_ext.language.modeling import layers
from official_ext.language.modeling.families import family as family_lib
from official_ext.training.model_parts import model_size

_DIGITS = 12


def layer_parts(module: tf.Module) -> list[layers.Part]:
  """A module and all below it that are layers of a decoder."""
  return [part for part in (module, *module.submodules) if isinstance(part, layers.Part)]


def decoder_of(model: tf.Module) -> Any:
  """The decoder of a language model or classifier; the model itself if it has none, as a decoder."""
  return getattr(model, 'decoder', model)


def expect_frozen(module: tf.Module, dtype: tf.DType | str | None) -> None:
  """Lets weights that are still to come be made as `freeze` with the same dtype would make them.

  Args:
    module: a `LanguageModel` or `Decoder` with unmade weights; layers that are to be packed are left out.
    dtype: of `freeze`.
  """
  for part in layer_parts(module):
    weights = [weight for weight in vars(part).values() if isinstance(weight, layers.MetaVariable)]
    if all(type(weight) is layers.MetaVariable for weight in weights):
      for weight in weights:
        if weight.dtype.is_floating:
          weight.kept_dtype = tf.as_dtype(dtype)
          weight.options['trainable'] = False


def freeze(module: tf.Module, leave_out: tuple[type, ...] = (), dtype: tf.DType | str | None = None) -> None:
  """Freezes all weights of a decoder, and notes which they are.

  Args:
    module: a `LanguageModel` or `Decoder`; a head of another kind on it is unchanged.
    leave_out: classes of layers whose own weights are trained, as in layers with `is_saved`.
    dtype: in which floating-point weights are kept from now on, including weights that were frozen before, but not in
      packed layers; None: unchanged.
  """
  for part in layer_parts(module):
    if isinstance(part, leave_out) or part.is_saved:
      continue
    for attribute, variable in part.own_weights().items():
      kept = variable.dtype if part.is_packed else tf.as_dtype(dtype or variable.dtype)
      if variable.dtype.is_floating and (variable.trainable or kept != variable.dtype):
        part.replace_weight(attribute, trainable=False, dtype=kept)
    part.is_frozen = True
  _forget(module)
  setattr(module, f'{model_size.DIGEST_PREFIX}{frozen_digest(module)}', tf.Variable(0, trainable=False, name='base'))


def thaw(module: tf.Module) -> None:
  """Makes all weights trainable again, in the dtype of the layer's policy, and forgets which they were."""
  for part in layer_parts(module):
    part.is_saved = False
    if part.is_frozen:
      for attribute, variable in part.own_weights().items():
        if variable.dtype.is_floating:
          part.replace_weight(attribute, trainable=True, dtype=part.variable_dtype)
      part.is_frozen = False
  _forget(module)


def frozen_notes(holder: object) -> dict[str, object]:
  """The variables with a digest in their names of a module itself, not of the modules in it."""
  return {
    name: value
    for name, value in vars(holder).items()
    if name.startswith(model_size.DIGEST_PREFIX) and isinstance(value, tf.Variable)
  }


def _forget(module):
  """Removes the notes of which weights are frozen, of a module and of the modules in it."""
  for holder in (module, *layer_parts(module)):
    for name in frozen_notes(holder):
      delattr(holder, name)


def frozen_digest(module: tf.Module) -> str:
  """The first digits of the SHA-256 of all frozen weights: their names, shapes and values."""
  found = hashlib.sha256()
  for part in sorted((part for part in layer_parts(module) if part.is_frozen), key=lambda part: part.name):
    for attribute, variable in sorted(part.own_weights().items()):
      found.update(f'{part.name}/{attribute} {variable.shape} {variable.dtype.name}\n'.encode())
      values = np.asarray(tf.convert_to_tensor(variable))  # Not a copy, as `numpy()` is.
      found.update(np.ascontiguousarray(values).view(np.uint8).data)
  return found.hexdigest()[:_DIGITS]


@dataclasses.dataclass(frozen=True)
class Slot:
  """A place for the weight of one layer.

  Attributes:
    variable: that holds it, or the `layers.MetaVariable` that becomes one.
    row: which of its rows, or which slice of which row; None for the whole variable.
  """

  variable: tf.Variable
  row: int | tuple[int, ...] | None = None

  @property
  def shape(self) -> tuple[int, ...]:
    """Of the weight."""
    shape = tuple(self.variable.shape)
    return shape[len(self._index) :]

  @property
  def _index(self) -> tuple[int, ...]:
    return () if self.row is None else (self.row,) if isinstance(self.row, int) else self.row

  def assign(self, value: np.ndarray) -> None:
    """Sets the weight."""
    if isinstance(self.variable, layers.MetaVariable):
      self.variable.assign(value, self.row)
      return
    value = tf.cast(tf.convert_to_tensor(value), self.variable.dtype)
    if self.row is None:
      self.variable.assign(value)
    else:
      self.variable.scatter_nd_update([self._index], value[tf.newaxis])

  def numpy(self) -> np.ndarray:
    """A copy of the weight."""
    value = self.variable if self.row is None else self.variable[self._index]
    return tf.convert_to_tensor(value).numpy()


def find_slots(model: tf_keras.Model) -> dict[str, Slot]:
  """The slots of a model by their path, whether layers are stacked or not.

  'decoder/blocks/3/mlp/up_proj/kernel'; of experts, 'decoder/blocks/3/mlp/experts/5/up_proj'.
  """
  found: dict[str, Slot] = {}
  for part in model.submodules:
    if isinstance(part, layers.Part):
      for attribute, value in vars(part).items():
        if isinstance(value, (tf.Variable, layers.MetaVariable)):
          found.update(_of(part, attribute, value))
  return found


def _of(part, attribute, variable):
  rows: list[tuple[str, tuple[int, ...]]] = [(part.name, ())]
  if part.num_rows:
    number = lambda row: re.sub(r'(^|/)blocks/', rf'\g<1>blocks/{row}/', part.name, count=1)
    rows = [(number(row), (row,)) for row in range(part.num_rows)]
  if part.num_slices:
    rows = [(f'{name}/{piece}', (*row, piece)) for name, row in rows for piece in range(part.num_slices)]
  return {f'{name}/{attribute}': Slot(variable, _short(row)) for name, row in rows}


def _short(row):
  """An index as `Slot` has it."""
  return row if len(row) > 1 else row[0] if row else None


@dataclasses.dataclass(frozen=True)
class TensorPlace:
  """The place of a tensor of a file: these slots, side by side along the outputs, in each group.

  Attributes:
    paths: the paths of the slots, see `find_slots`.
    slots: the slots.
    is_transposed: whether a matrix is [out, in] in the file.
    num_groups: into how many groups the outputs are divided; each has a part of each slot.
  """

  paths: tuple[str, ...]
  slots: tuple[Slot, ...]
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


def find_tensor_places(config: decoder_config.DecoderConfig, slots: Mapping[str, Slot]) -> dict[str, TensorPlace]:
  """Full name of a tensor -> its place, of all tensors that the family has for these slots.

  Args:
    config: of the decoder.
    slots: of `find_slots`.
  """
  family = families.find(config.model_type, 'model_type')
  found: dict[str, TensorPlace] = {}

  def add(name, tensor, prefix=''):
    paths = tuple(f'{prefix}{path}' for path in tensor.ours)
    has_it = not tensor.block_types or config.block_type in tensor.block_types
    if paths[0] in slots and has_it:
      num_groups = config.num_key_value_heads if tensor.is_grouped else 1
      found[name] = TensorPlace(paths, tuple(slots[path] for path in paths), tensor.is_transposed, num_groups)

  for name, tensor in family.tensors.items():
    add(family_lib.full_name(family, name), tensor)
  add(family_lib.SCORES, family_lib.Tensor(('score/kernel',), is_transposed=True))
  for number in range(config.num_hidden_layers):
    for name, tensor in family_lib.of_experts(family.block_tensors, config.num_experts):
      add(f'{family.prefix}{family.block_prefix.format(number)}{name}', tensor, f'decoder/blocks/{number}/')
  return found


class ModulePlace(NamedTuple):
  """A linear layer in a Hugging Face model.

  Attributes:
    module: the name of its module there: 'model.layers.0.self_attn.q_proj'.
    in_block: its name in its block, 'self_attn.q_proj'; outside of blocks, `module`.
    row: the row of stacked weights; None if they are not stacked.
    part: which of the layers it is that lie in this module, one after the other along the outputs.
    is_transposed: whether its weight is [out, in] there.
    num_groups: the groups of its outputs, within each of which the layers lie one after the other.
  """

  module: str
  in_block: str
  row: int | None
  part: int
  is_transposed: bool
  num_groups: int = 1


def module_places(config: decoder_config.DecoderConfig, name: str) -> list[ModulePlace]:
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
    ModulePlace(
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


_KINDS = (layers.Linear, layers.Embedding, layers.Norm)


def find_saved_modules(module: Any, patterns: Sequence[str]) -> list[layers.Part]:
  """The layers that hold the modules of Hugging Face's model which patterns name.

  Args:
    module: a `LanguageModel` or a `Decoder`.
    patterns: names of modules there, such as model.norm, or the ends of names after a dot, such as lm_head.

  Raises:
    UserError: a pattern matches no module, a module whose weights another one shares, or some rows of stacked layers.
  """
  places = _places(module)
  owners = {id(weight): part for part in layer_parts(module) for weight in part.own_weights().values()}
  names = {name.rpartition('.')[0] for name, place in places.items() if _is_whole(place, owners)}
  matching: set[str] = set()
  for pattern in patterns:
    found = {name for name in names if name == pattern or name.endswith(f'.{pattern}')}
    if not found:
      raise errors.UserError(_unknown(pattern, names, module))
    matching |= found
  chosen: dict[int, layers.Part] = {}
  for name, place in places.items():
    if name.rpartition('.')[0] in matching:
      chosen.update((id(owners[id(slot.variable)]), owners[id(slot.variable)]) for slot in place.slots)
  _check_rows(matching, places, owners, chosen)
  if module.config.tie_word_embeddings and id(decoder_of(module).embed_tokens) in chosen:
    raise errors.UserError(
      'modules_to_save: the head is the embedding (tie_word_embeddings), which peft would train as two; leave it out'
    )
  return list(chosen.values())


def mark_saved(part: layers.Part) -> None:
  """Makes a layer one that is trained whole, in the dtype of its policy."""
  part.is_saved = True
  part.is_frozen = False
  for attribute, variable in part.own_weights().items():
    if not variable.trainable or variable.dtype != part.variable_dtype:
      part.replace_weight(attribute, trainable=True, dtype=part.variable_dtype)


def saved_tensors(module: tf.Module) -> dict[str, TensorPlace]:
  """Full name of a tensor there -> its place, of the layers that are marked."""
  saved = {id(weight) for weight in saved_weights(module)}
  return {name: place for name, place in _places(module).items() if id(place.slots[0].variable) in saved}


def saved_weights(module: tf.Module) -> list[tf.Variable]:
  """The weights of the layers that are marked."""
  return [weight for part in layer_parts(module) if part.is_saved for weight in part.own_weights().values()]


def _places(module):
  return find_tensor_places(module.config, find_slots(module))


def _is_whole(place, owners):
  """Whether a tensor belongs to layers that can be trained whole: not to packed ones, adapters or experts."""
  return all(isinstance(owners.get(id(slot.variable)), _KINDS) for slot in place.slots)


def _check_rows(matching, places, owners, chosen):
  """Refuses modules that are some rows of stacked layers, or some of the layers that one module there holds."""
  for name, place in places.items():
    module = name.rpartition('.')[0]
    for part in (owners.get(id(slot.variable)) for slot in place.slots):
      if id(part) in chosen and module not in matching:
        raise errors.UserError(
          f'modules_to_save: {module} is not among them, and shares {part.name} with one that is: load with '
          'scan_layers=False'
        )


def _unknown(pattern, names, module):
  known = sorted({name.rpartition('.')[2] for name in names})
  hint = errors.did_you_mean(pattern, known, before='; ')
  if pattern == 'lm_head' and getattr(module.config, 'tie_word_embeddings', False):
    hint = '; the head of this model is its embedding (tie_word_embeddings)'
  there = ', '.join(known)
  return f'modules_to_save: {pattern!r} matches no module that can be trained whole; there are {there}{hint}'
