"""A SavedModel that is tried: its signatures, and its answer to values as people write them."""

import base64
import binascii
from collections.abc import Mapping
import json
import math
import os
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.base.run_folder import export_notes
from official_ext.training.trained import output_pictures

LABELS = 'labels.txt'
_MAX_VALUES = 4096  # Of an output, that are printed.
_RANGES = {'0..255': (255.0, 0.0), '0..1': (1.0, 0.0), '-1..1': (2.0, -1.0)}
DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


class SavedModel:
  """A SavedModel in memory.

  Attributes:
    labels: the names of its classes, in the order of their numbers; [] if labels.txt is missing.
  """

  def __init__(self, folder: str):
    """Loads it.

    Raises:
      UserError: it cannot be loaded.
    """
    try:
      self._loaded = tf.saved_model.load(folder)
    except Exception as error:  # pylint: disable=broad-except  # Its files may contain anything.
      reason = ' '.join(str(error).split())[:300]
      raise errors.UserError(f'{folder}: cannot be loaded: {type(error).__name__}: {reason}') from error
    note = export_notes.read(folder)
    self.labels = paths.lines(os.path.join(folder, LABELS))
    self._preprocessing = note.get('preprocessing') or {}
    if not self._loaded.signatures:
      raise errors.UserError(f'{folder}: has no signature that could be called')

  def signatures(self) -> dict[str, object]:
    """By name, the default one first: `inputs` and `outputs`, each a list of {name, dtype, shape}; null is any size.

    An input whose range of values export.json states has it as `range`, such as '0..1'.
    """
    found = self._loaded.signatures
    names = sorted(found, key=lambda name: (name != DEFAULT, name))
    return {
      name: {
        'inputs': [
          {**spec, **self._range_of(spec['name'])} for spec in _specs(found[name].structured_input_signature[1])
        ],
        'outputs': _specs(found[name].structured_outputs),
      }
      for name in names
    }

  def _range_of(self, name: str) -> dict[str, str]:
    """{'range': the range of an input's values} if export.json states it; {}."""
    found = self._preprocessing.get('range') if self._preprocessing.get('input') == name else None
    text = '..'.join(map(str, found)) if isinstance(found, list) else ''
    return {'range': text} if text in _RANGES else {}

  def predict(self, signature: str, inputs: json_types.JsonMapping) -> json_types.JsonObject:
    """Calls a signature.

    Args:
      signature: its name.
      inputs: by name, {'text': JSON, or the text itself for a tensor of texts}, or {'image': a file in base 64,
        'range': '0..255', '0..1' or '-1..1'}. The dimension of the batch may be left out. The default of `range` is
        that of export.json, or else '0..255'.

    Returns:
      By name: {dtype, shape, values: nested lists, or null if there are too many}. The logits of a segmentation have
      `mask` too, and the masks of objects `masks`: see `output_pictures`.

    Raises:
      UserError: for each input that is missing or wrong, `inputs.NAME: MESSAGE`.
    """
    if signature not in self._loaded.signatures:
      raise errors.UserError(f'signature: {signature}: there are {", ".join(sorted(self._loaded.signatures))}')
    function = self._loaded.signatures[signature]
    specs = function.structured_input_signature[1]
    tensors = {}
    with errors.Mistakes() as mistakes:
      for name, spec in specs.items():
        with mistakes.noted():
          given = {**self._range_of(name), **{key: value for key, value in (inputs.get(name) or {}).items() if value}}
          tensors[name] = _tensor(given, spec, f'inputs.{name}')
    try:
      outputs = function(**tensors)
    except Exception as error:  # pylint: disable=broad-except  # The model may raise anything.
      reason = ' '.join(str(getattr(error, 'message', error)).split())[:300]
      raise errors.UserError(f'signature: the model fails on these inputs: {reason}') from error
    return {name: {**_told(tensor), **output_pictures.of(name, tensor)} for name, tensor in sorted(outputs.items())}


def _specs(specs: json_types.JsonMapping) -> list[json_types.JsonObject]:
  return [
    {'name': name, 'dtype': spec.dtype.name, 'shape': None if spec.shape.rank is None else spec.shape.as_list()}
    for name, spec in specs.items()
  ]


def _tensor(given: Mapping[str, object], spec: tf.TypeSpec, where: str) -> tf.Tensor:
  if given.get('image'):
    return _image(given, spec, where)
  text = given.get('text')
  if not isinstance(text, str) or not text.strip():
    raise errors.UserError(f'{where}: is missing: {spec.dtype.name} {spec.shape}')
  if spec.dtype == tf.string:
    try:
      values = json.loads(text) if text.lstrip().startswith('[') else text
      array = np.array(values, object)
    except (ValueError, RecursionError) as error:
      raise errors.UserError(f'{where}: is invalid JSON: {error}') from error
  else:
    try:
      array = np.array(json.loads(text))
    except (ValueError, RecursionError) as error:
      what = 'its lists have different lengths' if 'inhomogeneous' in str(error) else f'is invalid JSON: {error}'
      raise errors.UserError(f'{where}: {what}; expected such as [[0.5, 1], [2, 3]]') from None
    if array.dtype.kind not in 'biuf':
      raise errors.UserError(f'{where}: holds something else than numbers')
    wanted = spec.dtype.as_numpy_dtype
    if spec.dtype.is_integer and array.dtype.kind == 'f':
      raise errors.UserError(f'{where}: expected whole numbers ({spec.dtype.name})')
    if spec.dtype.is_integer and array.size and not (spec.dtype.min <= array.min() and array.max() <= spec.dtype.max):
      raise errors.UserError(f'{where}: expected numbers from {spec.dtype.min} to {spec.dtype.max} ({spec.dtype.name})')
    array = array.astype(wanted)
  return tf.constant(_of_shape(array, spec.shape, where), spec.dtype)


def _of_shape(array: Any, shape: tf.TensorShape, where: str) -> Any:
  """An array with the dimension of the batch, if only that is missing."""
  if shape.rank is not None and array.ndim == shape.rank - 1 and shape[0] in (None, 1):
    array = array[np.newaxis]
  if not shape.is_compatible_with(array.shape):
    raise errors.UserError(f'{where}: has the shape {tuple(array.shape)}, expected {shape}')
  return array


def _image(given: json_types.JsonMapping, spec: tf.TypeSpec, where: str) -> tf.Tensor:
  """An image at the size and with the channels of a tensor; a flat one of a square number of values is grey."""
  try:
    content = base64.b64decode(str(given['image']), validate=True)
  except binascii.Error:
    raise errors.UserError(f'{where}: the image is not in base 64') from None
  if spec.dtype == tf.string:
    return tf.constant(_of_shape(np.array(content, object), spec.shape, where), tf.string)
  shape = spec.shape.as_list() if spec.shape.rank is not None else None
  if shape is not None and len(shape) == 2 and shape[1] and math.isqrt(shape[1]) ** 2 == shape[1]:
    size, channels, final = [math.isqrt(shape[1])] * 2, 1, (1, shape[1])
  elif shape is not None and len(shape) == 4 and shape[3] in (1, 3, 4, None):
    size, channels, final = shape[1:3], shape[3] or 3, None
  else:
    raise errors.UserError(f'{where}: {spec.shape} is not the shape of an image; write its values')
  try:
    image = tf.io.decode_image(content, channels=channels, expand_animations=False)
  except tf.errors.InvalidArgumentError:
    raise errors.UserError(f'{where}: the file is not a PNG, JPEG, GIF or BMP') from None
  pixels = tf.cast(image, tf.float32)
  if None not in size:
    pixels = tf.image.resize(pixels, size, antialias=True)
  if spec.dtype.is_floating:
    scale, least = _RANGES.get(given.get('range', '0..255'), _RANGES['0..255'])
    pixels = pixels / 255.0 * scale + least
  else:
    pixels = tf.round(pixels)
  pixels = tf.cast(pixels, spec.dtype)[tf.newaxis]
  pixels = tf.reshape(pixels, final) if final else pixels
  return tf.constant(_of_shape(pixels.numpy(), spec.shape, where))


def _told(tensor: tf.Tensor) -> json_types.JsonObject:
  array = tensor.numpy()
  values = None
  if array.size <= _MAX_VALUES:
    if array.dtype == object:
      array = np.vectorize(lambda one: one.decode('utf-8', 'replace'), otypes=[object])(array)
    elif array.dtype.kind not in 'biuf':
      array = array.astype(np.float32)  # bfloat16.
    values = array.tolist()
  return {'dtype': tensor.dtype.name, 'shape': list(tensor.shape), 'values': values}
