"""Whether a folder of Hugging Face can represent a model: by the classes that compute it, and by all of its weights.

A folder holds the weights of a family's layers and nothing about code. It can represent only models of this library's
classes: a subclass, another layer or a further weight would be lost without a word.
"""

from collections.abc import Iterator
from typing import Any

import tf_keras

from official_ext.base import errors
from official_ext.language.modeling import decoder as decoder_lib
from official_ext.language.modeling import frozen
from official_ext.language.modeling import sequence_classifier
from official_ext.language.modeling import weight_slots

_MODELS = (decoder_lib.LanguageModel, sequence_classifier.SequenceClassifier)
_PACKAGE = 'official_ext.language.modeling.'
_HINT = '; `official-ext export` writes a SavedModel of the run, which holds the function of the model'


def check(model: tf_keras.Model, where: str) -> None:
  """Refuses a model that a folder would represent as another one.

  Args:
    model: a `LanguageModel` or a `SequenceClassifier`, with adapters or packed weights or without.
    where: the start of error messages: the folder to write.

  Raises:
    UserError: the model or one of its layers is of a class that is not this library's own, or computes with another
      function than its class has; or a weight lies outside of the decoder and its head. With its name.
  """
  if type(model) not in _MODELS:
    raise errors.UserError(
      f'{where}: the model is a {_name(type(model))}; a Hugging Face folder represents an ext.LanguageModel or an '
      f'ext.SequenceClassifier, not a subclass{_HINT}'
    )
  for path, part in _parts(model):
    if not type(part).__module__.startswith(_PACKAGE):
      raise errors.UserError(
        f'{where}: the model has {path}, a {_name(type(part))}: a Hugging Face folder represents no class but those of '
        f'official_ext.language.modeling{_HINT}'
      )
    if 'call' in vars(part):
      raise errors.UserError(
        f'{where}: `call` of {path} was replaced: a Hugging Face folder represents the {_name(type(part))} alone{_HINT}'
      )
  extra = [variable.name for variable in _variables_elsewhere(model)]
  if extra:
    more = f', and {len(extra) - 1} more' if len(extra) > 1 else ''
    raise errors.UserError(
      f'{where}: the model has the weight {extra[0]}{more}, which lies outside of the decoder and its head: a Hugging '
      f'Face folder has no place for it{_HINT}'
    )


def _name(cls: type) -> str:
  return f'{cls.__module__}.{cls.__qualname__}'


def _parts(model: tf_keras.Model) -> Iterator[tuple[str, Any]]:
  """(name, layer) of the model and of all below it that compute something."""
  yield model.name, model
  for part in model.submodules:
    if not isinstance(part, tf_keras.metrics.Metric):
      yield getattr(part, 'name', ''), part


def _variables_elsewhere(model: tf_keras.Model) -> list[Any]:
  """The variables that are not a weight of a layer of the decoder, or of one whose name another layer has too."""
  known = {id(slot.variable) for slot in weight_slots.find(model).values()}
  notes = {id(note) for holder in (model, *frozen.parts(model)) for note in frozen.notes(holder).values()}
  return [variable for variable in model.variables if id(variable) not in known | notes]
