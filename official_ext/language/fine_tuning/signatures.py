"""The signature of a fine-tuned model's export: its inputs have the names of the data, so that these verify it."""

from typing import Any

import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.language.modeling import representable


def of_model(model: tf_keras.Model) -> Any | None:
  """The function that an exported model computes, for `Task.serving_function`.

  It takes `input_ids` and `segment_ids`, int32 [b, t]: see `Decoder.call`. It returns `logits`, float32: of a
  `LanguageModel` [b, t, vocab_size], of a `SequenceClassifier` [b, num_labels].

  Args:
    model: of a fine-tuning.

  Returns:
    A tf.function. None for a model with other classes than this library's: it may take other inputs.
  """
  try:
    representable.check(model, model.name)
  except errors.UserError:
    return None
  specs = [tf.TensorSpec([None, None], tf.int32, name) for name in ('input_ids', 'segment_ids')]

  @tf.function(input_signature=specs, autograph=False)
  def serve(input_ids, segment_ids):
    return {'logits': model(input_ids, segments=segment_ids, training=False)}

  return serve
