"""Configuration of the experiment `reward_model`."""

from collections.abc import Mapping
import dataclasses
from typing import ClassVar

import official_ext as ext


def _preferences(is_training: bool, batch_size: int) -> ext.TextDataConfig:
  return ext.TextDataConfig(
    is_training=is_training,
    global_batch_size=batch_size,
    seq_length=128,
    example_format='preference',
    drop_remainder=is_training,
  )


@dataclasses.dataclass
class RewardModelTaskConfig(ext.FineTuningConfig):
  """Which of two answers is better, as the difference of their scores.

  Attributes:
    center_rewards_coefficient: How much it costs if the scores of a pair do not sum to 0, squared: Eisenstein et al.
      2023, https://arxiv.org/abs/2312.09244, equation 2.
    train_data: Prompts, each with a chosen and a rejected answer. Without an `input_path`: docstrings of Python's.
    validation_data: The same, of other functions.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'center_rewards_coefficient': '[0, inf)'}

  center_rewards_coefficient: float = 0.0
  train_data: ext.TextDataConfig = dataclasses.field(default_factory=lambda: _preferences(True, 16))
  validation_data: ext.TextDataConfig = dataclasses.field(default_factory=lambda: _preferences(False, 64))
