"""Generator and discriminator, and the optimizer of the latter."""

from collections.abc import Sequence

import tf_keras

NUM_PIXELS = 64


class Gan(tf_keras.Model):
  """Both networks and the discriminator's optimizer: being attributes of the model, they are in every checkpoint.

  Attributes:
    generator: from latent vectors, [b, latent_size], to pixels in [0, 1], [b, 64].
    discriminator: from pixels to a logit, [b, 1]: the higher, the more it takes the image for a real one.
    discriminator_optimizer: a tf_keras optimizer.
  """

  def __init__(
    self,
    generator: tf_keras.Model,
    discriminator: tf_keras.Model,
    discriminator_optimizer: tf_keras.optimizers.Optimizer,
  ):
    super().__init__(name='gan')
    self.generator = generator
    self.discriminator = discriminator
    self.discriminator_optimizer = discriminator_optimizer

  def call(self, latents, training=False):
    """Draws images: see `generator`."""
    return self.generator(latents, training=training)


def build_generator(latent_size: int, hidden_sizes: Sequence[int]) -> tf_keras.Model:
  """See `Gan.generator`."""
  latents = tf_keras.Input((latent_size,), name='latents')
  features = latents
  for size in hidden_sizes:
    features = tf_keras.layers.LeakyReLU(0.2)(tf_keras.layers.Dense(size)(features))
  pixels = tf_keras.layers.Dense(NUM_PIXELS, activation='sigmoid', dtype='float32', name='pixels')(features)
  return tf_keras.Model(latents, pixels, name='generator')


def build_discriminator(hidden_sizes: Sequence[int], dropout_rate: float) -> tf_keras.Model:
  """See `Gan.discriminator`."""
  pixels = tf_keras.Input((NUM_PIXELS,), name='pixels')
  features = pixels
  for size in hidden_sizes:
    features = tf_keras.layers.LeakyReLU(0.2)(tf_keras.layers.Dense(size)(features))
    features = tf_keras.layers.Dropout(dropout_rate)(features)
  return tf_keras.Model(pixels, tf_keras.layers.Dense(1, dtype='float32', name='logit')(features), name='discriminator')
