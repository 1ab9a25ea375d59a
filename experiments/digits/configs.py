"""Configuration of the experiment `digits`."""

from collections.abc import Mapping
import dataclasses
from typing import ClassVar

from official.modeling.hyperparams import base_config

import official_ext as ext

NUM_CLASSES = 10
MAX_PIXEL = 16


@dataclasses.dataclass
class DigitsModelConfig(base_config.Config):
  """The convolutional network.

  Attributes:
    filters: Output channels of each 3x3 convolution.
    hidden_size: Units of the dense layer before the last.
    dropout_rate: The fraction of units that is dropped before each dense layer.
  """

  RANGES = {'filters': '[1, inf)', 'hidden_size': '[1, inf)', 'dropout_rate': '[0, 1)'}

  filters: tuple[int, ...] = (32, 64)
  hidden_size: int = 128
  dropout_rate: float = 0.25


@dataclasses.dataclass
class DigitsDataConfig(ext.DataConfig):
  """A split of the TFDS builder `digits`."""

  UNREAD_FIELDS: ClassVar[Mapping[str, str]] = {
    **ext.DataConfig.UNREAD_FIELDS,
    'input_path': 'set tfds_name, tfds_split and tfds_data_dir instead',
  }


@dataclasses.dataclass
class DigitsTaskConfig(ext.TaskConfig):
  """Classification of handwritten digits.

  Attributes:
    model: The network.
    train_data: The training split.
    validation_data: The validation split.
  """

  model: DigitsModelConfig = dataclasses.field(default_factory=DigitsModelConfig)
  train_data: DigitsDataConfig = dataclasses.field(
    default_factory=lambda: DigitsDataConfig(
      tfds_name='digits', tfds_split='train', global_batch_size=64, is_training=True
    )
  )
  validation_data: DigitsDataConfig = dataclasses.field(
    default_factory=lambda: DigitsDataConfig(
      tfds_name='digits', tfds_split='validation', global_batch_size=120, is_training=False
    )
  )


@ext.register_experiment('digits')
def digits() -> ext.ExperimentConfig:
  """A small convolutional network on scikit-learn's 1,797 handwritten digits.

  Command: python train.py --experiment=digits --mode=train_and_eval --model_dir=runs/digits
  Hardware and time: 2 CPU cores, 16 seconds, start-up included.
  Result: validation accuracy 99.2 %, 99.2 % and 98.9 % with seeds 0, 1 and 2.
  Reference: scikit-learn's support vector machine (gamma 0.256, pixels of 0 to 1) reaches 99.2 % on the same split.
  """
  num_steps = 600
  return ext.ExperimentConfig(
    task=DigitsTaskConfig(),
    trainer=ext.TrainerConfig(
      train_steps=num_steps,
      steps_per_loop=50,
      summary_interval=50,
      validation_interval=100,
      checkpoint_interval=100,
      best_checkpoint_export_subdir='best',
      best_checkpoint_eval_metric='accuracy',
      best_checkpoint_metric_comp='higher',
      optimizer_config=ext.OptimizationConfig(
        {
          'optimizer': {'type': 'adamw_experimental', 'adamw_experimental': {'weight_decay': 0.01}},
          'learning_rate': {
            'type': 'cosine',
            'cosine': {'initial_learning_rate': 2e-3, 'decay_steps': num_steps},
          },
          'warmup': {'type': 'linear', 'linear': {'warmup_steps': 50}},
        }
      ),
    ),
  )
