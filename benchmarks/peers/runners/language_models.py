"""Decoders of the family llama with random weights, in a folder that this library and transformers load."""

import pathlib

import official_ext as ext

# isort: split
import numpy as np

from benchmarks.peers.work import training


def make_folder(folder: pathlib.Path, layers: int, width: int) -> None:
  """Writes the model; the same numbers at each call."""
  import tf_keras

  tf_keras.utils.set_random_seed(0)
  config = ext.DecoderConfig(
    model_type='llama',
    vocab_size=512,
    hidden_size=width,
    intermediate_size=4 * width,
    num_hidden_layers=layers,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=2048,
  )
  ext.pretrained.save(ext.LanguageModel(config), str(folder))


def rows(batch: int = 4, length: int = 128) -> training.Work:
  """Random tokens to be learned: a work without first weights, which are those of the folder."""
  drawn = np.random.default_rng(2).integers(0, 512, [batch, length + 1]).astype(np.int32)
  inputs, labels = np.ascontiguousarray(drawn[:, :-1]), np.ascontiguousarray(drawn[:, 1:])
  return training.Work('llama', {}, inputs, labels, batch, {}, counts_accuracy=False)
