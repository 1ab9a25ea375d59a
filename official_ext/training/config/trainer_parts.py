"""The configurations of small parts of the training loop, each with its checks.

A part is one class: its fields, which values they take (`RANGES` and `CHOICES`, see checks.py), the combinations of
fields that it refuses (`check_values`), and the runs that it refuses (`check_run`).
"""

from collections.abc import Mapping
import dataclasses
from typing import Any, ClassVar

from official_ext.base import base_config
from official_ext.base import errors
from official_ext.base.run_folder import better


@dataclasses.dataclass
class NonfiniteConfig(base_config.Config):
  """The reaction to steps whose loss or gradients are not finite; they leave the weights unchanged.

  Attributes:
    max_skips: How many such steps are allowed since the start or the last rollback.
    then: The reaction to one more: 'stop' ends the run, 'rollback' goes back to the newest checkpoint from before the
      trouble, and continues from there with the batches that follow it.
    max_rollbacks: How many rollbacks are allowed; one more ends the run.
  """

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'then': ('stop', 'rollback')}
  RANGES: ClassVar[Mapping[str, str]] = dict.fromkeys(('max_skips', 'max_rollbacks'), '[0, inf)')

  max_skips: int = 10
  then: str = 'stop'
  max_rollbacks: int = 3


@dataclasses.dataclass
class LossSpikeConfig(base_config.Config):
  """When a loss is so high that its step is treated as one that is not finite: see `nonfinite`.

  Attributes:
    factor: A loss above `factor` times the median of the losses before it is a spike. 0: no loss is one.
    window: The number of losses in that median, 128 at most. No loss is a spike before that many steps.
  """

  MAX_WINDOW: ClassVar[int] = 128

  factor: float = 0.0
  window: int = 100

  def check_values(self, path: str) -> None:
    """See `checks.check`."""
    if self.factor and not self.factor > 1:
      raise errors.UserError(f'{path}.factor: expected more than 1, or 0 for no rule, got {self.factor}')
    if not 1 <= self.window <= self.MAX_WINDOW:
      raise errors.UserError(f'{path}.window: expected 1 to {self.MAX_WINDOW}, got {self.window}')


@dataclasses.dataclass
class _WatchedMetric(base_config.Config):
  """A metric of the evaluation and its better direction."""

  CHOICES: ClassVar[Mapping[str, tuple[object, ...]]] = {'mode': ('auto', 'max', 'min')}

  metric: str = ''
  mode: str = 'auto'

  def check_values(self, path: str) -> None:
    """See `checks.check`."""
    if self.metric and self.mode in ('auto', 'max', 'min'):
      try:
        better.mode_of(self.metric, self.mode)
      except ValueError as error:
        raise errors.UserError(f'{path}.mode: {error}') from error


@dataclasses.dataclass
class EarlyStoppingConfig(_WatchedMetric):
  """When training ends before `train_steps`: a metric has stopped improving.

  Attributes:
    metric: A metric of the evaluation; `|` separates the levels of nested logs. Empty: training does not stop early.
    mode: 'max' or 'min': the better direction. 'auto': as the metric's name says: 'min' for a loss or an error, 'max'
      for an accuracy and similar.
    patience: The number of evaluations in a row without an improvement that ends training.
    min_delta: The least change that counts as an improvement.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'patience': '[1, inf)', 'min_delta': '[0, inf)'}

  patience: int = 5
  min_delta: float = 0.0


@dataclasses.dataclass
class ReduceLROnPlateauConfig(_WatchedMetric):
  """When the learning rate is lowered: a metric has stopped improving. As tf_keras' callback of that name.

  Attributes:
    metric: A metric of the evaluation; `|` separates the levels of nested logs. Empty: the learning rate follows its
      schedule alone.
    mode: 'max' or 'min': the better direction. 'auto': as the metric's name says: 'min' for a loss or an error, 'max'
      for an accuracy and similar.
    factor: The factor of the learning rate, constant or of a schedule.
    patience: The number of evaluations in a row without an improvement after which that is done.
    min_delta: The least change that counts as an improvement.
    cooldown: The number of evaluations after a reduction that do not count.
    min_lr: The learning rate below which it is not lowered.
  """

  RANGES: ClassVar[Mapping[str, str]] = {
    'factor': '(0, 1)',
    **dict.fromkeys(('patience', 'cooldown', 'min_delta', 'min_lr'), '[0, inf)'),
  }

  factor: float = 0.1
  patience: int = 10
  min_delta: float = 1e-4
  cooldown: int = 0
  min_lr: float = 0.0


@dataclasses.dataclass
class InspectConfig(base_config.Config):
  """The statistics of the inside of a step in TensorBoard, under `inspect/` of the training curves.

  Attributes:
    every: The number of steps between two inspections. 0: none. If a program runs several steps, the first step of a
      program that contains a multiple of this number is inspected.
    activations: Whether to show mean, standard deviation, fraction of zeros and maximum of the outputs of layers.
    histograms: Whether to show histograms of weights, gradients and activations.
    layers: Patterns, such as 'encoder/*', of the names of the layers to show; none for all.
  """

  RANGES: ClassVar[Mapping[str, str]] = {'every': '[0, inf)'}

  every: int = 0
  activations: bool = True
  histograms: bool = False
  layers: tuple[str, ...] = ()

  def check_run(self, path: str, params: Any, mode: str | None) -> None:
    """See `checks.check`."""
    if self.every and (mode is None or 'train' in mode) and 'tensorboard' not in params.trainer.writers:
      raise errors.UserError(
        f'{path}.every: its values go to TensorBoard alone; add tensorboard to trainer.writers, or set it to 0'
      )
