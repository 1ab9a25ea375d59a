"""Models of a fine-tuning task other than its language model: the reference, and classifiers.

The reference is the model as it was when training began, without a second copy of its base: only trained weights have
changed. New adapters began at nothing, so it is the model with them switched off. Otherwise the trained weights' first
values are kept, as constants that checkpoints hold.

Classifiers score texts, start from `model_path`, and are saved as whole folders.
"""

from collections.abc import Callable, Mapping
import contextlib
from typing import Any

from absl import logging
import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals
from official_ext.base.run_folder import model_folders
from official_ext.language.fine_tuning import fine_tuning_config
from official_ext.language.modeling import decoder
from official_ext.language.modeling import lora
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.training.model_parts import remat

_ATTRIBUTE = '_fine_tuning_reference'


class Reference:
  """The initial values of a model's trained weights."""

  def __init__(self, model: tf_keras.Model, is_switched_off: bool):
    """Keeps the weights needed; see `keep_reference`."""
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
    return remat.handed_in(self._trained, [tf.convert_to_tensor(first) for first in self._first])


def keep_reference(model: tf_keras.Model, is_switched_off: bool) -> None:
  """Keeps the current weights of a model, for `reference_of`; its checkpoints hold that from now on, under `reference`.

  Args:
    model: all of its weights are made. Called inside the strategy's scope.
    is_switched_off: whether the model without its adapters equals the reference.
  """
  reference = Reference(model, is_switched_off)
  # Past Keras, which would take the kept weights for weights of the model.
  items = tf_internals.checkpoint_items_of(model)
  vars(model)[_ATTRIBUTE] = reference
  vars(model)['checkpoint_items'] = {**items, **reference.checkpoint_items}


def take_reference(model: tf_keras.Model) -> None:
  """Takes the current weights, if the model has a reference: after they were read from a checkpoint."""
  if _ATTRIBUTE in vars(model):
    vars(model)[_ATTRIBUTE].take()


def reference_of(model: tf_keras.Model) -> Callable[..., tf.Tensor]:
  """A callable with the model's function at the start of training: same arguments, same result.

  Nothing drops out, and no gradient flows.

  Args:
    model: one of `keep_reference`.
  """
  reference: Reference = vars(model)[_ATTRIBUTE]

  def call(*args: object, **kwargs: object) -> tf.Tensor:
    with reference.within(model):
      found = model(*args, **{**kwargs, 'training': False})
    return tf.nest.map_structure(tf.stop_gradient, found)

  return call


def build_classifier(
  config: fine_tuning_config.FineTuningConfig,
  base: model_folders.ModelFolders | None,
  num_labels: int,
  settings: Mapping[str, object],
  warn: Callable[[str], None] = logging.warning,
) -> decoder.SequenceClassifier:
  """A classifier, with new adapters if they are trained; a folder's adapters are added to its weights.

  Args:
    config: of the task.
    base: the folders of its `model_path`; None for a new decoder.
    num_labels: how many scores a text gets.
    settings: see `pretrained.load`.
    warn: see `peft_folders.load`.

  Raises:
    UserError: as `pretrained.load_classifier` does.
  """
  model = _plain(config, base, num_labels, settings, warn)
  if config.trains_adapters:
    lora.attach(model.decoder, config.lora, config.frozen_kernels(), config.frozen_dtype or None)
  return model


def merged_classifier(
  model: decoder.SequenceClassifier,
  config: fine_tuning_config.FineTuningConfig,
  base: model_folders.ModelFolders | None,
  settings: Mapping[str, object],
) -> decoder.SequenceClassifier:
  """A model without adapters that scores as one of `build_classifier` does; that one is unchanged.

  For the arguments see `build_classifier`.
  """
  if not config.trains_adapters:
    return model
  settings = {**settings, 'dtype': 'float32'}
  return lora.merged_copy(
    model, lambda: build_classifier(config, base, model.num_labels, settings, warn=lambda line: None)
  )


def _plain(config, base, num_labels, settings, warn):
  if base is None:
    return decoder.SequenceClassifier(config.model, num_labels)
  if not base.adapter:
    return pretrained.load_classifier(base.model, num_labels, **settings)
  how = peft_folders.base_options(model_folders.read_base(base.adapter))
  language_model = pretrained.load(base.model, vocab_size=peft_folders.vocab_size(base.adapter), **how, **settings)
  peft_folders.load(language_model, base.adapter, warn=warn)
  lora.merge(language_model)
  return decoder.classifier_of(language_model, num_labels)
