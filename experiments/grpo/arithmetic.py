"""The built-in problem of `grpo`: to add two numbers of two digits.

A text is `72+54=270` for 27 + 45 = 72: digits stand lowest first, in the order in which one adds by hand. One problem
in ten is for evaluation, and is in no training, the base model's included.
"""

from collections.abc import Callable
import dataclasses
import json
import threading

import numpy as np
from official.modeling.hyperparams import base_config
import tensorflow as tf
import tf_keras

import official_ext as ext

NUM_PROMPT_TOKENS = 6
NUM_ANSWER_TOKENS = 4  # Three digits, and the end.
_END, _PADDING = '<end>', '<pad>'
_SYMBOLS = (*'0123456789+=', _END, _PADDING)
VOCABULARY_SIZE = len(_SYMBOLS)
_NUM_PROBLEMS = 10_000
_IS_WRONG, _DIGITS = 1 << 20, 1 << 21  # Streams of draws, apart from the problems' stream.
_EVERY = 5  # Steps between two looks at how often the base model is right.


@dataclasses.dataclass
class PretrainingConfig(base_config.Config):
  """The training of the arithmetic's base model: by predicting answers, until some of its samples are right.

  Attributes:
    until_reward: It ends when this part of sampled answers is right.
    steps: The most steps.
    batch_size: Problems of a step.
    error_rate: This part of the digits of their answers is drawn at random: the model learns to leave a choice, without
      which there is nothing to compare.
    learning_rate: Of AdamW.
  """

  RANGES = {
    'until_reward': '[0, 1]',
    'steps': '[1, inf)',
    'batch_size': '[1, inf)',
    'error_rate': '[0, 1)',
    'learning_rate': '(0, inf)',
  }

  until_reward: float = 0.1
  steps: int = 4000
  batch_size: int = 128
  error_rate: float = 0.25
  learning_rate: float = 2e-3


def tokenizer() -> ext.Tokenizer:
  """A token for each digit and sign."""
  vocabulary = {symbol: number for number, symbol in enumerate(_SYMBOLS)}
  added = [
    {
      'id': vocabulary[symbol],
      'content': symbol,
      'single_word': False,
      'lstrip': False,
      'rstrip': False,
      'normalized': False,
      'special': True,
    }
    for symbol in (_END, _PADDING)
  ]
  fields = {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': added,
    'normalizer': None,
    'pre_tokenizer': None,
    'post_processor': None,
    'decoder': {'type': 'Fuse'},
    'model': {'type': 'BPE', 'vocab': vocabulary, 'merges': []},
  }
  named = {'eos_token': _END, 'pad_token': _PADDING}
  config = {'tokenizer_class': 'PreTrainedTokenizerFast', 'clean_up_tokenization_spaces': False, **named}
  as_bytes = lambda value: (json.dumps(value, indent=2) + '\n').encode()
  files = {
    'tokenizer.json': as_bytes(fields),
    'tokenizer_config.json': as_bytes(config),
    'special_tokens_map.json': as_bytes(named),
  }
  return ext.Tokenizer(files, 'arithmetic')


def problems(is_training: bool) -> np.ndarray:
  """The pairs of numbers to be added: int64 [n, 2], 9,000 for training, the other 1,000 for evaluation."""
  order = np.random.default_rng(0).permutation(_NUM_PROBLEMS)
  numbers = np.sort(order[_NUM_PROBLEMS // 10 :] if is_training else order[: _NUM_PROBLEMS // 10])
  return np.stack([numbers // 100, numbers % 100], axis=1)


def _digits(number, count):
  return str(int(number)).zfill(count)[::-1]


def records(is_training: bool) -> list[dict[str, str]]:
  """The problems as records: {'prompt': '72+54=', 'answer': '270'}."""
  return [
    {'prompt': f'{_digits(a, 2)}+{_digits(b, 2)}=', 'answer': _digits(a + b, 3)} for a, b in problems(is_training)
  ]


# The weights of the bases that this process has taught, by their arguments: a check begins a run more than once.
_taught: dict[str, list[np.ndarray]] = {}


def base_weights(model: ext.DecoderConfig, config: PretrainingConfig, seed: int) -> list[np.ndarray]:
  """The weights of the base model: the same for the same arguments, on the same kind of machine.

  Args:
    model: its structure.
    config: of its training.
    seed: of weights and problems.
  """
  key = repr((model.as_dict(), config.as_dict(), seed))

  def teach():
    base = _make_base(model, config, seed)
    _taught[key] = [variable.numpy() for variable in base.trainable_variables]

  if key not in _taught:
    _in_new_thread(teach)  # It is independent of the strategy, under whose scope tasks make their models.
  return _taught[key]


def _in_new_thread(function: Callable[[], None]) -> None:
  raised: list[BaseException] = []

  def run():
    try:
      function()
    except BaseException as error:  # pylint: disable=broad-except  # It is raised below.
      raised.append(error)

  thread = threading.Thread(target=run, name='pretraining')
  thread.start()
  thread.join()
  if raised:
    raise raised[0]


def _make_base(model_config, config, seed):
  model = ext.LanguageModel(
    model_config, initializer=_initializer(model_config.initializer_range, seed), dtype='float32'
  )
  reward, step = pretrain(model, tokenizer(), config, seed)
  print(f'A base model was taught arithmetic for {step} steps; {reward:.1%} of its answers are right.', flush=True)
  return model


def _initializer(deviation, seed):
  """Makes an initializer for each matrix, with its own seed."""
  numbers = iter(range(10**9))
  return lambda: tf_keras.initializers.RandomNormal(stddev=deviation, seed=seed * 100_003 + next(numbers))


def pretrain(model: ext.LanguageModel, words: ext.Tokenizer, config: PretrainingConfig, seed: int) -> tuple[float, int]:
  """Teaches a new model answers, until `config.until_reward` of its samples are right.

  Returns:
    (the part of 512 sampled answers that is right, the number of steps).
  """
  assert words.eos_token_id is not None and words.pad_token_id is not None
  texts = [record['prompt'] + record['answer'] for record in records(True)]
  ids = tf.constant([[*words.encode(text), words.eos_token_id] for text in texts], tf.int32)
  variables = list(model.trainable_variables)
  optimizer = tf_keras.optimizers.AdamW(config.learning_rate, jit_compile=False)
  optimizer.build(variables)
  sampling = ext.GenerationConfig(
    max_new_tokens=NUM_ANSWER_TOKENS,
    temperature=1.0,
    stop_token_ids=(words.eos_token_id,),
    pad_token_id=words.pad_token_id,
  )

  def drawn(stream, step, count):
    key = tf.stack([tf.constant(seed * 2 + stream, tf.int64), tf.cast(step, tf.int64)])
    rows = tf.random.stateless_uniform([count], key, 0, len(texts), tf.int32)
    return tf.gather(ids, rows)

  def with_errors(batch, step):
    shape = [config.batch_size, NUM_ANSWER_TOKENS - 1]  # Digits are the tokens 0 to 9.
    draws = tf.stack([tf.constant(seed * 2, tf.int64), tf.cast(step, tf.int64)])
    is_wrong = tf.random.stateless_uniform(shape, draws + _IS_WRONG) < config.error_rate
    digits = tf.random.stateless_uniform(shape, draws + _DIGITS, 0, 10, tf.int32)
    answers = tf.where(is_wrong, digits, batch[:, NUM_PROMPT_TOKENS:-1])
    return tf.concat([batch[:, :NUM_PROMPT_TOKENS], answers, batch[:, -1:]], axis=1)

  @tf.function(jit_compile=True, autograph=False)
  def train(step):
    batch = with_errors(drawn(0, step, config.batch_size), step)
    with tf.GradientTape() as tape:
      logits = model(batch[:, :-1], training=True)[:, NUM_PROMPT_TOKENS - 1 :]
      loss = ext.losses.label(logits, batch[:, NUM_PROMPT_TOKENS:])
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

  @tf.function(jit_compile=True, autograph=False)
  def right(step):
    batch = drawn(1, step, 512)
    prompts, answers = batch[:, :NUM_PROMPT_TOKENS], batch[:, NUM_PROMPT_TOKENS:]
    draws = tf.stack([tf.constant(seed, tf.int64), tf.cast(step, tf.int64)])
    found = ext.generation.sample(model, sampling, prompts, tf.ones_like(prompts), draws)
    return tf.reduce_mean(tf.cast(tf.reduce_all(found.tokens == answers, axis=1), tf.float32))

  step, reward = 0, 0.0
  while step < config.steps and reward < config.until_reward:
    train(tf.constant(step))
    step += 1
    if step % _EVERY == 0:
      reward = float(right(tf.constant(step)))
  return reward, step
