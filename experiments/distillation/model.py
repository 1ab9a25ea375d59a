"""Student and teacher: multi-layer perceptrons."""

import tf_keras

from . import configs
from . import data


def build_network(config: configs.NetworkConfig, hint_size: int = 0) -> tf_keras.Model:
  """A perceptron that shows its last hidden layer.

  Args:
    config: a `NetworkConfig`.
    hint_size: units of a linear map of the last hidden layer, for the loss `feature`; 0: no such map.

  Returns:
    A model from pixels, [b, 64], to {'logits': float32 [b, 10], 'features': [b, d], 'hint': float32 [b, hint_size]}.
  """
  layers = tf_keras.layers
  pixels = tf_keras.Input((data.NUM_PIXELS,), name='pixels')
  features = pixels
  for size in config.hidden_sizes:
    features = layers.Dense(size, activation='relu')(features)
    features = layers.Dropout(config.dropout_rate)(features) if config.dropout_rate else features
  # Softmax needs float32 under mixed precision.
  outputs = {'logits': layers.Dense(data.NUM_CLASSES, dtype='float32', name='logits')(features), 'features': features}
  if hint_size:
    outputs['hint'] = layers.Dense(hint_size, dtype='float32', name='hint')(features)
  return tf_keras.Model(pixels, outputs)
