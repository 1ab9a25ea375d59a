"""Continues texts: prompts of different lengths at once, with a cache, in one XLA program or block by block.

    generate = generation.Generator(model, generation.config_of(model, max_new_tokens=50, temperature=0.7))
    continuations = generate([[1, 15043], [1, 3, 306]], seed=0)
    for token in generate.stream([1, 15043], seed=0): ...

`processed_logits` applies Hugging Face's logits processors in their order. `BlockPrograms` is one XLA program for all
blocks of a decoder that are alike: it compiles in the time of one block.

Example:

  >>> config = ext.DecoderConfig(vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
  >>> model = ext.LanguageModel(config)
  >>> generate = ext.generation.Generator(model, ext.generation.config_of(model, max_new_tokens=4))
  >>> short, long = generate([[4], [1, 2, 3]])
  >>> len(short.tokens), len(long.log_probs)
  (4, 4)
"""

from collections.abc import Callable, Collection, Iterator, Sequence
import contextlib
import dataclasses
import functools
import os
from typing import Any, NamedTuple

from absl import logging
import tensorflow as tf

from official_ext.base import base_config
from official_ext.base import errors
from official_ext.base import file_fields
from official_ext.base import json_values
from official_ext.base import tf_internals
from official_ext.data import keyed_random
from official_ext.language.modeling import attention
from official_ext.language.modeling import decoder
from official_ext.language.modeling import packed_documents
from official_ext.language.modeling import position_encodings
from official_ext.training.model_parts import remat

_NEVER = -1e30  # A logit: finite, so that no difference of two of them is NaN.


@dataclasses.dataclass
class GenerationConfig(base_config.Config):
  """How text is continued. Names are as in Hugging Face's GenerationConfig.

  Attributes:
    max_new_tokens: how many tokens at most.
    temperature: logits are divided by it; 0 takes the likeliest token (Hugging Face's do_sample=False).
    top_k: only this many of the likeliest tokens; 0 for all.
    top_p: only the likeliest tokens that together have this probability (Holtzman et al., 2020); 1 for all.
    min_p: only tokens with at least this part of the likeliest one's probability (Nguyen et al., 2024); 0 for all.
    repetition_penalty: logits of earlier tokens, of the prompt too, are divided by it if they are positive, and
      multiplied if not (Keskar et al., 2019); 1 for none.
    stop_token_ids: a continuation ends with the first of these. Hugging Face calls them eos_token_id.
    pad_token_id: stands after the end.

  Example:

    >>> ext.GenerationConfig(max_new_tokens=32, temperature=0.7, top_p=0.9).stop_token_ids
    ()
  """

  max_new_tokens: int = 128
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0
  stop_token_ids: tuple[int, ...] = ()
  pad_token_id: int = 0


def check_config(config: GenerationConfig) -> None:
  """Refuses values out of range, such as a temperature below 0 or a `top_p` above 1.

  Raises:
    errors.UserError: one line for each invalid field, with its name, value and range.
  """
  bounds = (
    ('max_new_tokens', config.max_new_tokens >= 1, 'must be 1 or more'),
    ('temperature', config.temperature >= 0, 'must be 0 (the likeliest token) or more'),
    ('top_k', config.top_k >= 0, 'must be 0 (all tokens) or more'),
    ('top_p', 0 < config.top_p <= 1, 'must be above 0, and 1 (all tokens) at most'),
    ('min_p', 0 <= config.min_p <= 1, 'must be between 0 (all tokens) and 1'),
    ('repetition_penalty', config.repetition_penalty > 0, 'must be above 0; 1 turns it off'),
  )
  with errors.Mistakes() as mistakes:
    for name, is_right, what in bounds:
      with mistakes.noted():
        if not is_right:
          raise errors.UserError(f'{name}: {getattr(config, name)!r} {what}')


def processed_logits(logits: tf.Tensor, config: GenerationConfig, seen: tf.Tensor | None = None) -> tf.Tensor:
  """The logits that a token is drawn by.

  Args:
    logits: float32 [b, vocab_size].
    config: how.
    seen: bool [b, vocab_size], the earlier tokens; needed for a repetition penalty.

  Returns:
    float32 [b, vocab_size], with -1e30 for tokens that are out.
  """
  if config.repetition_penalty != 1:
    punished = tf.where(logits > 0, logits / config.repetition_penalty, logits * config.repetition_penalty)
    logits = tf.where(seen, punished, logits)
  if not config.temperature:
    return logits
  logits /= config.temperature
  ordered = None
  if 0 < config.top_k < logits.shape[-1]:
    ordered = tf.math.top_k(logits, config.top_k).values
    logits = _without(logits, logits < ordered[:, -1:])
  if config.top_p < 1:
    # Logits that top_k left are in order already, except others that equal the last one, and stay or go with it.
    ordered = tf.sort(logits, axis=-1, direction='DESCENDING') if ordered is None else ordered
    shares = tf.exp(ordered - tf.reduce_logsumexp(logits, axis=-1, keepdims=True))
    # A token stays if the likelier ones have not reached top_p yet: the likeliest one always does.
    stays = tf.cumsum(shares, axis=-1, exclusive=True) < config.top_p
    logits = _without(logits, logits < tf.reduce_min(tf.where(stays, ordered, -_NEVER), axis=-1, keepdims=True))
  if config.min_p:
    shares = tf.nn.softmax(logits)
    logits = _without(logits, shares < config.min_p * tf.reduce_max(shares, axis=-1, keepdims=True))
  return logits


def _without(logits, is_out):
  return tf.where(is_out, _NEVER, logits)


def drawn_tokens(logits: tf.Tensor, config: GenerationConfig, seed: tf.Tensor) -> tf.Tensor:
  """A token of each row.

  Args:
    logits: float32 [b, vocab_size], `processed_logits`.
    config: how.
    seed: int64 [2]; the same draws the same, in a graph and under XLA.

  Returns:
    int32 [b].
  """
  if not config.temperature:
    return tf.argmax(logits, axis=-1, output_type=tf.int32)
  return keyed_random.categorical(logits, 1, seed, tf.int32)[:, 0]


_PLAIN = (bool, int, float, str, type(None))


class BlockPrograms:
  """Runs blocks of one decoder eagerly, each by one program that takes its weights as arguments."""

  def __init__(self) -> None:
    self._variables: dict[int, tuple[Any, list[tf.Variable]]] = {}  # By the block's id, which lives as long.
    self._programs: dict[Any, Any] = {}

  def __call__(
    self, block: Any, x: tf.Tensor, context: attention.LayerContext
  ) -> tuple[tf.Tensor, attention.LayerCache]:
    """What `block(x, context)` computes, up to rounding.

    Args:
      block: a `decoder.Block`, without stacked weights.
      x: [b, t, hidden_size].
      context: with a cache.
    """
    if id(block) not in self._variables:
      self._variables[id(block)] = _kind(block), block.variables
    kind, variables = self._variables[id(block)]
    # With a cache, `is_causal` is False, its default.
    tensors = {name: value for name, value in vars(context).items() if value is not None and value is not False}
    inputs, weights = [x, *tf.nest.flatten(tensors)], [remat.value_of(variable) for variable in variables]
    key = (kind, *tensors, *(tuple(value.shape) for value in inputs))
    if key not in self._programs:
      self._programs[key] = self._program(block, x, tensors, weights, variables)
    return self._programs[key](*inputs, *weights)

  def _program(self, block, x, tensors, weights, variables):
    """The program of a block for inputs of these shapes."""

    @tf.function(jit_compile=True, autograph=False)
    def program(x, tensors, weights):
      with remat.handed_in(variables, weights):
        return block(x, attention.LayerContext(**tensors))

    concrete = program.get_concrete_function(x, tensors, weights)
    return lambda *inputs: tf_internals.call_with_captures(concrete, inputs, concrete.captured_inputs)


def _kind(block):
  """Equal for blocks that compute the same from their weights: of all layers inside, the class and the numbers.

  Names begin with the block's own. A block of another class may depend on more, and is alike to none.
  """
  if type(block) is not decoder.Block:
    return id(block)
  weights = tuple((v.name.removeprefix(block.name), tuple(v.shape), v.dtype) for v in block.variables)
  layers = []
  for layer in (block, *block.submodules):
    values = ((name, value) for name, value in sorted(vars(layer).items()) if isinstance(value, _PLAIN))
    named = tuple((name, value.removeprefix(block.name) if isinstance(value, str) else value) for name, value in values)
    layers.append((type(layer), named))
  return weights, tuple(layers)


RunBlock = Callable[..., Any]  # See `decoder.Decoder.call`.


class State(NamedTuple):
  """Between two tokens; a structure that tf.while_loop and tf.function take.

  Attributes:
    step: int32 scalar, how many tokens were drawn before this one.
    tokens: int32 [b], the one that was drawn last; the padding of rows that had ended before.
    log_probs: float32 [b], the log of its probability by the model itself, at temperature 1; 0 for padding.
    is_done: bool [b], whether the row has ended, with this token or before.
    positions: int32 [b], of the next token.
    segments: int32 [b, s], 1 for the columns of the cache that hold tokens or will, 0 for padding.
    cache: of all tokens but the last one.
    seen: bool [b, vocab_size], the tokens seen so far; [b, 0] without a repetition penalty.
    seed: int64 [2].
    read: int32 [b, s], the tokens of the cache's columns, if they are to be read again at some length
      (`position_encodings.switches_at`); [b, 0] otherwise.
  """

  step: tf.Tensor
  tokens: tf.Tensor
  log_probs: tf.Tensor
  is_done: tf.Tensor
  positions: tf.Tensor
  segments: tf.Tensor
  cache: attention.KeyValueCache
  seen: tf.Tensor
  seed: tf.Tensor
  read: tf.Tensor


class Samples(NamedTuple):
  """Continuations as tensors.

  Attributes:
    tokens: int32 [b, max_new_tokens], padded after the end.
    log_probs: float32 [b, max_new_tokens], the logs of their probabilities by the model itself, at temperature 1 and
      without filters: as a loss computes them for the same tokens; 0 for padding.
    mask: int32 [b, max_new_tokens], 1 for tokens, the one that ends a row among them.
  """

  tokens: tf.Tensor
  log_probs: tf.Tensor
  mask: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Continuation:
  """A continuation of a prompt.

  Attributes:
    tokens: the new ones; the last is a stop token if one was met.
    log_probs: see `Samples`.
  """

  tokens: list[int]
  log_probs: list[float]


def start(
  model: decoder.LanguageModel,
  config: GenerationConfig,
  input_ids: tf.Tensor,
  mask: tf.Tensor,
  seed: tf.Tensor,
  run_block: RunBlock | None = None,
  count: int = 1,
) -> State:
  """Reads the prompts, and draws the first token. Eagerly or under XLA.

  Args:
    model: a language model.
    config: how to draw.
    input_ids: int32 [p, t] of static shape, padded on the left.
    mask: int32 [p, t], 0 for padding.
    seed: int64 [2].
    run_block: see `decoder.Decoder.call`.
    count: continuations of each prompt, which is read once.

  Returns:
    The state of b = p * count rows, grouped by prompt.
  """
  num_prompts, length = input_ids.shape
  room = tf.ones([num_prompts, config.max_new_tokens], tf.int32)
  segments = tf.concat([mask, room], axis=1)
  dtype = tf.as_dtype(model.decoder.compute_dtype)
  cache = attention.empty_cache(model.config, num_prompts, length + config.max_new_tokens, dtype)
  hidden, cache = model.decoder(
    input_ids, positions=packed_documents.positions(mask), segments=segments, cache=cache, run_block=run_block
  )
  logits, positions = model.logits(hidden[:, -1]), tf.reduce_sum(mask, axis=1) - 1
  seen = _seen(input_ids, mask, model.config.vocab_size if config.repetition_penalty != 1 else 0)
  read = tf.concat([input_ids, tf.zeros_like(room)], axis=1) if _switches(model) else input_ids[:, :0]
  if count > 1:
    logits, positions, segments, seen, read = (
      tf.repeat(rows, count, axis=0) for rows in (logits, positions, segments, seen, read)
    )
    cache = attention.repeated_cache(cache, count)
  batch_size = num_prompts * count
  state = State(
    step=tf.constant(-1),
    tokens=tf.zeros([batch_size], tf.int32),
    log_probs=tf.zeros([batch_size]),
    is_done=tf.zeros([batch_size], tf.bool),
    positions=positions,
    segments=segments,
    cache=cache,
    seen=seen,
    seed=seed,
    read=read,
  )
  return _drawn(logits, config, state)


def _switches(model):
  """The lengths at which the cached keys of a document become those of other angles."""
  config = model.config
  found = (
    position_encodings.switches_at(parameters, config.max_position_embeddings)
    for parameters in (config.rope_parameters, config.sliding_rope_parameters)
  )
  return sorted({length for length in found if length is not None})


def advance(
  model: decoder.LanguageModel,
  config: GenerationConfig,
  state: State,
  run_block: RunBlock | None = None,
) -> State:
  """Reads the token that was drawn last, and draws the next one. Eagerly or under XLA."""

  def read_one():
    hidden, cache = model.decoder(
      state.tokens[:, tf.newaxis],
      positions=state.positions[:, tf.newaxis],
      segments=state.segments,
      cache=state.cache,
      run_block=run_block,
    )
    return hidden[:, 0], cache

  switches = _switches(model)
  if switches:
    columns = tf.range(state.cache.length)[tf.newaxis]
    state = state._replace(read=tf.where(columns == state.cache.index, state.tokens[:, tf.newaxis], state.read))
    is_crossed = tf.reduce_any([state.positions == length for length in switches])
    hidden, cache = tf.cond(is_crossed, lambda: _read_again(model, state, columns, run_block), read_one)
  else:
    hidden, cache = read_one()
  return _drawn(model.logits(hidden), config, state._replace(cache=cache))


def _read_again(model, state, columns, run_block):
  """(the last token's hidden state, the cache) of all tokens so far: no key has the angles of a shorter text."""
  index = state.cache.index
  segments = tf.where(columns <= index, state.segments, 0)
  cache = attention.empty_cache(model.config, state.read.shape[0], state.cache.length, state.cache.keys[0].dtype)
  positions = packed_documents.positions(segments)
  hidden, cache = model.decoder(state.read, positions=positions, segments=segments, cache=cache, run_block=run_block)
  return tf.gather(hidden, index, axis=1), cache._replace(index=index + 1)


def sample(
  model: decoder.LanguageModel,
  config: GenerationConfig,
  input_ids: tf.Tensor,
  mask: tf.Tensor,
  seed: tf.Tensor,
  run_block: RunBlock | None = None,
  count: int = 1,
) -> Samples:
  """Continues prompts up to their ends; part of a larger program, such as a training step. Eagerly or under XLA.

  Weights are cast to the compute dtype once, not for each token. Weights of stacked layers and of `run_block` are cast
  for each token. For the arguments see `start`.
  """
  with remat.cast_once():
    return _sample(model, config, input_ids, mask, seed, run_block, count)


def _sample(model, config, input_ids, mask, seed, run_block, count):
  state = start(model, config, input_ids, mask, seed, run_block, count)
  arrays = _written(_arrays(state, config, config.max_new_tokens), 0, state, tf.ones_like(state.tokens))
  return _drawn_more(model, config, state, arrays, 0, config.max_new_tokens - 1, run_block)[1]


def sample_more(
  model: decoder.LanguageModel,
  config: GenerationConfig,
  state: State,
  count: int,
  run_block: RunBlock | None = None,
) -> tuple[State, Samples]:
  """Draws the next tokens: `count`, or fewer at the end of all rows or of `max_new_tokens`. Eagerly or under XLA.

  Weights are cast once for several tokens, as in `sample`.

  Returns:
    The new state, and samples of shape [b, count], whose mask is 0 for tokens that were not drawn.
  """
  with remat.cast_once() if count > 1 else contextlib.nullcontext():
    return _drawn_more(model, config, state, _arrays(state, config, count), state.step + 1, count, run_block)


def _arrays(state, config, length):
  """The arrays of `Samples` with padding, which a loop that ends early does not overwrite."""
  batch_size = state.tokens.shape[0]
  padding = tf.fill([batch_size], config.pad_token_id), tf.zeros([batch_size]), tf.zeros([batch_size], tf.int32)
  arrays = [tf.TensorArray(value.dtype, length, element_shape=[batch_size]) for value in padding]
  return [array.unstack(tf.tile(value[tf.newaxis], [length, 1])) for array, value in zip(arrays, padding)]


def _written(arrays, place, state, row_mask):
  return [array.write(place, value) for array, value in zip(arrays, (state.tokens, state.log_probs, row_mask))]


def _drawn_more(model, config, state, arrays, first, count, run_block):
  """(state, samples) after at most `count` more tokens, each written at its number minus `first`."""

  def body(state, arrays):
    row_mask = 1 - tf.cast(state.is_done, tf.int32)
    state = advance(model, config, state, run_block)
    return state, _written(arrays, state.step - first, state, row_mask)

  state, arrays = tf.while_loop(
    lambda state, _: (state.step < config.max_new_tokens - 1) & ~tf.reduce_all(state.is_done),
    body,
    (state, arrays),
    maximum_iterations=count,
  )
  return state, Samples(*(tf.transpose(array.stack()) for array in arrays))


def _seen(input_ids, mask, vocab_size):
  hits = tf.one_hot(input_ids, vocab_size, dtype=tf.int32) * mask[:, :, tf.newaxis]
  return tf.reduce_max(hits, axis=1) > 0


def _drawn(logits, config, state):
  """The state with the next token."""
  step = state.step + 1
  chosen = drawn_tokens(
    processed_logits(logits, config, state.seen), config, keyed_random.numbered_seed(state.seed, step)
  )
  # TensorFlow's cross-entropy would compute its gradient too.
  log_probs = tf.gather(logits, chosen, axis=1, batch_dims=1) - tf.reduce_logsumexp(logits, axis=-1)
  is_stop = tf.reduce_any([chosen == stop for stop in config.stop_token_ids] or [tf.zeros_like(state.is_done)], axis=0)
  seen = state.seen
  if config.repetition_penalty != 1:
    seen |= tf.one_hot(chosen, seen.shape[-1], on_value=True, off_value=False)
  return state._replace(
    step=step,
    tokens=tf.where(state.is_done, config.pad_token_id, chosen),
    log_probs=tf.where(state.is_done, 0.0, log_probs),
    is_done=state.is_done | is_stop,
    positions=state.positions + 1,
    seen=seen,
  )


class Generator:
  """Continues prompts that are lists of tokens. It compiles once for each number of prompts and width of the batch."""

  def __init__(
    self,
    model: decoder.LanguageModel,
    config: GenerationConfig,
    by_block: bool = False,
    tokens_per_program: int = 1,
    least_width: int = 16,
  ):
    """Makes the programs; they are compiled when they are first used.

    Args:
      model: its weights are read at every call.
      config: how to draw.
      by_block: compiles a block, which all blocks run, instead of the whole model. It starts many times sooner, and
        takes longer for each token. The same tokens are drawn, up to rounding. Stacked layers are one program anyway.
      tokens_per_program: how many tokens a program of `stream` draws, after the first one.
      least_width: to which shorter prompts are padded.

    Raises:
      errors.UserError: for a field of the configuration that means nothing.
    """
    check_config(config)
    self._model = model
    self._config = config
    self._least_width = least_width
    by_block = by_block and not model.config.scan_layers
    run_block = BlockPrograms() if by_block else None
    self._sample: Callable[..., Samples] = functools.partial(sample, model, config, run_block=run_block)
    self._start: Callable[..., State] = functools.partial(start, model, config, run_block=run_block)
    self._sample_more: Callable[[State], tuple[State, Samples]] = functools.partial(
      sample_more, model, config, count=tokens_per_program, run_block=run_block
    )
    if not by_block:
      self._sample, self._start, self._sample_more = (
        tf.function(function, jit_compile=True, autograph=False)
        for function in (self._sample, self._start, self._sample_more)
      )

  def __call__(self, prompts: Sequence[Sequence[int]], seed: int = 0) -> list[Continuation]:
    """Continues all prompts at once.

    Args:
      prompts: token ids; each has one at least.
      seed: the same draws the same. With another number of prompts a row draws something else.

    Raises:
      errors.UserError: for an empty prompt, an invalid token id, or more tokens than there are learned positions.
    """
    if not prompts:
      return []
    found = self._sample(*self._inputs(prompts, seed))
    lengths = found.mask.numpy().sum(axis=1)
    rows = zip(found.tokens.numpy().tolist(), found.log_probs.numpy().tolist(), lengths)
    return [Continuation(tokens[:length], log_probs[:length]) for tokens, log_probs, length in rows]

  def stream(self, prompt: Sequence[int], seed: int = 0) -> Iterator[int]:
    """The same tokens as `self([prompt], seed)`, as soon as a program has drawn them."""
    state = self._start(*self._inputs([prompt], seed))
    yield int(state.tokens[0])
    num_drawn = 1
    while num_drawn < self._config.max_new_tokens and not bool(state.is_done[0]):
      state, found = self._sample_more(state)
      tokens = found.tokens[0, : tf.reduce_sum(found.mask)].numpy().tolist()
      num_drawn += len(tokens)
      yield from tokens

  def _inputs(self, prompts, seed):
    """(ids, mask, seed): padded on the left to a power of two, so that few widths are compiled."""
    config = self._model.config
    for number, prompt in enumerate(prompts):
      if not prompt:
        raise errors.UserError(f'prompt {number}: holds no tokens')
      wrong = [token for token in prompt if not 0 <= token < config.vocab_size]
      if wrong:
        raise errors.UserError(f'prompt {number}: {wrong[0]} is not a token; there are {config.vocab_size}')
    longest = max(map(len, prompts))
    if config.position_embedding_type == 'learned':
      total = longest + self._config.max_new_tokens
      if total > config.max_position_embeddings:
        raise errors.UserError(
          f'max_new_tokens: {self._config.max_new_tokens} behind a prompt of {longest} tokens make {total}, and the '
          f'model has {config.max_position_embeddings} positions'
        )
    width = max(self._least_width, 2 ** (longest - 1).bit_length())
    ids = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return tf.constant(ids, tf.int32), tf.constant(mask, tf.int32), tf.constant([seed, 0], tf.int64)


def config_of(
  model: decoder.LanguageModel,
  ignore_fields: Collection[str] = (),
  defaults: json_values.JsonMapping | None = None,
  **changes: object,
) -> GenerationConfig:
  """The generation settings of a model's folder: of generation_config.json; of config.json if there is no such file.

  Args:
    model: a language model; a new one has no settings.
    ignore_fields: fields of the file that are not implemented, and are to be ignored.
    defaults: fields of `GenerationConfig` for what the folder does not set; None for its own defaults.
    **changes: fields of `GenerationConfig`, which override these.

  Returns:
    Length, temperature, filters, stop tokens and padding. A folder's sampling settings count if it sets do_sample; it
    draws among the 50 likeliest tokens then unless it names another top_k, as transformers does.

  Raises:
    errors.UserError: for a field that means nothing, or one that may change the next token and is not implemented
      (`FILE_FIELDS`).
  """
  values: dict[str, Any] = {}
  places: dict[str, str] = {}
  for path, fields in _folder_settings(model):
    found = _values(path, fields)
    FILE_FIELDS.check(fields, path, {*ignore_fields, *([] if found.get('do_sample') else _OF_SAMPLING)})
    if (
      fields.get('max_length')
      and 'max_new_tokens' not in {*found, *changes}
      and fields['max_length'] < model.config.max_position_embeddings
    ):
      logging.warning('%s: max_length: %s: a text ends by max_new_tokens alone; set it', path, fields['max_length'])
    values.update(found)
    places.update(dict.fromkeys(found, path))
  if not values.pop('do_sample', False):
    values = {name: value for name, value in values.items() if name not in _SAMPLED}
  else:
    values = {'temperature': 1.0, 'top_k': 50, **values}
  values = {name: value for name, value in values.items() if name not in changes}
  try:
    check_config(GenerationConfig(**values))
  except errors.UserError as error:
    raise errors.UserErrors([f'{places[line.partition(":")[0]]}: {line}' for line in errors.lines_of(error)]) from error
  config = GenerationConfig(**{**(defaults or {}), **values, **changes})
  check_config(config)
  return config


def _folder_settings(model):
  """(path, fields) of each file with settings; the last one wins."""
  if model.origin is None:
    return
  path, content = (os.path.join(model.origin.folder, _FILE), model.origin.files.get(_FILE))
  names = FILE_FIELDS.names if content is None else _ENDS
  yield (
    os.path.join(model.origin.folder, 'config.json'),
    {name: value for name, value in model.origin.fields.items() if name in names},
  )
  if content is not None:
    yield path, json_values.parse_required_object(content, path)


_FILE = 'generation_config.json'
_SAMPLED = ('temperature', 'top_k', 'top_p', 'min_p')
_ENDS = ('eos_token_id', 'pad_token_id')
# Their name -> (ours, its valid values); null counts as missing.
_KINDS: dict[str, tuple[str, Any, str]] = {
  'do_sample': ('do_sample', bool, 'true or false'),
  'temperature': ('temperature', (int, float), 'a number'),
  'top_k': ('top_k', int, 'a whole number'),
  'top_p': ('top_p', (int, float), 'a number'),
  'min_p': ('min_p', (int, float), 'a number'),
  'repetition_penalty': ('repetition_penalty', (int, float), 'a number'),
  'max_new_tokens': ('max_new_tokens', int, 'a whole number'),
  'eos_token_id': ('stop_token_ids', (int, list), "a token's number, or a list of such"),
  'pad_token_id': ('pad_token_id', int, "a token's number"),
}
_OF_SAMPLING: dict[str, tuple[object, ...]] = {
  'typical_p': (1.0,),
  'top_h': (1.0,),
  'epsilon_cutoff': (0.0,),
  'eta_cutoff': (0.0,),
}
FILE_FIELDS = file_fields.FileFields(
  _FILE,
  used=frozenset(_KINDS),
  harmless=file_fields.because(
    {
      'a call sets the length by max_new_tokens': 'max_length',
      'memory and speed': """cache_config cache_implementation compile_config continuous_batching_config disable_compile
        low_memory max_cache_len prefill_chunk_size use_cache""",
      'drafts of a second model, which a call names': """assistant_confidence_threshold assistant_early_exit
        assistant_ensemble_weight assistant_lookbehind is_assistant max_matching_ngram_size num_assistant_tokens
        num_assistant_tokens_schedule prompt_lookup_num_tokens speculation_type target_lookbehind""",
      'of beams, which num_beams above 1 asks for': 'diversity_penalty early_stopping length_penalty num_beam_groups',
      'what a call returns': """num_return_sequences output_attentions output_hidden_states output_logits output_scores
        return_dict_in_generate""",
      'the tokenizer has it': 'bos_token_id',
      'of models with an encoder': 'decoder_start_token_id',
      'draws are the same': 'remove_invalid_values renormalize_logits',
      'a note': '_commit_hash _from_model_config transformers_version',
    }
  ),
  neutral={
    **_OF_SAMPLING,
    'begin_suppress_tokens': ([],),
    'bad_words_ids': ([],),
    'constraints': ([],),
    'dola_layers': ([],),
    'encoder_no_repeat_ngram_size': (0,),
    'encoder_repetition_penalty': (1.0,),
    'exponential_decay_length_penalty': ([],),
    'force_words_ids': ([],),
    'forced_bos_token_id': (None,),
    'forced_eos_token_id': (None,),
    'guidance_scale': (1.0,),
    'max_time': (None,),
    'min_length': (0,),
    'min_new_tokens': (0,),
    'no_repeat_ngram_size': (0,),
    'num_beams': (1,),
    'penalty_alpha': (0.0,),
    'sequence_bias': ({}, []),
    'stop_strings': ([], ''),
    'suppress_tokens': ([],),
    'token_healing': (False,),
    'use_mtp': (False,),
    'watermarking_config': ({},),
  },
  effect='may change the next token',
  remedy='; remove it, or ignore it by ignore_fields=({!r},)',
)


def _values(path, fields):
  """The values of a file for fields of `GenerationConfig`, and do_sample."""
  found: dict[str, object] = {}
  for theirs, (ours, kinds, expected) in _KINDS.items():
    value = fields.get(theirs)
    if value is None:
      continue
    each = value if isinstance(value, list) else [value]
    is_list_of_others = isinstance(value, list) and not all(type(item) is int for item in each)
    if not isinstance(value, kinds) or is_list_of_others or (isinstance(value, bool) and kinds is not bool):
      raise errors.UserError(f'{path}: {theirs}: {value!r}: expected {expected}')
    found[ours] = tuple(each) if ours == 'stop_token_ids' else value
  return found
