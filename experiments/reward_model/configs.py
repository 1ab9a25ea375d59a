"""Configuration of the experiment `reward_model`."""

from collections.abc import Mapping
import dataclasses
from typing import ClassVar

import official_ext as ext

NUM_STEPS = 400


@dataclasses.dataclass
class RewardModelTaskConfig(ext.PairsConfig):
  """Which of two answers is better, as the difference of their scores.

  Attributes:
    center_rewards_coefficient: How much it costs if the scores of a pair do not sum to 0, squared: Eisenstein et al.
      2023, https://arxiv.org/abs/2312.09244, equation 2.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'center_rewards_coefficient': '[0, inf)'}

  center_rewards_coefficient: float = 0.0

  def check_values(self, path: str) -> None:
    """Refuses fields that a model of scores lacks: see base class."""
    super().check_values(path)
    named = ext.weighted_losses.selected(self.losses)
    if named:
      raise ext.UserError(f'{path}.losses.{named[0]}.weight: scores have one loss, that of their difference')
    if self.completions.is_used:
      raise ext.UserError(f'{path}.completions: a model of scores continues no text; unset it')
    if self.save_merged:
      raise ext.UserError(f'{path}.save_merged: the result is a whole model anyway, adapters merged')


@ext.register_experiment('reward_model')
def reward_model() -> ext.ExperimentConfig:
  """A model learns to score answers: higher for preferred ones.

  Command: python train.py --experiment=reward_model --mode=train_and_eval --model_dir=runs/reward_model
    --set=model_path=runs/sft/model --set=task.use_lora=false
  Hardware and time: 2 CPU cores that others used too, 4 minutes, start-up included.
  Result: accuracy 0.769 (best 0.783) on the 208 pairs that training has not seen, with Python 3.11; 0.5 by chance.
  Reference: 0.8197 by the words that question and answer share (benchmarks/preference.py).
  """
  task = RewardModelTaskConfig()
  task.train_data.global_batch_size = 16
  task.validation_data.global_batch_size = 64
  return ext.ExperimentConfig(
    task=task,
    runtime=ext.RuntimeConfig(mixed_precision_dtype='auto'),
    trainer=ext.TrainerConfig(
      train_steps=NUM_STEPS,
      steps_per_loop=20,
      summary_interval=20,
      validation_interval=100,
      checkpoint_interval=100,
      best_checkpoint_eval_metric='accuracy',
      best_checkpoint_metric_comp='higher',
      best_checkpoint_export_subdir='best',
      optimizer_config=ext.OptimizationConfig(
        {
          'optimizer': {
            'type': 'adamw_experimental',
            'adamw_experimental': {'weight_decay': 0.0, 'global_clipnorm': 1.0},
          },
          'learning_rate': {
            'type': 'cosine',
            'cosine': {'initial_learning_rate': 5e-4, 'decay_steps': NUM_STEPS},
          },
          'warmup': {'type': 'linear', 'linear': {'warmup_steps': 10}},
        }
      ),
    ),
  )


ext.parameter_names.register(
  'reward_model', refused={**ext.parameter_names.SAMPLES_NONE, **ext.parameter_names.HAS_TWO_ANSWERS}
)
