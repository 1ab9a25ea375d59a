"""Tiny folders of Hugging Face: a model with a tokenizer, as ours write them."""

import tensorflow as tf

from official_ext.language.fine_tuning import task as task_lib
from official_ext.language.modeling import decoder
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import pretrained
from official_ext.language.text import tokenizer_training

TURN_TOKENS = ('<|user|>', '<|assistant|>', '<|end|>')


def make_tokenizer(chat_template=task_lib.CHAT_TEMPLATE):
  """Bytes, and pairs of them that a few words hold."""
  texts = ['What does the function return? It returns the list of all items. '] * 4
  return tokenizer_training.train(texts, 300, TURN_TOKENS, chat_template)


def write(folder, seed=0, **changes):
  """Writes a folder with weights of several tenths and a tokenizer; returns its path as text."""
  sizes = dict(
    vocab_size=304,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
  )
  model = decoder.LanguageModel(decoder_config.DecoderConfig(**{**sizes, **changes}))
  for number, variable in enumerate(model.variables):
    if variable.shape.rank > 1:
      variable.assign(0.1 * tf.random.stateless_normal(variable.shape, [seed, number]))
  pretrained.save(model, str(folder))
  make_tokenizer().save(str(folder))
  return str(folder)
