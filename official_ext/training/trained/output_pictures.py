"""Pictures of outputs: the classes of pixels in colours, the masks of objects."""

import base64
import colorsys

import numpy as np
import tensorflow as tf

from official_ext.base import json_types

_LOGITS, _MASKS = 'logits', 'detection_masks'
_MOST_CLASSES = 256
_ALPHA = 150
_MOST_OBJECTS = 100
_FINER = 4  # Masks of 28 x 28 values are interpolated before the threshold: their outline would be of steps.
_GOLDEN = 0.618034  # Hues at multiples of it differ as much as possible.


def of(name: str, tensor: tf.Tensor) -> json_types.JsonObject:
  """{'mask': see `mask`} for the logits of a segmentation, {'masks': see `object_masks`}; {} for other outputs."""
  shape = tensor.shape
  if name == _MASKS and shape.rank == 4 and shape[0] == 1 and tensor.dtype.is_floating:
    return {'masks': object_masks(tensor[0, :_MOST_OBJECTS].numpy())}
  is_mask = name == _LOGITS and shape.rank == 4 and shape[0] == 1 and 2 <= shape[3] <= _MOST_CLASSES
  return {'mask': mask(tf.argmax(tensor[0], -1).numpy())} if is_mask and tensor.dtype.is_floating else {}


def mask(classes: np.ndarray) -> json_types.JsonObject:
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
