"""The configuration that all fine-tuning tasks have in common."""

from collections.abc import Mapping
import dataclasses
from typing import ClassVar

from official_ext.base import errors
from official_ext.language.fine_tuning import completions as completions_lib
from official_ext.language.modeling import decoder_config
from official_ext.language.modeling import lora as lora_lib
from official_ext.language.modeling import pretrained
from official_ext.language.modeling import quantized_linear
from official_ext.language.modeling import weighted_losses
from official_ext.language.text import text_task
from official_ext.training.config import definitions

_DTYPES = ('', 'float32', 'bfloat16', 'float16')


def _data(is_training: bool) -> text_task.TextDataConfig:
  return text_task.TextDataConfig(is_training=is_training, global_batch_size=2, use_chat_template=None)


@dataclasses.dataclass
class FineTuningConfig(definitions.TaskConfig):
  """A language model that is trained on.

  Attributes:
    model_path: A Hugging Face folder; or one of peft with adapters, whose base is the one that it names, and which are
      trained further. Empty: a new decoder, see `model`.
    model: The decoder, if `model_path` is empty. For one from a folder nothing is read but how it is run, if that is
      not the default: `remat`, `scan_layers`, rates of dropout, `router_aux_loss_coef`.
    tokenizer_path: A folder with a tokenizer; empty: from `model_path`, or without it one that is trained on the
      built-in data at its first use.
    use_lora: Whether adapters are trained instead of all weights; null: if there is a `model_path`.
    lora: New adapters. Must not be set if a folder has adapters, which are unchanged.
    load_in_4bit: Whether the frozen kernels below adapters are kept in 4 bits: short for `quantization.method=nf4`.
    quantization: How the frozen kernels are kept.
    frozen_dtype: In which type other frozen weights are kept, such as bfloat16; empty: unchanged.
    losses: The loss to minimize.
    output_dir: Where the result is saved; empty: the folder of the run.
    save_merged: Whether adapters are saved a second time as a whole model with them added.
    validation_share: The part of the records of `train_data` that is held out for validation, if `validation_data` has
      no input_path; null: 0.1 in modes that evaluate, none in `train`. Built-in data have a separate part.
    completions: Answers to validation prompts: logs during training, metrics in evaluations.
    train_data: The training data; without an `input_path`: built-in data.
    validation_data: The evaluation data.

  Example:

    >>> config = ext.FineTuningConfig({'model_path': 'bases/tiny', 'lora': {'r': 16}})
    >>> config.lora.r
    16
  """

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'frozen_dtype': _DTYPES}
  RANGES: ClassVar[Mapping[str, str]] = {'validation_share': '[0, 1)'}

  model_path: str = ''
  model: decoder_config.DecoderConfig = dataclasses.field(default_factory=decoder_config.DecoderConfig)
  tokenizer_path: str = ''
  use_lora: bool | None = None
  lora: lora_lib.LoraConfig = dataclasses.field(default_factory=lora_lib.LoraConfig)
  load_in_4bit: bool = False
  quantization: quantized_linear.QuantizationConfig = dataclasses.field(
    default_factory=quantized_linear.QuantizationConfig
  )
  frozen_dtype: str = ''
  losses: weighted_losses.LossesConfig = dataclasses.field(default_factory=weighted_losses.LossesConfig)
  output_dir: str = ''
  save_merged: bool = False
  validation_share: float | None = None
  completions: completions_lib.CompletionsConfig = dataclasses.field(default_factory=completions_lib.CompletionsConfig)
  train_data: text_task.TextDataConfig = dataclasses.field(default_factory=lambda: _data(True))
  validation_data: text_task.TextDataConfig = dataclasses.field(default_factory=lambda: _data(False))

  @property
  def trains_adapters(self) -> bool:
    """Whether adapters are trained, and everything else is frozen."""
    return bool(self.model_path) if self.use_lora is None else self.use_lora

  @property
  def is_unpaired(self) -> bool:
    """Whether an example is one answer with a label: override it in a task that learns from labels."""
    return False

  @property
  def sets_lora(self) -> bool:
    """Whether `lora` is other than the experiment has it."""
    return self.lora.as_dict() != type(self)().lora.as_dict()

  def frozen_kernels(self) -> quantized_linear.QuantizationConfig:
    """How the frozen kernels are kept, with `load_in_4bit`."""
    if not self.load_in_4bit:
      return self.quantization
    return dataclasses.replace(self.quantization, method='nf4')

  def check_values(self, path: str) -> None:
    """See `checks.check`."""
    with errors.Mistakes() as mistakes:
      for refuse in (self._check_adapters, self._check_frozen, self._check_model, self._check_formats):
        mistakes.check(refuse, path)

  def _check_adapters(self, path):
    if self.use_lora and not self.model_path:
      raise errors.UserError(f'{path}.use_lora: adapters require a trained model: set {path}.model_path')
    if self.save_merged and not self.trains_adapters:
      raise errors.UserError(f'{path}.save_merged: there are no adapters; a whole model is saved anyway')
    if self.sets_lora and not self.trains_adapters:
      needed = f'{path}.use_lora=true' if self.model_path else f'{path}.model_path'
      raise errors.UserError(f'{path}.lora: no adapters are trained, which need {needed}')

  def _check_model(self, path):
    """A new decoder that could not be saved at the end is not trained."""
    if self.model_path:
      return
    try:
      self.model.check_values('')
    except errors.UserError:  # Which it reports itself.
      return
    try:
      pretrained.check_saves(self.model)
    except errors.UserError as error:
      raise errors.UserErrors([f'{path}.model.{line}' for line in errors.lines_of(error)]) from error

  def _check_frozen(self, path):
    if self.load_in_4bit and self.quantization.method == 'int8':
      raise errors.UserError(f'{path}.load_in_4bit: contradicts {path}.quantization.method=int8')
    for field, is_set in (
      ('load_in_4bit', self.load_in_4bit),
      ('quantization.method', self.quantization.method != 'none'),
      ('frozen_dtype', bool(self.frozen_dtype)),
    ):
      if is_set and not self.trains_adapters:
        needed = f'set {path}.use_lora=true' if self.model_path else f'set {path}.model_path'
        raise errors.UserError(f'{path}.{field}: is for frozen weights, and all weights are trained; {needed}')

  def _check_formats(self, path):
    """Undesirable answers are not to be learned by a task that ignores the labels."""
    for name in ('train_data', 'validation_data'):
      if getattr(self, name).example_format == 'unpaired' and not self.is_unpaired:
        raise errors.UserError(
          f'{path}.{name}.example_format: unpaired is for the experiment preference with {path}.loss_type=kto; set it, '
          'or another format'
        )


def _pairs(is_training: bool, batch_size: int) -> text_task.TextDataConfig:
  return text_task.TextDataConfig(
    is_training=is_training,
    global_batch_size=batch_size,
    seq_length=128,
    example_format='preference',
    # An example that is left out at the end of an epoch is not lost; one of an evaluation is.
    drop_remainder=is_training,
  )


@dataclasses.dataclass
class PairsConfig(FineTuningConfig):
  """One answer to a prompt is better than another. Without a `model_path`: a small new decoder.

  Attributes:
    train_data: Prompts, each with a chosen and a rejected answer. Without an `input_path`: docstrings of Python's.
    validation_data: The same, of other functions.

  Example:

    >>> config = ext.PairsConfig({'model_path': 'bases/tiny'})
    >>> config.model_path
    'bases/tiny'
  """

  model: decoder_config.DecoderConfig = dataclasses.field(
    default_factory=lambda: decoder_config.DecoderConfig(
      vocab_size=2048, hidden_size=128, intermediate_size=344, num_hidden_layers=2, max_position_embeddings=512
    )
  )
  train_data: text_task.TextDataConfig = dataclasses.field(default_factory=lambda: _pairs(True, 8))
  validation_data: text_task.TextDataConfig = dataclasses.field(default_factory=lambda: _pairs(False, 32))
