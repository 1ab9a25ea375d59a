"""Adversarial losses: of the discriminator, and of the generator.

`real` and `fake` are the discriminator's logits of real and generated images: float32 [b, 1].
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf


class AdversarialLoss(NamedTuple):
  """The two sides of a game.

  Attributes:
    discriminator: `discriminator(real, fake)` is a scalar.
    generator: `generator(fake)` is a scalar.
  """

  discriminator: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
  generator: Callable[[tf.Tensor], tf.Tensor]


def _mean(values: tf.Tensor) -> tf.Tensor:
  return tf.reduce_mean(values)


LOSSES: Mapping[str, AdversarialLoss] = {
  # I. Goodfellow et al., Generative Adversarial Nets, 2014: cross-entropy; the generator maximises log D(G(z)).
  'non_saturating': AdversarialLoss(
    lambda real, fake: _mean(tf.nn.softplus(-real)) + _mean(tf.nn.softplus(fake)),
    lambda fake: _mean(tf.nn.softplus(-fake)),
  ),
  # J. H. Lim, J. C. Ye, Geometric GAN, 2017.
  'hinge': AdversarialLoss(
    lambda real, fake: _mean(tf.nn.relu(1 - real)) + _mean(tf.nn.relu(1 + fake)), lambda fake: -_mean(fake)
  ),
  # M. Arjovsky et al., Wasserstein GAN, 2017; to be used with `gradient_penalty`.
  'wasserstein': AdversarialLoss(lambda real, fake: _mean(fake) - _mean(real), lambda fake: -_mean(fake)),
}


def gradient_penalty(
  discriminator: Callable[[tf.Tensor], tf.Tensor], real: tf.Tensor, fake: tf.Tensor, shares: tf.Tensor
) -> tf.Tensor:
  """How far the discriminator's slope is from 1 between real and generated images.

  I. Gulrajani et al., Improved Training of Wasserstein GANs, 2017.

  Args:
    discriminator: from images, [b, n], to logits, [b, 1].
    real: float32 of shape [b, n].
    fake: float32 of shape [b, n].
    shares: where between the two to look, in [0, 1]: float32 of shape [b, 1].

  Returns:
    The mean over the images of (|gradient| - 1)^2: a scalar.
  """
  between = fake + shares * (real - fake)
  with tf.GradientTape() as tape:
    tape.watch(between)
    logits = discriminator(between)
  slopes = tf.norm(tape.gradient(logits, between), axis=1)
  return tf.reduce_mean(tf.square(slopes - 1))
