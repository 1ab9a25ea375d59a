"""A trunk and its heads."""

import tf_keras

from . import configs
from . import data

HEADS = {'classification': data.NUM_CLASSES, 'reconstruction': data.NUM_PIXELS, 'ink': data.NUM_QUARTERS}


def build_network(config: configs.MultiTaskModelConfig) -> tf_keras.Model:
  """A perceptron with one output for each head.

  Args:
    config: a `MultiTaskModelConfig`.

  Returns:
    A model from pixels, [b, 64], to {name of head: float32 [b, n]}: logits, pixels, means of pixels.
  """
  layers = tf_keras.layers
  pixels = tf_keras.Input((data.NUM_PIXELS,), name='pixels')
  features = pixels
  for size in config.trunk_sizes:
    features = layers.Dropout(config.dropout_rate)(layers.Dense(size, activation='relu')(features))
  outputs = {}
  for name, size in HEADS.items():
    hidden = layers.Dense(config.head_size, activation='relu', name=f'{name}_hidden')(features)
    outputs[name] = layers.Dense(size, dtype='float32', name=name)(hidden)
  return tf_keras.Model(pixels, outputs, name='network')


class WeighedNetwork(tf_keras.Model):
  """A network, and how its losses are weighed: learned weights of losses are in every checkpoint too.

  Attributes:
    network: see `build_network`.
    weights_of_losses: an `UncertaintyWeights`, or None.
  """

  def __init__(self, network: tf_keras.Model, weights_of_losses: tf_keras.layers.Layer | None = None):
    super().__init__(name='multi_task')
    self.network = network
    self.weights_of_losses = weights_of_losses

  def call(self, pixels, training=False):
    """See `network`."""
    return self.network(pixels, training=training)
