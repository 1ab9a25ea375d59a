"""Checks that a written folder computes the same as its model, by the logits of a few tokens.

expected = read_back.probe(model, 'bfloat16')  # The model may be deleted now.
read_back.check(expected, folder)
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import sequence_classifier

_ROWS, _TOKENS = 2, 16
# How much of the largest logit may differ: the same weights, computed once more in float32, or in fewer bits.
_TOLERANCE, _TOLERANCE_OF_HALF = 1e-4, 5e-2


class Probe(NamedTuple):
  """The outputs of a model for a few tokens.

  Attributes:
    ids: int32 [b, t], drawn at random.
    outputs: logits [b, t, vocab_size] of a language model, scores [b, num_labels] of a classifier; float32.
    policy: the dtype policy of the model.
    num_labels: of a classifier; None of a language model.
  """

  ids: np.ndarray
  outputs: np.ndarray
  policy: Any
  num_labels: int | None


def probe(model: tf_keras.Model, dtype: str) -> Probe:
  """Computes the outputs of a model whose weights are rounded to the dtype in which they were written.

  Args:
    model: a `LanguageModel` or a `SequenceClassifier`. Its weights stay rounded.
    dtype: float32, bfloat16 or float16.
  """
  for variable in model.variables:
    if variable.dtype.is_floating and variable.dtype.name != dtype:
      variable.assign(tf.cast(tf.cast(variable, dtype), variable.dtype))
  length = min(_TOKENS, model.config.max_position_embeddings)
  ids = np.random.default_rng(0).integers(0, model.config.vocab_size, [_ROWS, length]).astype(np.int32)
  num_labels = model.num_labels if isinstance(model, sequence_classifier.SequenceClassifier) else None
  return Probe(ids, np.asarray(model(ids), np.float32), model._dtype_policy, num_labels)


def check(expected: Probe, folder: str) -> None:
  """Compares the outputs of a folder with those of the model that was written.

  Args:
    expected: of the model.
    folder: that was written.

  Raises:
    UserError: they differ by more than rounding.
  """
  if expected.num_labels is None:
    model: Any = pretrained.load(folder, dtype=expected.policy)
  else:
    model = pretrained.load_classifier(folder, expected.num_labels, dtype=expected.policy)
  found = np.asarray(model(expected.ids), np.float32)
  is_half = expected.policy.compute_dtype != 'float32'
  largest = np.abs(expected.outputs[np.isfinite(expected.outputs)]).max(initial=0.0)
  bound = (_TOLERANCE_OF_HALF if is_half else _TOLERANCE) * largest
  if not np.allclose(found, expected.outputs, rtol=0, atol=bound, equal_nan=True):
    difference = np.nanmax(np.abs(found - expected.outputs))
    raise errors.UserError(
      f'{folder}: read back, its outputs differ by {difference:.3g} from those of the model, whose largest is '
      f'{largest:.3g}: the model computes something that a Hugging Face folder does not represent; `official-ext '
      'export` writes a SavedModel of the run'
    )
