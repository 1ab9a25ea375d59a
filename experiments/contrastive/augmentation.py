"""Random views of small images, each a function of a seed."""

import numpy as np
import tensorflow as tf

from . import configs

_SIZE = 8
_NUM_GEOMETRIC = 7  # Numbers that one view draws: angle, two zooms, shear, two shifts, contrast.


def draw(seed: tf.Tensor, num_views: int) -> tf.Tensor:
  """The random numbers for the views of one image.

  Args:
    seed: int64 tensor of shape [2].
    num_views: views of an image.

  Returns:
    Uniform numbers in [-1, 1): float32 of shape [num_views, 7 + 64].
  """
  return tf.random.stateless_uniform([num_views, _NUM_GEOMETRIC + _SIZE**2], seed, -1.0, 1.0)


def views(pixels: tf.Tensor, draws: tf.Tensor, config: configs.AugmentationConfig) -> tf.Tensor:
  """Transforms images.

  Args:
    pixels: float32 of shape [b, 64], in [0, 1].
    draws: the result of `draw` for each: float32 of shape [b, v, 71].
    config: an `AugmentationConfig`.

  Returns:
    float32 of shape [b, v, 64], in [0, 1].
  """
  num_views = draws.shape[1]
  draws = tf.reshape(draws, [-1, draws.shape[2]])
  images = tf.reshape(tf.repeat(pixels, num_views, axis=0), [-1, _SIZE, _SIZE, 1])
  angle, zoom_x, zoom_y, shear, shift_x, shift_y, contrast = tf.unstack(draws[:, :_NUM_GEOMETRIC], axis=1)
  matrix = _affine(
    angle * np.deg2rad(config.rotation),
    1 + zoom_x * config.zoom,
    1 + zoom_y * config.zoom,
    shear * config.shear,
    shift_x * config.translation,
    shift_y * config.translation,
  )
  images = tf.raw_ops.ImageProjectiveTransformV3(
    images=images, transforms=matrix, output_shape=[_SIZE, _SIZE], fill_value=0.0, interpolation='BILINEAR'
  )
  changed = tf.reshape(images, [-1, _SIZE**2]) * (1 + contrast * config.contrast)[:, tf.newaxis]
  kept = draws[:, _NUM_GEOMETRIC:] >= 2 * config.erased - 1
  changed = tf.where(kept, tf.clip_by_value(changed, 0.0, 1.0), 0.0)
  return tf.reshape(changed, [-1, num_views, _SIZE**2])


def _affine(angle, zoom_x, zoom_y, shear, shift_x, shift_y):
  """From places in the result to places in the image, about the image's centre: float32 of shape [n, 8].

  A row a0, a1, a2, b0, b1, b2, 0, 0 takes (x, y) to (a0 x + a1 y + a2, b0 x + b1 y + b2).
  """
  centre = (_SIZE - 1) / 2
  a0, a1 = zoom_x * tf.cos(angle), -zoom_y * tf.sin(angle) + shear
  b0, b1 = zoom_x * tf.sin(angle), zoom_y * tf.cos(angle)
  a2 = centre - (a0 + a1) * centre + shift_x
  b2 = centre - (b0 + b1) * centre + shift_y
  zero = tf.zeros_like(a0)
  return tf.stack([a0, a1, a2, b0, b1, b2, zero, zero], axis=1)
