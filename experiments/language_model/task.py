"""The task `language_model`: text, decoder and loss."""

from collections.abc import Mapping
import math

import tensorflow as tf
import tf_keras

import official_ext as ext

from . import configs
from . import data
from . import model as model_lib


@ext.register_task(configs.LanguageModelTaskConfig)
class LanguageModelTask(ext.TextTask):
  """Prediction of the next token of text."""

  def build_model(self) -> tf_keras.Model:
    """See model.py."""
    self.check_vocabulary(self.config.model.vocab_size)
    return model_lib.build(self.config.model)

  def activation_bytes(self, model: tf_keras.Model, num_replicas: int) -> int:
    """See base class."""
    data = self.config.train_data
    shapes = ext.activation_memory.TrainingShapes(-(-data.global_batch_size // num_replicas), data.seq_length)
    return ext.activation_memory.of_step(self.config.model, shapes, model.compute_dtype)

  def least_weights(self) -> tuple[int, int]:
    """See base class."""
    count = sum(ext.activation_memory.num_weights(self.config.model))
    return 4 * count, count

  def make_tokenizer(self) -> ext.Tokenizer:
    """The built-in text's tokenizer."""
    return ext.python_topics.tokenizer(self.config.model.vocab_size)

  def build_inputs(
    self, params: ext.DataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches of rows of tokens: see `ext.text_source`."""
    return ext.build_dataset(self._source(params), params, input_context)

  def build_metrics(self, training: bool = True):
    """The accuracy, the mean cross-entropy and the perplexity of tokens; the bits per byte of the text."""
    return [*ext.token_metrics.build(), tf_keras.metrics.Mean('bits_per_byte')]

  def num_examples(self, params: ext.DataConfig) -> int:
    """The rows of the split."""
    return len(self._source(params))

  def forward(
    self, inputs: Mapping[str, tf.Tensor], model: tf_keras.Model, training: bool
  ) -> tuple[tf.Tensor, Mapping[str, object]]:
    """Cross-entropy of the next tokens: see base class."""
    segments, positions = inputs['segment_ids'], inputs['position_ids']
    logits = model(inputs['input_ids'], positions=positions, segments=segments, training=training)[:, :-1]
    labels = inputs['labels'][:, 1:]
    is_learned = tf.cast(labels != ext.losses.IGNORED_LABEL, tf.float32)
    loss, losses = ext.weighted_losses.total(
      self.config.losses,
      {'label': {'logits': logits, 'labels': labels}, 'z_loss': {'logits': logits, 'mask': is_learned}},
    )
    data_params = self.config.train_data if training else self.config.validation_data
    log_probs = ext.losses.log_probs(logits, labels)
    bits = -log_probs / math.log(2) * self.tokens_per_byte(data_params)
    counts = ext.token_metrics.counts(segments, labels) if training else {}
    metrics = {**ext.token_metrics.updates(logits, labels, log_probs), 'bits_per_byte': (bits, is_learned)}
    return loss, {**losses, **metrics, **counts}

  def tokens_per_byte(self, params: ext.DataConfig) -> float:
    """How many tokens a byte of the split's text is, including text that was cut off."""
    report = self._source(params).report
    return (report.tokens + report.lost_tokens) / report.text_bytes

  def serving_function(self, model: tf_keras.Model) -> object:
    """Logits of the next tokens, float32 [b, t, vocab_size], from the tokens so far, int32 [b, t]."""

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name='input_ids')], autograph=False)
    def serve(input_ids):
      return {'logits': model(input_ids, training=False)}

    return serve

  def _source(self, params):
    return data.source(params, self.tokenizer)
