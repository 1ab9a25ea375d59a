"""A decoder-only transformer for all families, defined by `DecoderConfig` alone.

`LanguageModel` puts a head of tokens on it. `SequenceClassifier` puts a head of scores for each text on it: a
classifier, or with one score a reward model.
"""

from collections.abc import Callable, Mapping
import functools
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.language.modeling import attention
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import layers
from official_ext.language.modeling import mlp
from official_ext.language.modeling import packed_documents
from official_ext.language.modeling import position_encodings
from official_ext.training.model_parts import remat
from official_ext.training.model_parts import stacked

_ATTENTION_SITE, _MLP_SITE = 1, 2  # Of a layer's dropout; 0 is inside of attention.


class Block(layers.Part):
  """x + attention(norm(x)), then x + mlp(norm(x)); with `post_norms` a norm after each, before the sum.

  Without `pre_norms` the first norms are left out. In parallel (`config.block_type`): x + attention(norm(x)) +
  mlp(norm(x)).

  A subclass may override `call`, and read `context.extras`, the arguments of the model for its layers.

  Attributes:
    mlp: an `mlp.MLP`, or an `mlp.SparseMLP`.

  Example:

    >>> class Halved(ext.DecoderBlock):
    ...   def call(self, x, context):
    ...     y, cache = super().call(x, context)
    ...     return (x + y) / 2, cache
    >>> config = ext.DecoderConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=2)
    >>> model = ext.LanguageModel(config, block_class=Halved)
    >>> [type(block).__name__ for block in model.decoder.blocks]
    ['Halved', 'Halved']
    >>> model(tf.constant([[1, 2, 3]])).shape
    TensorShape([1, 3, 100])
  """

  def __init__(
    self,
    config: decoder_config.DecoderConfig,
    initializer: Callable[[], tf_keras.initializers.Initializer],
    is_sparse: bool = False,
    **options: Any,
  ):
    """Makes the block.

    Args:
      config: of the decoder.
      initializer: see `Decoder`.
      is_sparse: whether it has experts.
      **options: of `layers.Part`.
    """
    super().__init__(**options)
    self._config = config
    norm = lambda name: _norm(self, config, name)
    has_second = config.pre_norms and config.block_type != decoder_config.PARALLEL
    self._is_parallel = config.block_type != decoder_config.SEQUENTIAL
    self.input_layernorm = norm('input_layernorm') if config.pre_norms else None
    self.self_attn = attention.Attention(config, initializer, **self.inside('self_attn'))
    self.post_attention_layernorm = norm('post_attention_layernorm') if config.post_norms else None
    self.pre_feedforward_layernorm = norm('pre_feedforward_layernorm') if has_second else None
    self.mlp = (mlp.SparseMLP if is_sparse else mlp.MLP)(config, initializer, **self.inside('mlp'))
    self.post_feedforward_layernorm = norm('post_feedforward_layernorm') if config.post_norms else None

  def call(self, x: tf.Tensor, context: attention.LayerContext) -> tuple[tf.Tensor, attention.LayerCache | None]:
    """([b, t, hidden_size], the cache with this call's keys and values)."""
    remat_of = self._config.remat if context.cache is None else 'none'
    if remat_of == 'attention':
      parts = _present(self.input_layernorm, self.self_attn, self.post_attention_layernorm)
      added, cache = remat.remat(lambda x, _: self._attention_part(x, context)[0], x, parts, {}), None
    else:
      added, cache = self._attention_part(x, context)
    y = x + added
    mlp_input = x if self._is_parallel else y
    if remat_of == 'mlp':
      parts = _present(self._mlp_norm, self.mlp, self.post_feedforward_layernorm)
      return y + remat.remat(lambda x, _: self._mlp_part(x, context), mlp_input, parts, {}), cache
    return y + self._mlp_part(mlp_input, context), cache

  @property
  def _mlp_norm(self):
    """The norm before the MLP; None for none."""
    return self.input_layernorm if self.pre_feedforward_layernorm is None else self.pre_feedforward_layernorm

  def _attention_part(self, x, context):
    """The output of attention, and the cache."""
    with remat.seeded(context.seed):
      y, cache = self.self_attn(x if self.input_layernorm is None else self.input_layernorm(x), context)
    if self.post_attention_layernorm is not None:
      y = self.post_attention_layernorm(y)
    return self._scaled_and_dropped(y, context, _ATTENTION_SITE), cache

  def _mlp_part(self, x, context):
    """The output of the MLP."""
    with remat.seeded(context.seed):
      y = x if self._mlp_norm is None else self._mlp_norm(x)
      y = self.mlp(y, context.is_token) if isinstance(self.mlp, mlp.SparseMLP) else self.mlp(y)
    if self.post_feedforward_layernorm is not None:
      y = self.post_feedforward_layernorm(y)
    return self._scaled_and_dropped(y, context, _MLP_SITE)

  def _scaled_and_dropped(self, y, context, site):
    multiplier = self._config.residual_multiplier
    y = y if multiplier == 1 else y * tf.cast(multiplier, y.dtype)
    return layers.dropout(y, self._config.residual_dropout, context.seed, site)


def _norm(part, config, name):
  """A norm over the width of the residual stream."""
  kind = config.norm_type, config.norm_bias
  return layers.Norm(config.hidden_size, config.norm_eps, config.norm_offset, *kind, **part.inside(name))


def _present(*parts):
  return [part for part in parts if part is not None]


class Decoder(layers.Part):
  """Token ids to the hidden states of the last layer, normed. Heads use it: `LanguageModel`, or a custom one.

  Attributes:
    config: its structure.
    embed_tokens: [vocab_size, hidden_size].
    embed_positions: [max_position_embeddings, hidden_size], learned positions; None with RoPE.
    blocks: a `Block` for each layer; with `config.scan_layers` a single one, with stacked weights.
    norm: the last norm.
    draws: whether layers drop out in training.
    neftune_noise_alpha: the scale of noise on the embeddings in training, see `layers.neftune_noise`; 0 for none.
    origin: of the model, loaded from a folder, that it is a part of; None for a new one.

  Example:

    >>> config = ext.DecoderConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
    >>> hidden, *_ = ext.Decoder(config)(tf.constant([[1, 2, 3]]))
    >>> hidden.shape  # [batch, length, hidden size].
    TensorShape([1, 3, 16])
  """

  def __init__(
    self,
    config: decoder_config.DecoderConfig,
    block_class: type[Block] = Block,
    initializer: Callable[[], tf_keras.initializers.Initializer] | None = None,
    dtype: tf.DType | str | None = None,
    name: str = 'decoder',
  ):
    """Makes all weights.

    Args:
      config: its structure.
      block_class: of the blocks.
      initializer: a function that makes the initializer of each matrix; None for normal numbers with
        `config.initializer_range` as their standard deviation.
      dtype: a Keras dtype policy; None for the global one.
      name: of the layer.

    Raises:
      errors.UserError: for a configuration that cannot be built.
    """
    config.check_values('')
    super().__init__(name=name, dtype=dtype)
    self.config = config
    self.origin: Any = None
    self.neftune_noise_alpha = 0.0
    self.draws = bool(config.attention_dropout or config.residual_dropout or config.embedding_dropout)
    initializer = initializer or functools.partial(tf_keras.initializers.RandomNormal, stddev=config.initializer_range)
    embedding = lambda rows, name: layers.Embedding(rows, config.hidden_size, initializer(), **self.inside(name))
    self.embed_tokens = embedding(config.vocab_size, 'embed_tokens')
    self.embed_positions = None
    if config.position_embedding_type == 'learned':
      self.embed_positions = embedding(config.max_position_embeddings, 'embed_positions')
    if config.scan_layers:
      options = {**self.inside('blocks'), 'num_rows': config.num_hidden_layers}
      self.blocks = [block_class(config, initializer, **_kind(config, 0), **options)]
    else:
      self.blocks = [
        block_class(config, initializer, **_kind(config, number), **self.inside(f'blocks/{number}'))
        for number in range(config.num_hidden_layers)
      ]
    self.norm = _norm(self, config, 'norm')

  def call(
    self,
    input_ids: tf.Tensor,
    positions: tf.Tensor | None = None,
    segments: tf.Tensor | None = None,
    cache: attention.KeyValueCache | None = None,
    extras: Mapping[str, tf.Tensor] | None = None,
    training: bool = False,
    run_block: Callable[..., Any] | None = None,
  ) -> tuple[tf.Tensor, attention.KeyValueCache | None]:
    """Hidden states.

    Args:
      input_ids: int32 [b, t].
      positions: int32 [b or 1, t]; None to count from 0 on in each document.
      segments: int32 [b, t], the number of each token's document, 0 for padding; None for one document a row. With a
        cache [b, s], of all its columns.
      cache: the keys and values of the columns before these; None to see this call's alone. In a graph, under XLA
        only; stacked layers need one.
      extras: tensors by name, which every block finds in `context.extras`.
      training: whether there is dropout.
      run_block: with a cache, called with each block, its input and its context, instead of the block itself: see
        generation.py. Not with stacked layers.

    Returns:
      ([b, t, hidden_size] in the compute dtype, the cache with this call's keys and values).
    """
    config = self.config
    if positions is None:
      positions = self._positions(input_ids, segments, cache)
    seed = self._seed() if training else None
    x = self.embed_tokens(input_ids)
    if config.scale_embeddings:
      x *= tf.cast(config.hidden_size**0.5, x.dtype)
    # On the output of transformers' embedding, which Gemma's scales and Granite's does not.
    if training and self.neftune_noise_alpha:
      x += layers.neftune_noise(x, segments, self.neftune_noise_alpha)
    if config.embedding_multiplier != 1:
      x *= tf.cast(config.embedding_multiplier, x.dtype)
    if self.embed_positions is not None:
      x += self.embed_positions(positions)
    x = layers.dropout(x, config.embedding_dropout, seed, config.num_hidden_layers)
    contexts = self._contexts(input_ids, positions, segments, cache)
    if config.position_embedding_type == 'alibi':
      bias = self._bias(positions, segments, cache)
      contexts = {kind: _replace(context, bias=bias) for kind, context in contexts.items()}
    run = self._scanned if config.scan_layers else functools.partial(self._unrolled, run_block or _call_block)
    balances = training and config.router_aux_loss_coef > 0 and any(decoder_config.sparse_layers(config))
    with remat.collected(balances) as reports:
      x, cache = run(x, contexts, seed, cache, dict(extras or {}))
    if balances:
      self.add_loss(config.router_aux_loss_coef * mlp.router_loss(reports))
    return self.norm(x), cache

  def _positions(self, input_ids, segments, cache):
    if cache is not None:
      raise ValueError('positions: must be given together with a cache')
    if segments is not None:
      return packed_documents.positions(segments)
    return tf.range(tf.shape(input_ids)[1])[tf.newaxis]

  def _seed(self):
    """A new seed of all layers' dropout: by the step's key in a training step; None if there is no dropout."""
    if not self.draws:
      return None
    return tf.random.uniform([2], minval=tf.int64.min, maxval=tf.int64.max, dtype=tf.int64)

  def _contexts(self, input_ids, positions, segments, cache):
    """Kind of a layer, see `decoder_config.layer_kinds` -> its `LayerContext`."""
    config = self.config
    num_queries = layers.sizes(input_ids)[1]
    num_keys, first_query = (num_queries, 0) if cache is None else (cache.length, cache.index)
    is_token = None if segments is None or cache is not None else tf.cast(segments > 0, tf.float32)
    found = {}
    for kind in sorted(set(decoder_config.layer_kinds(config))):
      layer_type, has_rope = kind
      is_sliding = layer_type == decoder_config.SLIDING
      window = config.sliding_window if is_sliding else 0
      mask = packed_documents.mask(num_queries, num_keys, first_query, segments, window)
      cos = sin = scale = None
      if config.position_embedding_type == 'rope':
        parameters = (config.sliding_rope_parameters if is_sliding else None) or config.rope_parameters
        size = decoder_config.head_dim(config)
        cos, sin = position_encodings.rope_cos_and_sin(parameters, size, config.max_position_embeddings, positions)
        scale = position_encodings.query_scale(parameters, config.max_position_embeddings, positions)
        if not has_rope:  # By no angle at all: stacked layers need something of the same shape.
          cos, sin = tf.ones_like(cos), tf.zeros_like(sin)
      is_causal = segments is None and cache is None and not window
      found[kind] = attention.LayerContext(mask, cos, sin, scale, is_token=is_token, is_causal=is_causal)
    return found

  def _bias(self, positions, segments, cache):
    """The biases of all keys, scaled as scores are: float32 [b or 1, heads, s]."""
    if cache is not None:  # Also of keys that other calls have written.
      columns = tf.range(cache.length)[tf.newaxis]
      positions = columns if segments is None else packed_documents.positions(segments)
    config = self.config
    return decoder_config.attention_multiplier(config) * position_encodings.alibi_biases(
      config.num_attention_heads, positions
    )

  def _unrolled(self, run_block, x, contexts, seed, cache, extras):
    all_keys, all_values, index = [], [], None
    for number, (block, kind) in enumerate(zip(self.blocks, decoder_config.layer_kinds(self.config))):
      context = _of_layer(contexts[kind], seed, number, extras)
      if cache is not None:
        layer_cache = attention.LayerCache(cache.keys[number], cache.values[number], cache.index)
        x, (keys, values, index) = run_block(block, x, _replace(context, cache=layer_cache))
        all_keys.append(keys)
        all_values.append(values)
      elif self.config.remat == 'block':
        run = functools.partial(_run_block, block, context)
        x = remat.remat(run, x, [block], extras)
      else:
        x = _run_block(block, context, x, extras)
    return x, cache and attention.KeyValueCache(tuple(all_keys), tuple(all_values), index)

  def _scanned(self, x, contexts, seed, cache, extras):
    block, num_layers = self.blocks[0], self.config.num_hidden_layers
    kinds = sorted(contexts)
    kind_of = decoder_config.layer_kinds(self.config)
    of_layer = tf.constant([kinds.index(kind) for kind in kind_of])
    stack = lambda name: tf.stack([getattr(contexts[kind], name) for kind in kinds])
    known = ('mask', 'cos', 'sin', 'query_scale', 'bias')
    names = [name for name in known if getattr(contexts[kinds[0]], name) is not None]
    parts = {name: stack(name) for name in names}

    def context_of(number, extras):
      if isinstance(number, int):
        return _of_layer(contexts[kind_of[number]], seed, number, extras)
      chosen = {name: part[of_layer[number]] for name, part in parts.items()}
      is_causal = all(contexts[kind].is_causal for kind in kinds)
      context = attention.LayerContext(**chosen, is_token=contexts[kinds[0]].is_token, is_causal=is_causal)
      return _of_layer(context, seed, number, extras)

    if cache is None:
      run = lambda x, number, extras: _run_block(block, context_of(number, extras), x, extras)
      reports = [mlp.report_spec(self.config)] if decoder_config.sparse_layers(self.config)[0] else []
      keeps_activations = self.config.remat != 'block'
      return stacked.scan(run, x, block, num_layers, extras, reports, keeps_activations), None

    def step(x, number, state):
      layer_cache = attention.LayerCache(state[0][number], state[1][number], cache.index)
      x, (keys, values, _) = block(x, _replace(context_of(number, extras), cache=layer_cache))
      return x, tuple(attention.with_row(stack, row, number) for stack, row in zip(state, (keys, values)))

    x, (keys, values) = stacked.loop(step, x, (cache.keys[0], cache.values[0]), block, num_layers)
    return x, attention.KeyValueCache((keys,), (values,), cache.index + layers.sizes(x)[1])


def _kind(config, number):
  """The extra arguments of a block: none in a decoder without experts."""
  return {'is_sparse': decoder_config.sparse_layers(config)[number]} if config.num_experts else {}


def _replace(context, **changes):
  return attention.LayerContext(**{**vars(context), **changes})


def _of_layer(context, seed, number, extras):
  """The context of one layer of its kind."""
  layer_seed = None if seed is None else _layer_seed(seed, number)
  return _replace(context, seed=layer_seed, extras=extras)


def _layer_seed(seed, number):
  """A stream apart from the embedding's dropout, which has the number after the layers'."""
  return tf.stack([seed[0], seed[1] + tf.cast(number, tf.int64) + 1])


def _call_block(block, x, context):
  return block(x, context)


def _run_block(block, context, x, extras):
  return block(x, _replace(context, extras=extras))[0]


class LanguageModel(tf_keras.Model):
  """A decoder with a head of logits: `model(input_ids)` is float32 [b, t, vocab_size].

  Attributes:
    config: its structure.
    decoder: all but the head.
    lm_head: a `layers.Linear`; None if the embedding is the head too.
    origin: the other files that `pretrained.load` found; None for a new model.

  Example:

    >>> config = ext.DecoderConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
    >>> ext.LanguageModel(config)(tf.constant([[1, 2, 3]])).shape  # Logits [batch, length, vocabulary].
    TensorShape([1, 3, 100])
  """

  def __init__(
    self,
    config: decoder_config.DecoderConfig,
    block_class: type[Block] = Block,
    initializer: Callable[[], tf_keras.initializers.Initializer] | None = None,
    dtype: tf.DType | str | None = None,
    name: str = 'language_model',
  ):
    """Makes all weights; for the arguments see `Decoder`."""
    super().__init__(name=name, dtype=dtype, autocast=False)
    self.config = config
    self.origin: Any = None
    self.decoder = Decoder(config, block_class, initializer, dtype=self._dtype_policy)
    self.lm_head = None
    if not config.tie_word_embeddings:
      make = initializer or functools.partial(tf_keras.initializers.RandomNormal, stddev=config.initializer_range)
      self.lm_head = layers.Linear(
        config.hidden_size,
        config.vocab_size,
        config.lm_head_bias,
        make(),
        dtype=self._dtype_policy,
        name='lm_head',
      )
    self.built = True

  def call(
    self,
    input_ids: tf.Tensor,
    positions: tf.Tensor | None = None,
    segments: tf.Tensor | None = None,
    extras: Mapping[str, tf.Tensor] | None = None,
    training: bool = False,
  ) -> tf.Tensor:
    """Logits, float32 [b, t, vocab_size]; for the arguments see `Decoder.call`."""
    hidden, _ = self.decoder(input_ids, positions=positions, segments=segments, extras=extras, training=training)
    return self.logits(hidden)

  def logits(self, hidden: tf.Tensor) -> tf.Tensor:
    """The head's output for hidden states: [..., hidden_size] -> float32 [..., vocab_size]."""
    scores = self.decoder.embed_tokens.scores(hidden) if self.lm_head is None else self.lm_head(hidden)
    scores = tf.cast(scores, tf.float32)
    if self.config.logit_scale != 1 or self.config.logits_scaling != 1:
      scores *= self.config.logit_scale / self.config.logits_scaling
    return attention.softcapped(scores, self.config.final_logit_softcapping)


class SequenceClassifier(tf_keras.Model):
  """Scores of texts, from the hidden state of each one's last token: transformers' `...ForSequenceClassification`.

  Attributes:
    config: the decoder's structure.
    num_labels: how many scores a text gets.
    decoder: all but the head.
    score: the head, a `layers.Linear` without a bias.
    origin: the other files that `pretrained.load_classifier` found; None for a new model.

  Example:

    >>> config = ext.DecoderConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
    >>> model = ext.SequenceClassifier(config, num_labels=3)
  """

  def __init__(
    self,
    config: decoder_config.DecoderConfig,
    num_labels: int,
    block_class: type[Block] = Block,
    initializer: Callable[[], tf_keras.initializers.Initializer] | None = None,
    dtype: tf.DType | str | None = None,
    name: str = 'sequence_classifier',
    decoder: Decoder | None = None,
  ):
    """Makes all weights; for the arguments see `Decoder`. The head always starts with normal numbers.

    Args:
      config: the decoder's structure.
      num_labels: how many scores a text gets.
      block_class: of the blocks.
      initializer: see `Decoder`.
      dtype: see `Decoder`.
      name: of the model.
      decoder: an existing one, of this `config`; None makes it.

    Raises:
      errors.UserError: for a configuration that cannot be built.
    """
    super().__init__(name=name, dtype=dtype, autocast=False)
    self.config = config
    self.num_labels = num_labels
    self.origin: Any = None
    self.decoder = decoder or Decoder(config, block_class, initializer, dtype=self._dtype_policy)
    normal = functools.partial(tf_keras.initializers.RandomNormal, stddev=config.initializer_range)
    self.score = layers.Linear(config.hidden_size, num_labels, False, normal(), dtype=self._dtype_policy, name='score')
    self.built = True

  def call(
    self,
    input_ids: tf.Tensor,
    positions: tf.Tensor | None = None,
    segments: tf.Tensor | None = None,
    extras: Mapping[str, tf.Tensor] | None = None,
    training: bool = False,
  ) -> tf.Tensor:
    """Scores, float32 [b, num_labels]; for the arguments see `Decoder.call`. Each row holds one text.

    `segments` are above 0 for a text's tokens and 0 for padding, on either side; None if there is no padding.
    """
    hidden, _ = self.decoder(input_ids, positions=positions, segments=segments, extras=extras, training=training)
    if segments is None:
      last = hidden[:, -1]
    else:
      columns = tf.range(tf.shape(segments)[1])
      last = tf.gather(hidden, tf.reduce_max(tf.where(segments > 0, columns, 0), axis=1), batch_dims=1)
    return tf.cast(self.score(last), tf.float32)


def classifier_of(model: LanguageModel, num_labels: int) -> SequenceClassifier:
  """A classifier over the decoder of a language model: that itself, not a copy. Its head is new."""
  found = SequenceClassifier(model.config, num_labels, dtype=model._dtype_policy, decoder=model.decoder)
  found.origin = model.origin
  return found
