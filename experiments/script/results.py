"""The result of a script's training: its model and its tokenizer, saved the way that they are loaded."""

from collections.abc import Callable, Iterator, Mapping
import importlib
import os
from typing import Any, NamedTuple

import numpy as np

import official_ext as ext

MODEL, ADAPTER = 'model', 'adapter'
FOLDERS = (MODEL, ADAPTER)
_KERAS_FILE, _TORCH_FILE = 'model.keras', 'state_dict.pt'


class Form(NamedTuple):
  """How an object is saved.

  Attributes:
    folder: the name of the folder.
    save: writes the object into a folder. It gets the tokenizer too, which is saved with it.
    load: reads a folder, given the saved object and the classes of the script.
    values: arrays by name, of the object or of the loaded one, for comparison.
  """

  folder: str
  save: Callable[[Any, str, Any], None]
  load: Callable[[Any, str, Mapping[str, Any]], Any]
  values: Callable[[Any], Mapping[str, Any]]


def form_of(model: object) -> Form:
  """How a model is saved.

  Raises:
    UserError: it cannot be.
  """
  if isinstance(model, (ext.LanguageModel, ext.SequenceClassifier)):
    return _of_this_library(model)
  if hasattr(model, 'peft_config') and hasattr(model, 'save_pretrained'):
    return Form(ADAPTER, _save_pretrained, _load_peft, _peft_values)
  if hasattr(model, 'save_pretrained'):
    return Form(MODEL, _save_pretrained, _load_pretrained, _state_dict)
  if _package(model) in ('tf_keras', 'keras'):
    return Form(MODEL, _save_keras, _load_keras, _keras_values)
  if _package(model) == 'torch':
    return Form(MODEL, _save_torch, _load_torch, _state_dict)
  raise ext.UserError(
    f'script: `model` is a {type(model).__name__}, which can not be saved: it is not a model of Keras, PyTorch or this '
    'library, and has no `save_pretrained`'
  )


def check_tokenizer(tokenizer: object) -> None:
  """Refuses a tokenizer that cannot be saved; None is skipped.

  Raises:
    UserError: it cannot.
  """
  if tokenizer is not None and not isinstance(tokenizer, ext.Tokenizer) and not hasattr(tokenizer, 'save_pretrained'):
    raise ext.UserError(
      f'script: `tokenizer` is a {type(tokenizer).__name__}, which can not be saved: it has no `save_pretrained`; '
      'write `tokenizer = None` if there is none'
    )


def save(model: object, tokenizer: Any, output_dir: str) -> str:
  """Saves a model with its tokenizer in one folder, whole or not at all.

  Args:
    model: see `form_of`.
    tokenizer: see `check_tokenizer`.
    output_dir: the folder is below it.

  Returns:
    The folder.

  Raises:
    StorageError: it cannot be written.
  """
  form = form_of(model)
  folder = os.path.join(output_dir, form.folder)

  def write(place):
    form.save(model, place, tokenizer)
    if isinstance(tokenizer, ext.Tokenizer):
      tokenizer.save(place)
    elif tokenizer is not None:
      tokenizer.save_pretrained(place)

  ext.whole_folders.write(folder, write)
  return folder


def check(model: Any, tokenizer: Any, folder: str, classes: Mapping[str, Any]) -> Iterator[str]:
  """Loads the output of `save`, and compares it with the saved object. Yields a line for each.

  Args:
    model: the one saved.
    tokenizer: the one saved.
    folder: theirs.
    classes: of the script, by name, which a model of Keras may be made of.

  Raises:
    UserError: it does not load, or loads to something else.
  """
  form = form_of(model)
  expected = form.values(model)
  found = form.values(form.load(model, folder, classes))
  if expected.keys() != found.keys():
    names = sorted(expected.keys() ^ found.keys())[:3]
    raise ext.UserError(f'{form.folder}: saved and loaded again, it has other weights: {", ".join(names)}')
  for name, value in expected.items():
    if not np.array_equal(_array(value), _array(found[name]), equal_nan=True):
      raise ext.UserError(f'{form.folder}: saved and loaded again, {name} has other values')
  size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
  yield f'{form.folder}: {size / 2**20:,.1f} MiB, saved and loaded, {len(expected)} arrays equal'
  if tokenizer is not None:
    load = type(tokenizer).load if isinstance(tokenizer, ext.Tokenizer) else type(tokenizer).from_pretrained
    if len(load(folder)) != len(tokenizer):
      raise ext.UserError('tokenizer: saved and loaded again, it has another number of tokens')
    yield f'tokenizer: saved and loaded, {len(tokenizer)} tokens'


def _package(model: object) -> str:
  """The framework that an object is a model of; '' for an unknown one."""
  packages = [cls.__module__.partition('.')[0] for cls in type(model).__mro__]
  return next((package for package in packages if package in ('keras', 'tf_keras', 'torch')), '')


def _array(value: Any) -> np.ndarray:
  """Of a tensor of any framework; bfloat16 and similar by their bytes in memory."""
  if hasattr(value, 'detach'):
    value = value.detach().cpu()
    try:
      return value.numpy()
    except TypeError:
      return value.float().numpy()
  return np.asarray(value)


# This library's models.


def _of_this_library(model):
  if ext.lora.adapters(model):
    return Form(ADAPTER, _save_adapters, _load_adapters, _adapter_values)
  load = ext.pretrained.load_classifier if isinstance(model, ext.SequenceClassifier) else ext.pretrained.load
  return Form(MODEL, _save_decoder, lambda saved, folder, classes: load(folder), _keras_values)


def _save_decoder(model, folder, tokenizer):
  ext.pretrained.save(model, folder, tokenizer=tokenizer if isinstance(tokenizer, ext.Tokenizer) else None)


def _save_adapters(model, folder, tokenizer):
  ext.peft_folders.save(model, folder)


def _load_adapters(model, folder, classes):
  base = type(model)(model.config)
  ext.peft_folders.load(base, folder, warn=lambda line: None)  # The adapters are compared, over any base.
  return base


def _adapter_values(model):
  return {
    f'{adapter.name}.{number}': weight
    for adapter in ext.lora.adapters(model)
    for number, weight in enumerate((adapter.lora_a, adapter.lora_b))
  }


# Keras.


def _save_keras(model, folder, tokenizer):
  model.save(os.path.join(folder, _KERAS_FILE))


def _load_keras(model, folder, classes):
  models = importlib.import_module(f'{_package(model)}.models')
  return models.load_model(os.path.join(folder, _KERAS_FILE), custom_objects=dict(classes), compile=False)


def _keras_values(model):
  return {f'weight {number}': weight for number, weight in enumerate(model.get_weights())}


# Hugging Face and PyTorch. The loaded object may be a dictionary of tensors by itself.


def _save_pretrained(model, folder, tokenizer):
  model.save_pretrained(folder)


def _load_pretrained(model, folder, classes):
  if not hasattr(type(model), 'from_pretrained'):
    raise ext.UserError(f'script: `model` is a {type(model).__name__}, which has no from_pretrained to load it again')
  return type(model).from_pretrained(folder)


def _state_dict(model):
  return dict(model) if isinstance(model, Mapping) else dict(getattr(model, 'state_dict', dict)())


def _load_peft(model, folder, classes):
  return importlib.import_module('peft').load_peft_weights(folder, device='cpu')


def _peft_values(model):
  return dict(model) if isinstance(model, Mapping) else importlib.import_module('peft').get_peft_model_state_dict(model)


def _save_torch(model, folder, tokenizer):
  importlib.import_module('torch').save(model.state_dict(), os.path.join(folder, _TORCH_FILE))


def _load_torch(model, folder, classes):
  return importlib.import_module('torch').load(os.path.join(folder, _TORCH_FILE), weights_only=True)
