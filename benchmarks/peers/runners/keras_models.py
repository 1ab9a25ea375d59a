"""The networks as a Keras user writes them: the same code for tf_keras and for Keras 3, which is handed in."""

from typing import Any

from benchmarks.peers.work import decoder as decoder_work
from benchmarks.peers.work import training


def build(keras: Any, work: training.Work) -> Any:
  """A model from a batch of inputs to logits, with the work's first weights.

  Args:
    keras: the module `tf_keras` or `keras`.
    work: its computation.
  """
  inputs = keras.Input(work.inputs.shape[1:], dtype=work.inputs.dtype.name)
  logits = _ARCHITECTURES[work.architecture](keras, work.sizes, inputs)
  model = keras.Model(inputs, logits)
  assign(model, work)
  return model


def assign(model: Any, work: training.Work) -> None:
  """Gives a model of `build` the work's first weights."""
  values: dict[str, list] = {}
  for name, value in work.weights.items():
    layer = name.rpartition('/')[0]
    if layer.endswith('_proj') and '/self_attn/' in layer:  # One layer of Keras has all four.
      layer, _, kind = layer.rpartition('/')
      heads = work.sizes['heads']
      size = work.sizes['width'] // heads
      value = value.reshape((heads, size, -1) if kind == 'o_proj' else (-1, heads, size))
    values.setdefault(layer.replace('/', '.'), []).append(value)
  for layer, arrays in values.items():
    model.get_layer(layer).set_weights(arrays)


def compiled(keras: Any, work: training.Work, **options: Any) -> Any:
  """`build`, with loss, optimizer and metrics; `options` are those of `compile`."""
  model = build(keras, work)
  model.compile(
    optimizer(keras, work),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=['accuracy'] if work.counts_accuracy else [],
    **options,
  )
  return model


def optimizer(keras: Any, work: training.Work) -> Any:
  """AdamW."""
  return keras.optimizers.AdamW(
    work.learning_rate,
    weight_decay=work.weight_decay,
    beta_1=work.beta_1,
    beta_2=work.beta_2,
    epsilon=work.epsilon,
    global_clipnorm=work.clip_norm,
  )


def _perceptron(keras, sizes, x):
  *hidden, last = sizes['widths'][1:]
  for number, width in enumerate(hidden):
    x = keras.layers.Dense(width, activation='relu', name=f'dense_{number}')(x)
  return keras.layers.Dense(last, name=f'dense_{len(hidden)}')(x)


def _convolutional(keras, sizes, x):
  layers = keras.layers
  for number, filters in enumerate(sizes['filters']):
    x = layers.Conv2D(filters, 3, padding='same', activation='relu', name=f'conv_{number}')(x)
  x = layers.Flatten()(layers.MaxPool2D()(x))
  x = layers.Dropout(sizes['dropout_rate'])(x)
  x = layers.Dense(sizes['hidden_size'], activation='relu', name='dense_0')(x)
  x = layers.Dropout(sizes['dropout_rate'])(x)
  return layers.Dense(10, name='dense_1')(x)


def _decoder(keras, sizes, ids):
  layers, width = keras.layers, sizes['width']

  class Positions(layers.Layer):
    """Adds a learned row to each position."""

    def build(self, shape):
      self.embeddings = self.add_weight(name='embeddings', shape=tuple(shape[1:]), initializer='zeros')

    def call(self, x):
      return x + self.embeddings

  norm = lambda name: layers.LayerNormalization(epsilon=decoder_work.EPSILON, name=name)
  x = layers.Embedding(sizes['vocabulary'], width, name='decoder.embed_tokens')(ids)
  x = Positions(name='decoder.embed_positions')(x)
  for number in range(sizes['layers']):
    block = f'decoder.blocks.{number}'
    y = norm(f'{block}.input_layernorm')(x)
    attention = layers.MultiHeadAttention(
      sizes['heads'], width // sizes['heads'], use_bias=False, name=f'{block}.self_attn'
    )
    x = layers.Add()([x, attention(y, y, use_causal_mask=True)])
    y = norm(f'{block}.pre_feedforward_layernorm')(x)
    y = layers.Dense(4 * width, activation='gelu', name=f'{block}.mlp.up_proj')(y)
    x = layers.Add()([x, layers.Dense(width, name=f'{block}.mlp.down_proj')(y)])
  x = norm('decoder.norm')(x)
  return layers.Dense(sizes['vocabulary'], use_bias=False, name='lm_head')(x)


_ARCHITECTURES = {'mlp': _perceptron, 'conv': _convolutional, 'decoder': _decoder}
