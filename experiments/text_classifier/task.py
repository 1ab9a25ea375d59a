"""The task `text_classifier`: texts with labels, decoder, head and loss."""

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs
from . import data
from . import model as model_lib


@ext.register_task(configs.TextClassifierTaskConfig)
class TextClassifierTask(ext.TextTask):
  """Prediction of the class of a text."""

  @property
  def class_names(self) -> Sequence[str]:
    """See base class."""
    return self.config.class_names

  def build_model(self) -> model_lib.TextClassifierModel:
    """See model.py."""
    model = model_lib.build(self.config)
    self.check_vocabulary(model.decoder.config.vocab_size)
    return model

  @property
  def named_tokenizer(self) -> str:
    """The folder of `tokenizer_path` or `model_path`."""
    return super().named_tokenizer or self.config.model_path

  def make_tokenizer(self) -> ext.Tokenizer:
    """The built-in text's tokenizer."""
    return ext.python_topics.tokenizer(self.config.model.vocab_size)

  def build_inputs(
    self, params: configs.TextClassifierDataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches {'input_ids', 'segment_ids': int32 [b, t], 'label': int32 [b]}."""
    return ext.build_dataset(self._source(params), params, input_context)

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """The share of texts whose class has the largest logit."""
    return [tf_keras.metrics.SparseCategoricalAccuracy('accuracy')]

  def num_examples(self, params: configs.TextClassifierDataConfig) -> int:
    """The number of texts."""
    return len(self._source(params))

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """Cross-entropy: see base class."""
    logits = model(inputs['input_ids'], segments=inputs['segment_ids'], training=training)
    # One label for a row: a sequence of one.
    label = {'logits': logits[:, tf.newaxis], 'labels': inputs['label'][:, tf.newaxis]}
    loss, _ = ext.weighted_losses.total(self.config.losses, {'label': label})
    return loss, {'accuracy': (inputs['label'], logits)}

  def serving_function(self, model: tf_keras.Model) -> object:
    """Logits of token ids, int32 [b, t], without anything that fills rows up: one length in a call."""

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name='input_ids')], autograph=False)
    def serve(input_ids):
      return {'logits': model(input_ids, segments=tf.ones_like(input_ids), training=False)}

    return serve

  def _source(self, params):
    return data.source(params, self.tokenizer, self.config.class_names)
