"""The model as it was when training began, which tasks hold the trained one against, without a second copy of its base.

Only trained weights have changed since. New adapters began at nothing: the reference is the model with them switched
off. Otherwise the trained weights' first values are kept, as constants that checkpoints hold.
"""

from collections.abc import Callable, Mapping
import contextlib
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.language.modeling import lora
from official_ext.training.model_parts import layer_weights

_ATTRIBUTE = '_fine_tuning_reference'


class Reference:
  """The initial values of a model's trained weights."""

  def __init__(self, model: tf_keras.Model, is_switched_off: bool):
    """Keeps the weights needed; see `keep`."""
    self._trained: list[Any] = [] if is_switched_off else list(model.trainable_variables)
    self._first = [
      tf.Variable(variable.numpy(), trainable=False, dtype=variable.dtype, name='reference')
      for variable in self._trained
    ]
    self.checkpoint_items: dict[str, object] = {}
    if self._first:
      self.checkpoint_items['reference'] = tf.train.Checkpoint(weights=self._first)

  def take(self) -> None:
    """Takes the current weights."""
    for first, variable in zip(self._first, self._trained):
      first.assign(variable.numpy())

  def within(self, model: tf_keras.Model) -> contextlib.AbstractContextManager[None]:
    """A context in which the model computes the reference."""
    if not self._first:
      return lora.switched_off(model)
    return layer_weights.handed_in(self._trained, [tf.convert_to_tensor(first) for first in self._first])


def keep(model: tf_keras.Model, is_switched_off: bool) -> None:
  """Keeps the current weights of a model, for `of`; its checkpoints hold that from now on, under `reference`.

  Args:
    model: all of its weights are made. Called inside the strategy's scope.
    is_switched_off: whether the model without its adapters equals the reference.
  """
  reference = Reference(model, is_switched_off)
  # Past Keras, which would take the kept weights for weights of the model.
  items: Mapping[str, object] = getattr(model, 'checkpoint_items', {})
  vars(model)[_ATTRIBUTE] = reference
  vars(model)['checkpoint_items'] = {**items, **reference.checkpoint_items}


def take(model: tf_keras.Model) -> None:
  """Takes the current weights, if the model has a reference: after they were read from a checkpoint."""
  if _ATTRIBUTE in vars(model):
    vars(model)[_ATTRIBUTE].take()


def of(model: tf_keras.Model) -> Callable[..., tf.Tensor]:
  """A callable with the model's function at the start of training: same arguments, same result.

  Nothing drops out, and no gradient flows.

  Args:
    model: one of `keep`.
  """
  reference: Reference = vars(model)[_ATTRIBUTE]

  def call(*args: object, **kwargs: object) -> tf.Tensor:
    with reference.within(model):
      found = model(*args, **{**kwargs, 'training': False})
    return tf.nest.map_structure(tf.stop_gradient, found)

  return call
