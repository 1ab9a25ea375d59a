"""Loads a SavedModel to try it: its signatures, and its answer to values as people write them.

Outputs may have pictures: the classes of pixels in colours, the masks of objects.
"""

import base64
import binascii
from collections.abc import Mapping
import colorsys
import dataclasses
import json
import math
import os
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.base.run_folder import model_folders
from official_ext.data import image_preprocessing

_LOGITS, _MASKS = 'logits', 'detection_masks'
_MOST_CLASSES = 256
_ALPHA = 150
_MOST_OBJECTS = 100
_FINER = 4  # Masks of 28 x 28 values are interpolated before the threshold: their outline would be of steps.
_GOLDEN = 0.618034  # Hues at multiples of it differ as much as possible.


def pictures_of(name: str, tensor: tf.Tensor) -> json_values.JsonObject:
  """{'mask': see `mask`} for the logits of a segmentation, {'masks': see `object_masks`}; {} for other outputs."""
  shape = tensor.shape
  if name == _MASKS and shape.rank == 4 and shape[0] == 1 and tensor.dtype.is_floating:
    return {'masks': object_masks(tensor[0, :_MOST_OBJECTS].numpy())}
  is_mask = name == _LOGITS and shape.rank == 4 and shape[0] == 1 and 2 <= shape[3] <= _MOST_CLASSES
  return {'mask': mask(tf.argmax(tensor[0], -1).numpy())} if is_mask and tensor.dtype.is_floating else {}


def mask(classes: np.ndarray) -> json_values.JsonObject:
  """The classes of pixels as a picture.

  Args:
    classes: int `[height, width]`. Class 0 is transparent.

  Returns:
    {'png': an RGBA image in base 64, 'classes': [{'number', 'share', 'colour': [red, green, blue]}]}, the classes by
    their share of the pixels.
  """
  numbers, counts = np.unique(classes, return_counts=True)
  pixels = np.zeros([*classes.shape, 4], np.uint8)
  found = []
  for number, count in sorted(zip(numbers.tolist(), counts.tolist()), key=lambda pair: -pair[1]):
    colour = [round(255 * part) for part in colorsys.hsv_to_rgb(number * _GOLDEN % 1, 0.85, 0.95)]
    if number:
      pixels[classes == number] = (*colour, _ALPHA)
    found.append({'number': number, 'share': count / classes.size, 'colour': colour})
  return {'png': base64.b64encode(tf.io.encode_png(pixels).numpy()).decode(), 'classes': found}


def object_masks(shares: np.ndarray) -> list[str]:
  """The masks of objects as pictures that fill the objects' boxes.

  Args:
    shares: float `[objects, height, width]`, how probably a part of the box belongs to the object, from 0 to 1.

  Returns:
    For each object an RGBA image in base 64: white where it is, transparent elsewhere.
  """
  height, width = shares.shape[1] * _FINER, shares.shape[2] * _FINER
  is_object = tf.image.resize(shares[..., np.newaxis], [height, width]) > 0.5
  pixels = tf.where(is_object, tf.constant(255, tf.uint8), tf.zeros([4], tf.uint8))
  return [base64.b64encode(tf.io.encode_png(each).numpy()).decode() for each in pixels]


LABELS = 'labels.txt'
_MAX_VALUES = 4096  # Of an output, that are printed.
_RANGES = ('0..255', '0..1', '-1..1')
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
    note = model_folders.read_export(folder)
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
    text = '..'.join(f'{each:g}' for each in found) if isinstance(found, list) else ''
    return {'range': text} if text in _RANGES else {}

  def predict(self, signature: str, inputs: json_values.JsonMapping) -> json_values.JsonObject:
    """Calls a signature.

    Args:
      signature: its name.
      inputs: by name, {'text': JSON, or the text itself for a tensor of texts}, or {'image': a file in base 64,
        'range': '0..255', '0..1' or '-1..1'}. The dimension of the batch may be left out. The default of `range` is
        in export.json, or else '0..255'.

    Returns:
      By name: {dtype, shape, values: nested lists, or null if there are too many}. The logits of a segmentation have
      `mask` too, and the masks of objects `masks`: see `pictures_of`.

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
          facts = self._preprocessing if self._preprocessing.get('input') == name else {}
          tensors[name] = _tensor(given, spec, f'inputs.{name}', facts)
    try:
      outputs = function(**tensors)
    except Exception as error:  # pylint: disable=broad-except  # The model may raise anything.
      raise errors.UserError(f'signature: the model fails on these inputs: {errors.message_of_model(error)}') from error
    return {name: {**_as_json(tensor), **pictures_of(name, tensor)} for name, tensor in sorted(outputs.items())}


def _specs(specs: json_values.JsonMapping) -> list[json_values.JsonObject]:
  return [
    {'name': name, 'dtype': spec.dtype.name, 'shape': None if spec.shape.rank is None else spec.shape.as_list()}
    for name, spec in specs.items()
  ]


def _tensor(given: Mapping[str, object], spec: tf.TypeSpec, where: str, facts: json_values.JsonMapping) -> tf.Tensor:
  if given.get('image'):
    return _image(given, spec, where, facts)
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


def _image(given: json_values.JsonMapping, spec: tf.TypeSpec, where: str, facts: json_values.JsonMapping) -> tf.Tensor:
  """An image at the size and with the channels of a tensor; a flat one of a square number of values is grey.

  Args:
    given: see `SavedModel.predict`.
    spec: of the tensor.
    where: for messages.
    facts: the preprocessing that export.json states for the tensor; {}.
  """
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
    if channels == 4:
      image = tf.io.decode_image(content, channels=4, expand_animations=False)
    else:
      image = image_preprocessing.decode(tf.constant(content), channels)
  except tf.errors.InvalidArgumentError as error:
    reason = 'a GIF with transparent pixels is unsupported' if 'transparent' in error.message else ''
    raise errors.UserError(f'{where}: {reason or "the file is not a PNG, JPEG, WebP, GIF or BMP"}') from None
  if None in size:
    pixels = tf.cast(image, tf.float32)
  else:
    pixels = _resized(image, (*size, channels), facts)
  if spec.dtype.is_floating:
    least, most = _range(given, facts, where)
    pixels = pixels / 255.0 * (most - least) + least
  else:
    pixels = tf.round(pixels)
  pixels = tf.cast(pixels, spec.dtype)[tf.newaxis]
  pixels = tf.reshape(pixels, final) if final else pixels
  return tf.constant(_of_shape(pixels.numpy(), spec.shape, where))


def _range(given: json_values.JsonMapping, facts: json_values.JsonMapping, where: str) -> tuple[float, float]:
  """The least and the greatest value of an image: as given, or stated by export.json, or 0 and 255."""
  text = given.get('range')
  if text and text not in _RANGES:
    raise errors.UserError(f'{where}: range {text}: expected {", ".join(_RANGES)}')
  least, most = str(text).split('..') if text else facts.get('range') or (0, 255)
  return float(least), float(most)


def _resized(image: tf.Tensor, shape: tuple[int, ...], facts: json_values.JsonMapping) -> tf.Tensor:
  """An image of the size of a tensor, from 0 to 255: as export.json states, or else by TensorFlow's defaults."""
  found = image_preprocessing.of_facts(facts)
  if found is None or (*found.size, found.channels) != shape:
    return tf.image.resize(tf.cast(image, tf.float32), shape[:2])
  return dataclasses.replace(found, range=(0, 255)).of_pixels(image)


def _as_json(tensor: tf.Tensor) -> json_values.JsonObject:
  array = tensor.numpy()
  values = None
  if array.size <= _MAX_VALUES:
    if array.dtype == object:
      array = np.vectorize(lambda one: one.decode('utf-8', 'replace'), otypes=[object])(array)
    elif array.dtype.kind not in 'biuf':
      array = array.astype(np.float32)  # bfloat16.
    values = array.tolist()
  return {'dtype': tensor.dtype.name, 'shape': list(tensor.shape), 'values': values}
