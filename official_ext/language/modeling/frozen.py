"""Weights that are not trained: the base of adapters.

A frozen weight is a constant. No gradient is asked of it, and checkpoints leave it out: it comes from where the model
was loaded from, at every start. That it is the same then is held by a variable with the weights' digest in its name,
which is in the checkpoint: other weights have another name, and a restore is refused with both.
"""

import hashlib

import numpy as np
import tensorflow as tf

from official_ext.language.modeling import layers
from official_ext.language.modeling import unmade
from official_ext.training.model_parts import frozen_weights

_DIGITS = 12


def parts(module: tf.Module) -> list[layers.Part]:
  """A module and all below it that are layers of a decoder."""
  return [part for part in (module, *module.submodules) if isinstance(part, layers.Part)]


def expect(module: tf.Module, dtype: tf.DType | str | None) -> None:
  """Lets weights that are still to come be made as `freeze` with the same dtype would make them.

  Args:
    module: a `LanguageModel` or `Decoder` with unmade weights; those of layers that are to be packed are left out.
    dtype: of `freeze`.
  """
  for part in parts(module):
    weights = [weight for weight in vars(part).values() if isinstance(weight, unmade.Unmade)]
    if all(type(weight) is unmade.Unmade for weight in weights):
      for weight in weights:
        if weight.dtype.is_floating:
          weight.kept_dtype = tf.as_dtype(dtype)
          weight.options['trainable'] = False


def freeze(module: tf.Module, leave_out: tuple[type, ...] = (), dtype: tf.DType | str | None = None) -> None:
  """Freezes all weights of a decoder, and notes which they are.

  Args:
    module: a `LanguageModel` or `Decoder`; a head of another kind on it is unchanged.
    leave_out: classes of layers whose own weights are trained, as those of layers with `is_saved` are.
    dtype: in which floating-point weights are kept from now on, those that were frozen before too, but for layers
      that are packed; None for that which they have.
  """
  for part in parts(module):
    if isinstance(part, leave_out) or part.is_saved:
      continue
    for attribute, variable in part.own_weights().items():
      kept = variable.dtype if part.is_packed else tf.as_dtype(dtype or variable.dtype)
      if variable.dtype.is_floating and (variable.trainable or kept != variable.dtype):
        part.replace_weight(attribute, trainable=False, dtype=kept)
    part.is_frozen = True
  _forget(module)
  setattr(module, f'{frozen_weights.DIGEST_PREFIX}{digest(module)}', tf.Variable(0, trainable=False, name='base'))


def thaw(module: tf.Module) -> None:
  """Makes all weights trainable again, in the dtype of the layer's policy, and forgets which they were."""
  for part in parts(module):
    part.is_saved = False
    if part.is_frozen:
      for attribute, variable in part.own_weights().items():
        if variable.dtype.is_floating:
          part.replace_weight(attribute, trainable=True, dtype=part.variable_dtype)
      part.is_frozen = False
  _forget(module)


def notes(holder: object) -> dict[str, object]:
  """The variables with a digest in their names of a module itself, not of the modules in it."""
  return {
    name: value
    for name, value in vars(holder).items()
    if name.startswith(frozen_weights.DIGEST_PREFIX) and isinstance(value, tf.Variable)
  }


def _forget(module):
  """Removes the notes of which weights are frozen, of a module and of the modules in it."""
  for holder in (module, *parts(module)):
    for name in notes(holder):
      delattr(holder, name)


def digest(module: tf.Module) -> str:
  """The first digits of the SHA-256 of all frozen weights: their names, shapes and values."""
  found = hashlib.sha256()
  for part in sorted((part for part in parts(module) if part.is_frozen), key=lambda part: part.name):
    for attribute, variable in sorted(part.own_weights().items()):
      found.update(f'{part.name}/{attribute} {variable.shape} {variable.dtype.name}\n'.encode())
      values = np.asarray(tf.convert_to_tensor(variable))  # Not a copy, as `numpy()` is.
      found.update(np.ascontiguousarray(values).view(np.uint8).data)
  return found.hexdigest()[:_DIGITS]
