"""Configuration of the experiment `sft`."""

from collections.abc import Mapping
import dataclasses
from typing import ClassVar

import official_ext as ext

NUM_STEPS = 400


def _data(is_training: bool, batch_size: int) -> ext.TextDataConfig:
  return ext.TextDataConfig(
    is_training=is_training,
    global_batch_size=batch_size,
    seq_length=256,
    packing='best_fit',
    use_chat_template=None,
  )


def _losses() -> ext.LossesConfig:
  losses = ext.LossesConfig()
  losses.label.weight = 1.0
  return losses


@dataclasses.dataclass
class SftTaskConfig(ext.FineTuningConfig):
  """Prompts and answers, conversations, or texts, that a language model learns to continue as they do.

  Attributes:
    token_average: The mean of the losses of an update, and of an evaluation: update, over all learned tokens, as TRL
      does; micro_batch, the mean of the micro-batches' means. `token_loss` counts every token the same in both.
    neftune_noise_alpha: The scale of uniform noise on the embeddings in training, such as 5; null: none. The noise is
      below alpha / sqrt(tokens * hidden_size) of each text: Jain et al. 2023, https://arxiv.org/abs/2310.05914.
    losses: The losses to minimize: label, z_loss, or both.
    train_data: Records with answers. Without an `input_path`: descriptions of the functions of Python's standard
      library.
    validation_data: Others. Without an `input_path`: a part of `train_data`; see `validation_share`.
  """

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'token_average': ('update', 'micro_batch')}
  RANGES: ClassVar[Mapping[str, str]] = {'neftune_noise_alpha': '(0, inf)'}

  token_average: str = 'update'
  neftune_noise_alpha: float | None = None
  model: ext.DecoderConfig = dataclasses.field(
    default_factory=lambda: ext.DecoderConfig(
      vocab_size=2048, hidden_size=128, intermediate_size=344, num_hidden_layers=2, max_position_embeddings=512
    )
  )
  lora: ext.LoraConfig = dataclasses.field(
    default_factory=lambda: ext.LoraConfig(r=8, lora_alpha=16.0, target_modules=('all-linear',))
  )
  losses: ext.LossesConfig = dataclasses.field(default_factory=_losses)
  train_data: ext.TextDataConfig = dataclasses.field(default_factory=lambda: _data(True, 2))
  validation_data: ext.TextDataConfig = dataclasses.field(default_factory=lambda: _data(False, 8))

  def check_values(self, path: str) -> None:
    """See base class."""
    super().check_values(path)
    ext.weighted_losses.check(self.losses, ('label', 'z_loss'), f'{path}.losses')


@ext.register_experiment('sft')
def sft() -> ext.ExperimentConfig:
  """Supervised fine-tuning of a language model, on prompts and answers: docs/how_to/fine_tune.md.

  Without arguments a new decoder learns to describe the functions of Python's standard library, from 23,000 tokens
  of answers. The text comes with Python and differs from one version to the next, and the figures with it.

  Command: python train.py --experiment=sft --mode=train_and_eval --model_dir=runs/sft --set=learning_rate=2e-3
  Hardware and time: 2 CPU cores that others used too, 161 seconds, start-up included.
  Result: 3.69 nats a token (token_loss) and mean_token_accuracy 0.370 with seed 0 and Python 3.11.
  Reference: a table of which token follows which, smoothed, has 3.88 and 30.1 % (benchmarks/sft.py).
  """
  return ext.ExperimentConfig(
    task=SftTaskConfig(),
    runtime=ext.RuntimeConfig(mixed_precision_dtype='auto'),
    trainer=ext.TrainerConfig(
      train_steps=NUM_STEPS,
      steps_per_loop=20,
      summary_interval=20,
      validation_interval=100,
      checkpoint_interval=100,
      gradient_accumulation_steps=2,
      optimizer_config=ext.OptimizationConfig(
        {
          'optimizer': {
            'type': 'adamw_experimental',
            'adamw_experimental': {'weight_decay': 0.0, 'global_clipnorm': 0.5},
          },
          'learning_rate': {
            'type': 'cosine',
            'cosine': {'initial_learning_rate': 5e-4, 'decay_steps': NUM_STEPS},
          },
          'warmup': {'type': 'linear', 'linear': {'warmup_steps': 2}},
        }
      ),
    ),
  )


ext.parameter_names.register('sft', refused=ext.parameter_names.SAMPLES_NONE)
