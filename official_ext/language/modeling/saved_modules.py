"""Modules that are trained whole beside adapters, and saved with them: peft's `modules_to_save`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import suggestions
from official_ext.language.modeling import frozen
from official_ext.language.modeling import layers
from official_ext.language.modeling import tensor_places
from official_ext.language.modeling import weight_slots

_KINDS = (layers.Linear, layers.Embedding, layers.Norm)


def find(module: Any, patterns: Sequence[str]) -> list[layers.Part]:
  """The layers that hold the modules of Hugging Face's model which patterns name.

  Args:
    module: a `LanguageModel` or a `Decoder`.
    patterns: names of modules there, such as model.norm, or the ends of names behind a dot, such as lm_head.

  Raises:
    UserError: a pattern matches no module, a module whose weights another one shares, or some rows of stacked layers.
  """
  places = _places(module)
  owners = {id(weight): part for part in frozen.parts(module) for weight in part.own_weights().values()}
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
  decoder: Any = getattr(module, 'decoder', module)
  if module.config.tie_word_embeddings and id(decoder.embed_tokens) in chosen:
    raise errors.UserError(
      'modules_to_save: the head is the embedding (tie_word_embeddings), which peft would train as two; leave it out'
    )
  return list(chosen.values())


def mark(part: layers.Part) -> None:
  """Makes a layer one that is trained whole, in the dtype of its policy."""
  part.is_saved = True
  part.is_frozen = False
  for attribute, variable in part.own_weights().items():
    if not variable.trainable or variable.dtype != part.variable_dtype:
      part.replace_weight(attribute, trainable=True, dtype=part.variable_dtype)


def tensors(module: tf.Module) -> dict[str, tensor_places.Place]:
  """Full name of a tensor there -> its place, of the layers that are marked."""
  saved = {id(weight) for weight in weights(module)}
  return {name: place for name, place in _places(module).items() if id(place.slots[0].variable) in saved}


def weights(module: tf.Module) -> list[tf.Variable]:
  """The weights of the layers that are marked."""
  return [weight for part in frozen.parts(module) if part.is_saved for weight in part.own_weights().values()]


def _places(module):
  return tensor_places.find(module.config, weight_slots.find(module))


def _is_whole(place, owners):
  """Whether a tensor belongs to layers that can be trained whole: not to packed ones, adapters or experts."""
  return all(isinstance(owners.get(id(slot.variable)), _KINDS) for slot in place.slots)


def _check_rows(matching, places, owners, chosen):
  """Refuses modules that are some rows of stacked layers, or a part of those that one module there holds."""
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
  hint = suggestions.did_you_mean(pattern, known, before='; ')
  if pattern == 'lm_head' and getattr(module.config, 'tie_word_embeddings', False):
    hint = '; the head of this model is its embedding (tie_word_embeddings)'
  there = ', '.join(known)
  return f'modules_to_save: {pattern!r} matches no module that can be trained whole; there are {there}{hint}'
