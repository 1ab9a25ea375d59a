"""A small convolutional network."""

from collections.abc import Sequence

import tf_keras


def build_conv_net(filters: Sequence[int], hidden_size: int, dropout_rate: float, num_classes: int) -> tf_keras.Model:
  """Two-dimensional convolutions, one halving of the resolution, two dense layers.

  Args:
    filters: output channels of each 3x3 convolution; the last is followed by max pooling.
    hidden_size: units of the dense layer before the last.
    dropout_rate: of the units before each dense layer, in [0, 1).
    num_classes: units of the last layer.

  Returns:
    A model from images (float, [b, 8, 8, 1], values in [0, 1]) to logits (float32, [b, num_classes]).
  """
  layers = tf_keras.layers
  images = tf_keras.Input((8, 8, 1), name='image')
  features = images
  for num_filters in filters:
    features = layers.Conv2D(num_filters, 3, padding='same', activation='relu')(features)
  features = layers.Flatten()(layers.MaxPool2D()(features))
  features = layers.Dropout(dropout_rate)(features)
  features = layers.Dense(hidden_size, activation='relu')(features)
  features = layers.Dropout(dropout_rate)(features)
  # Softmax needs float32 under mixed precision.
  return tf_keras.Model(images, layers.Dense(num_classes, dtype='float32', name='logits')(features), name='digits')
