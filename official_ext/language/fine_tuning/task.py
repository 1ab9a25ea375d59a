"""The part of a task that all methods of fine-tuning have in common: model, tokenizer, text, reference, result."""

import collections
from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.base.files import paths as paths_lib
from official_ext.base.run_folder import model_folders
from official_ext.data import input_files
from official_ext.data import numbered_records
from official_ext.data import record_files
from official_ext.data import step_indexed
from official_ext.language.fine_tuning import completions as completions_lib
from official_ext.language.fine_tuning import models
from official_ext.language.fine_tuning import saved_folders
from official_ext.language.modeling import activation_memory
from official_ext.language.modeling import decoder as decoder_lib
from official_ext.language.modeling import lora as lora_lib
from official_ext.language.modeling import model_weights
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.language.text import prepared_texts
from official_ext.language.text import python_docstrings
from official_ext.language.text import text_sources
from official_ext.language.text import text_task
from official_ext.language.text import token_rows
from official_ext.language.text import tokenizer as tokenizer_lib
from official_ext.language.text import tokenizer_training

_VALIDATION_SHARE = 0.1
_ROWS_FOR_ENDS = 64
_ROUNDING = 1e-9  # Of a share times a number that is whole.
_TURN_TOKENS = ('<|system|>', '<|user|>', '<|assistant|>', '<|end|>')
# Not the token that ends texts, by which transformers would mistake a text's end for padding.
_PAD_TOKEN = '<|pad|>'
# Of tokenizers that are trained here. The assistant's turns end as sequences do, so that generation stops there.
CHAT_TEMPLATE = """{% for message in messages %}<|{{ message.role }}|>
{{ message.content }}{% if message.role == 'assistant' %}{{ eos_token }}{% else %}<|end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""


class FineTuningTask(text_task.TextTask):
  """A language model that is trained on: `forward` makes a method of it.

  At the end of training the result is saved, below `output_dir` or the run's folder: `adapter`, a folder that peft
  loads, if adapters were trained; `model`, a folder that transformers loads, if all weights were, or with
  `save_merged`. With a moving average of the weights it has the averages.

  Attributes:
    needs_reference: whether `forward` calls `reference`. A subclass may decide it by its configuration.

  Example:

    >>> class NextToken(ext.FineTuningTask):
    ...   def forward(self, inputs, model, training):
    ...     logits = model(inputs['input_ids'], segments=inputs['segment_ids'], training=training)
    ...     return ext.losses.label(logits[:, :-1], inputs['labels'][:, 1:]), {}
    >>> decoder = {'vocab_size': 512, 'hidden_size': 16, 'intermediate_size': 32, 'num_hidden_layers': 1}
    >>> data = {'seq_length': 256, 'global_batch_size': 2}
    >>> task = NextToken(ext.FineTuningConfig({'model': decoder, 'train_data': data}))
    >>> batch = next(iter(task.build_inputs(task.config.train_data)))  # Docstrings of Python, without an input_path.
    >>> loss, _ = task.forward(batch, task.build_model(), training=True)
    >>> 6 < float(loss) < 7  # A new model's is about log(512).
    True
  """

  @property
  def needs_reference(self) -> bool:
    """Whether `forward` calls `reference`."""
    return False

  # Model.

  @functools.cached_property
  def base_model(self) -> model_folders.ModelFolders | None:
    """The folders of `model_path`; None for a new decoder."""
    if not self.config.model_path:
      return None
    try:
      return model_folders.find(self.config.model_path).absolute()
    except errors.UserError as error:
      raise errors.UserError(f'task.model_path: {error}') from error

  def build_language_model(self) -> decoder_lib.LanguageModel:
    """The decoder of `model_path`, or a new one; with adapters on frozen weights, if adapters are trained."""
    model = self._language_model()
    self.check_vocabulary(model.config.vocab_size)
    return model

  def merged_language_model(self, model: tf_keras.Model) -> decoder_lib.LanguageModel:
    """A model of `build_language_model` without adapters, which are added to its weights: to be saved."""
    if not self.config.trains_adapters:
      return model
    return lora_lib.merged_copy(model, lambda: self._language_model('float32', warn=lambda line: None))

  def build_classifier(self, num_labels: int) -> decoder_lib.SequenceClassifier:
    """The same decoder with a head of scores for each text in place of the language model's.

    Its result is a whole model: `result_writers` must be overridden with `classifier_writers`.
    """
    model = models.build_classifier(self.config, self.base_model, num_labels, pretrained.settings(self.config.model))
    self.check_vocabulary(model.config.vocab_size)
    return model

  def classifier_writers(self, model: tf_keras.Model) -> Mapping[str, Callable[[str], None]]:
    """`result_writers` of a model of `build_classifier`: the whole model, adapters merged, and the tokenizer.

    Raises:
      UserError: the folder would represent another model: see pretrained.py.
    """
    return saved_folders.classifier_writers(self, model)

  def merged_classifier(self, model: tf_keras.Model) -> decoder_lib.SequenceClassifier:
    """A model of `build_classifier` without adapters, which are added to its weights: to be saved."""
    return models.merged_classifier(model, self.config, self.base_model, pretrained.settings(self.config.model))

  def _language_model(
    self, dtype: str | None = None, warn: Callable[[str], None] = logging.warning
  ) -> decoder_lib.LanguageModel:
    """The model of `build_language_model`. `warn` gets each difference from the base that adapters were trained on."""
    config, base = self.config, self.base_model
    if base is None:
      return decoder_lib.LanguageModel(config.model)
    if base.adapter and config.trains_adapters and config.sets_lora:
      raise errors.UserError(
        f'task.lora: the adapters of {base.adapter} are trained further with their settings; do not set it'
      )
    model = self.load_base(dtype)
    if base.adapter:
      peft_folders.load(model, base.adapter, warn=warn)
      if not config.trains_adapters:
        lora_lib.merge(model)
    elif config.trains_adapters:
      lora_lib.attach(model, config.lora)
    return model

  def load_base(self, dtype: str | None = None) -> decoder_lib.LanguageModel:
    """The model of `model_path` without adapters.

    If adapters are trained, its weights are kept as frozen ones are; otherwise, for adapters of `model_path` that are
    to be merged, as they were when the adapters were trained.
    """
    base, config = self.base_model, self.config
    assert base is not None
    how: dict[str, Any] = {}
    if config.trains_adapters:
      how = {'quantization': config.frozen_kernels(), 'frozen_dtype': config.frozen_dtype or None}
    elif base.adapter:
      how = peft_folders.base_options(model_folders.read_base(base.adapter))
    vocab_size = peft_folders.vocab_size(base.adapter) if base.adapter else None
    return pretrained.load(base.model, dtype=dtype, vocab_size=vocab_size, **how, **pretrained.settings(config.model))

  def build_model(self) -> tf_keras.Model:
    """See base class. A subclass may put a head on `build_language_model`."""
    model = self.build_language_model()
    self.keep_reference(model)
    return model

  def keep_reference(self, model: tf_keras.Model) -> None:
    """Keeps the reference model, if it is needed: part of `build_model`."""
    if self.needs_reference:
      base, config = self.base_model, self.config
      has_new_adapters = config.trains_adapters and base is not None and not base.adapter
      trains_more = bool(config.init_checkpoint or config.lora.modules_to_save)
      models.keep_reference(model, is_switched_off=has_new_adapters and not trains_more)

  def reference(self, model: tf_keras.Model) -> Callable[..., tf.Tensor]:
    """The model as it was when training began, to be called as the model is; without a gradient.

    New adapters are switched off for it. Otherwise it has the initial values of the trained weights, in the checkpoints
    too.
    """
    return models.reference_of(model)

  def initialize(self, model: tf_keras.Model) -> None:
    """See base class. The reference is the model at the start of training."""
    super().initialize(model)
    models.take_reference(model)

  # Memory.

  def training_shapes(self, num_replicas: int) -> activation_memory.TrainingShapes:
    """The texts of a micro-batch on one of `num_replicas`: override it in a task that makes others."""
    data = self.config.train_data
    texts = 2 if data.example_format == 'preference' and not self.config.is_unpaired else 1
    sequences = texts * -(-data.global_batch_size // num_replicas)
    return activation_memory.TrainingShapes(sequences, data.seq_length, has_logits=self.learns_tokens)

  def activation_bytes(self, model: tf_keras.Model, num_replicas: int) -> int | None:
    """See base class: of the decoder's layers and its logits."""
    decoder = model_weights.decoder_of(model)
    if not isinstance(decoder, decoder_lib.Decoder):
      return None
    shapes = self.training_shapes(num_replicas)
    of_step = activation_memory.of_step(decoder.config, shapes, decoder.compute_dtype)
    return of_step + activation_memory.of_unpacking(decoder)

  def least_weights(self) -> tuple[int, int]:
    """See base class: without norms, biases and adapters."""
    base, config = self.base_model, self.config
    decoder = pretrained.read_config(base.model)[0] if base else config.model
    outside, inside = activation_memory.num_weights(decoder, has_head=self.learns_tokens)
    if not config.trains_adapters:
      return 4 * (outside + inside), outside + inside
    bits = {'nf4': 4, 'int8': 8}.get(config.frozen_kernels().method, 16)
    return (16 * outside + bits * inside) // 8, 0

  # Data.

  @property
  def named_tokenizer(self) -> str:
    """The folder of `tokenizer_path` or `model_path`."""
    return super().named_tokenizer or (self.base_model.tokenizer if self.base_model else '')

  @property
  def model_type(self) -> str:
    """See base class: the folder's, if a folder is named."""
    if self.base_model is None:
      return super().model_type
    return pretrained.read_config(self.base_model.model)[0].model_type

  def make_tokenizer(self) -> tokenizer_lib.Tokenizer:
    """Byte-level BPE with `model.vocab_size` tokens, trained on `tokenizer_texts`."""
    return tokenizer_training.cached(
      self.tokenizer_texts(),
      self.config.model.vocab_size,
      _TURN_TOKENS,
      CHAT_TEMPLATE,
      folder=paths_lib.expanded(self.config.train_data.cache_dir),
      pad_token=_PAD_TOKEN,
    )

  def tokenizer_texts(self) -> Sequence[str]:
    """The texts for training a tokenizer, if none is named: Python's docstrings. Override it for other data."""
    return [text for document in python_docstrings.documents('train') for text in document.values()]

  def built_in_records(self, split: str) -> numbered_records.Records:
    """The data if no `input_path` names others.

    Args:
      split: 'train' or 'validation'.
    """
    return python_docstrings.records(split)

  def records(self, params: text_task.TextDataConfig) -> numbered_records.Records:
    """The records of a data configuration.

    Args:
      params: `task.train_data` or `task.validation_data`.

    Raises:
      UserError: they cannot be read, or none exist.
    """
    train, validation = self.config.train_data, self.config.validation_data
    if not params.is_training and params.input_path:
      return _read(params, 'task.validation_data')
    if not train.input_path:
      return self.built_in_records('train' if params.is_training else 'validation')
    found = _read(train, 'task.train_data')
    if params.is_training and validation.input_path:
      return found
    held_out = _held_out(len(found), self.validation_share)
    if not params.is_training and not held_out.any():
      raise errors.UserError(
        'task.validation_data.input_path: is empty, and none of the records of task.train_data are held out for '
        f'validation (task.validation_share {self.validation_share:g} of {len(found)})'
      )
    return numbered_records.DividedRecords(found, held_out, takes_held_out=not params.is_training)

  @property
  def validation_share(self) -> float:
    """The part of the records that is held out."""
    share = self.config.validation_share
    if share is not None:
      return share
    return _VALIDATION_SHARE if self.evaluates else 0.0

  @tf.autograph.experimental.do_not_convert  # A traced step may be the first use.
  def source(
    self, params: text_task.TextDataConfig
  ) -> text_sources.TextSource | prepared_texts.PreparedTexts | text_sources.TextMixture:
    """The rows of a data configuration: see docs/how_to/text_data.md, and docs/how_to/prepare.md for prepared rows.

    Args:
      params: `task.train_data` or `task.validation_data`.
    """
    is_whole = not params.is_training or self.config.validation_data.input_path or not self.validation_share
    field = f'task.{"train_data" if params.is_training else "validation_data"}.input_path'
    is_prepared = is_whole and params.input_path and input_files.find_prepared(params.input_path, field) is not None
    found = text_sources.open_source(params, self.tokenizer, None if is_prepared else self.records(params))
    if self.config.train_data.input_path and not self.config.validation_data.input_path and self.validation_share:
      _ = self._num_shared  # Reports them.
    return found

  @functools.cached_property
  def _num_shared(self) -> int:
    """How many held-out examples training has too, which is reported: their scores say nothing about other texts."""
    data = self.config.train_data, self.config.validation_data
    try:
      sides = [text_sources.open_source(each, self.tokenizer, self.records(each)) for each in data]
    except errors.UserError:  # One of them cannot be used, which is reported when it is.
      return 0
    training, held_out = (text_sources.example_digests(side) for side in sides)
    shared = int(np.isin(held_out, training).sum())
    if shared:
      logging.warning(
        'task.validation_share: %d of %d held-out examples are also in training, word for word; remove duplicates from '
        'the data, or name task.validation_data.input_path',
        shared,
        len(held_out),
      )
    return shared

  def build_inputs(
    self, params: text_task.TextDataConfig, input_context: tf.distribute.InputContext | None = None
  ) -> tf.data.Dataset:
    """Batches of the rows of `source`."""
    return step_indexed.build_dataset(self.source(params), params, input_context)

  def code_files(self) -> Mapping[str, object]:
    """The tokenizer and the files of chat templates: see base class."""
    paths = {
      f'task.{name}.chat_template_path': getattr(self.config, name).chat_template_path
      for name in ('train_data', 'validation_data')
    }
    files = {name: paths_lib.expanded(path) for name, path in paths.items() if path}
    return {**super().code_files(), **files}

  def num_examples(self, params: object) -> int:
    """The number of rows of `source`, which are the examples of an epoch.

    Args:
      params: `task.train_data` or `task.validation_data`.

    Raises:
      UserError: the data cannot be read.
    """
    return len(self.source(params))

  def build_metrics(self, training: bool = True) -> list[tf_keras.metrics.Metric]:
    """The metrics that `forward` updates, by default []: see base class.

    Args:
      training: whether they are for training, not for evaluation.
    """
    del training
    return []

  # Completions.

  @functools.cached_property
  def answers(self) -> completions_lib.Answers:
    """Answers validation prompts."""
    return completions_lib.Answers(self)

  def logged_completions(self, model: tf_keras.Model, step: int) -> Mapping[str, object]:
    """The values of an event `completions`: see `completions.event_values`.

    Args:
      model: the model of `build_model`.
      step: the number of updates so far.
    """
    return self.answers.log(model, step)

  @property
  def evaluation_end_names(self) -> Sequence[str]:
    """See base class."""
    return [f'{completions_lib.PREFIX}{name}' for name in self.config.completions.metrics]

  def evaluation_end(self, model: tf_keras.Model) -> Mapping[str, float]:
    """The metrics of `completions.metrics`, measured by the chief: see base class."""
    if not self.config.completions.metrics:
      return {}
    return self._workers.from_chief('metrics of completions', lambda: self.answers.measure(model))

  # Result.

  @property
  def output_dir(self) -> str:
    """The folder of the result; '' for nowhere."""
    return paths_lib.expanded(self.config.output_dir) or self.logging_dir

  def build_actions(self, trainer: protocols.Trainer) -> Sequence[Any]:
    """Logs completions, and saves the result at the end: a subclass adds its actions to these."""
    return [*completions_lib.actions(self, trainer), saved_folders.SaveAtEnd(self, trainer)]

  def save_result(self, model: tf_keras.Model, folder: str = '') -> Mapping[str, str]:
    """Saves the result of a training, each part whole or not at all.

    Args:
      model: the model of `build_model`.
      folder: below which; '' for `output_dir`.

    Returns:
      Name -> folder of each part saved.

    Raises:
      StorageError: it cannot be written.
    """
    return saved_folders.save(self.result_writers(model), folder or self.output_dir)

  @functools.cached_property
  def learned_ends(self) -> tuple[int, ...]:
    """The tokens that end the answers of the training data, the most frequent one first: of its first rows.

    () if nothing is learned token by token, or answers end without an added token.
    """
    found = self._count_ends()
    return tuple(token for token, _ in found.most_common() if token is not None)

  def _count_ends(self):
    if not self.learns_tokens:
      return collections.Counter()
    source = self.source(self.config.train_data)
    rows = source.fetch(list(range(min(len(source), _ROWS_FOR_ENDS))))
    return token_rows.learned_ends(rows, self.tokenizer)

  def end_note(self) -> str:
    """A line about answers that end otherwise than the base stops; '' if it stops where they end."""
    found, known = self._count_ends(), self.tokenizer.stop_token_ids
    name = lambda tokens: ', '.join(f'{self.tokenizer.decode([token])} ({token})' for token in tokens) or 'nothing'
    new = [token for token in self.learned_ends if token not in known]
    if new:
      return (
        f'warning: end: the answers to learn end with {name(new)}, and the base stops at {name(known)} alone; the '
        'result stops at both, by its generation_config.json'
      )
    if found and found.most_common(1)[0][0] is None and not self.learned_ends:
      return (
        'warning: end: the answers to learn end with no token at which generation could stop; end the turns of the '
        'chat template with a special token, or set append_eos'
      )
    return ''

  @property
  def result_tokenizer(self) -> tokenizer_lib.Tokenizer:
    """The tokenizer that goes into results: with the chat template that was trained with, and the ends learned."""
    return text_sources.tokenizer_of(self.config.train_data, self.tokenizer).with_stops(self.learned_ends)

  def result_writers(self, model: tf_keras.Model) -> Mapping[str, Callable[[str], None]]:
    """The parts to save: name of a folder -> its writer, with `result_tokenizer`.

    A subclass with another head overrides this.
    """
    return saved_folders.writers(self, model)

  def load_result(self, name: str, folder: str) -> Any:
    """The model of a folder that `save_result` has written. A subclass that overrides `result_writers` does this too.

    Args:
      name: of the saved part.
      folder: its folder.
    """
    return saved_folders.load(self, name, folder)

  def check_result(self, model: tf_keras.Model, folder: str) -> Sequence[str]:
    """See base class: the logits of the saved model equal the model's."""
    return saved_folders.check(self, model, folder)

  def serving_function(self, model: tf_keras.Model) -> Any | None:
    """See base class: `logits` of `input_ids` and `segment_ids`; None for a model with custom classes."""
    return saved_folders.signature_of(model)


def _read(params: text_task.TextDataConfig, path: str) -> numbered_records.Records:
  prepared = input_files.find_prepared(params.input_path, f'{path}.input_path')
  if prepared is not None:
    raise errors.UserError(
      f'{path}.input_path: {prepared.folder}: rows that were prepared are not divided; name others in '
      'task.validation_data.input_path, or set task.validation_share=0'
    )
  return record_files.open_records(params.input_path, params.split, params.max_samples, f'{path}.input_path')


def _held_out(num_records: int, share: float) -> np.ndarray:
  """Which records are kept for validation, spread evenly: neither all nor none of them; bool [num_records]."""
  found = np.diff(np.floor(np.arange(num_records + 1) * share + _ROUNDING)) > 0
  if share and num_records > 1:
    found[-1] |= not found.any()
    found[0] &= not found.all()
  return found
