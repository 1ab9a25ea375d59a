"""Configuration of the experiment `preference`."""

import dataclasses

import official_ext as ext


def _preferences(is_training: bool, batch_size: int) -> ext.TextDataConfig:
  return ext.TextDataConfig(
    is_training=is_training,
    global_batch_size=batch_size,
    seq_length=128,
    example_format='preference',
    # An example that is left out at the end of an epoch is no loss; one of an evaluation is.
    drop_remainder=is_training,
  )


@dataclasses.dataclass
class PreferenceTaskConfig(ext.FineTuningConfig):
  """One answer to a prompt is better than another.

  Attributes:
    losses: What is minimized: dpo, orpo, label, z_loss. DPO is dpo alone; ORPO is orpo and label, and needs no reference.
    label_on_prompt: Whether `label` is on the prompt of the better answer too, as in TRL's ORPO.
    train_data: Prompts, each with a chosen and a rejected answer. Without an `input_path`: docstrings of Python's.
    validation_data: The same, of other functions.
  """

  label_on_prompt: bool = False
  losses: ext.LossesConfig = dataclasses.field(default_factory=ext.LossesConfig)
  train_data: ext.TextDataConfig = dataclasses.field(default_factory=lambda: _preferences(True, 8))
  validation_data: ext.TextDataConfig = dataclasses.field(default_factory=lambda: _preferences(False, 32))

  def check_values(self, path: str) -> None:
    """Refuses losses that this task cannot compute: see base class."""
    super().check_values(path)
    ext.weighted_losses.check(self.losses, ('dpo', 'orpo', 'label', 'z_loss'), f'{path}.losses')
