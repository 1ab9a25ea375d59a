"""Which numbers have a meaning in a configuration.

A configuration class states the ranges of its fields in `RANGES`, a mapping from names to intervals as mathematics
writes them: `[1, inf)`, `(0, 1]`, `[0, inf]` if infinity is meant too. The ranges of Model Garden's classes are in this
module. A field's range applies to each number of a list. NaN is in no range.
"""

from collections.abc import Iterator, Mapping
import functools
import math
import re
from typing import Any, NamedTuple

from official.core import config_definitions as cfg
from official.modeling import optimization
from official.modeling.hyperparams import base_config
from official.modeling.optimization.configs import learning_rate_config as rates
from official.modeling.optimization.configs import optimizer_config as optimizers

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.training.config import overrides

_NOT_NEGATIVE = '[0, inf)'
_POSITIVE = '(0, inf)'
_MOMENT = '[0, 1)'  # A bias correction divides by one minus it.
_BATCH = '(-inf, 2147483647]'  # Shapes and indices of many operations have 32 bits.


def _of_optimizer(**more: str) -> dict[str, str]:
  """The ranges of fields that optimizers have in common, and of `more`."""
  return {
    **dict.fromkeys(('beta_1', 'beta_2', 'beta1'), _MOMENT),
    **dict.fromkeys(
      (
        'epsilon',
        'epsilon1',
        'epsilon2',
        'epsilon_1',
        'epsilon_2',
        'weight_decay',
        'weight_decay_rate',
        'decay',
        'learning_rate',
      ),
      _NOT_NEGATIVE,
    ),
    **dict.fromkeys(('clipnorm', 'clipvalue', 'global_clipnorm', 'gradient_clip_norm'), '[0, inf]'),
    'momentum': '[0, 1]',
    **more,
  }


def _of_schedule(**more: str) -> dict[str, str]:
  """The ranges of fields that schedules have in common, and of `more`."""
  return {
    **dict.fromkeys(
      (
        'learning_rate',
        'initial_learning_rate',
        'maximal_learning_rate',
        'end_learning_rate',
        'warmup_learning_rate',
        'pre_offset_learning_rate',
        'values',
        'boundaries',
        'decay_rate',
        'alpha',
        'warmup_steps',
      ),
      _NOT_NEGATIVE,
    ),
    **dict.fromkeys(('decay_steps', 'total_decay_steps', 'first_decay_steps'), _POSITIVE),
    'power': '(-inf, inf)',
    **more,
  }


_OF_MODEL_GARDEN: Mapping[type[base_config.Config], Mapping[str, str]] = {
  cfg.DataConfig: {
    'global_batch_size': _BATCH,
    'shuffle_buffer_size': _NOT_NEGATIVE,
    'cycle_length': '[-1, inf)',
    'block_length': '[1, inf)',
    'ram_budget': _NOT_NEGATIVE,
    'prefetch_buffer_size': '[-1, inf)',
  },
  optimizers.BaseOptimizerConfig: _of_optimizer(),
  optimizers.RMSPropConfig: _of_optimizer(rho='[0, 1]'),
  optimizers.AdagradConfig: _of_optimizer(initial_accumulator_value=_NOT_NEGATIVE),
  optimizers.LARSConfig: _of_optimizer(eeta=_POSITIVE),
  optimizers.SLIDEConfig: _of_optimizer(sparse_layer_learning_rate=_NOT_NEGATIVE, ratio_clip_norm=_NOT_NEGATIVE),
  optimizers.AdafactorConfig: _of_optimizer(
    decay_rate=_NOT_NEGATIVE, clipping_threshold=_POSITIVE, min_dim_size_to_factor=_NOT_NEGATIVE
  ),
  optimizers.AdafactorKerasConfig: _of_optimizer(beta_2_decay='(-inf, 0]', clip_threshold=_POSITIVE),
  optimization.EMAConfig: _of_optimizer(average_decay='[0, 1]', start_step=_NOT_NEGATIVE),
  **{
    schedule: _of_schedule()
    for schedule in (
      rates.ConstantLrConfig,
      rates.StepwiseLrConfig,
      rates.ExponentialLrConfig,
      rates.PolynomialLrConfig,
      rates.CosineLrConfig,
      rates.DirectPowerLrConfig,
      rates.PowerDecayWithOffsetLrConfig,
      rates.StepCosineLrConfig,
      rates.LinearWarmupConfig,
      rates.PolynomialWarmupConfig,
    )
  },
  rates.PowerAndLinearDecayLrConfig: _of_schedule(linear_decay_fraction='(0, 1]'),
}


class Interval(NamedTuple):
  """The numbers from `least` to `most`.

  Attributes:
    least: the lower end.
    most: the upper end.
    has_least: whether the lower end belongs to it.
    has_most: whether the upper end belongs to it.
  """

  least: float
  most: float
  has_least: bool
  has_most: bool

  def __contains__(self, number: Any) -> bool:
    above = number >= self.least if self.has_least else number > self.least
    return above and (number <= self.most if self.has_most else number < self.most)

  def describe(self) -> str:
    """The expected values, in words: `at least 1`, `more than 0`, `0 to 1`, `between 0 and 1`."""
    if math.isinf(self.most) and math.isinf(self.least):
      return 'a number' if self.has_most else 'a finite number'
    least, most = f'{self.least:g}', f'{int(self.most)}' if float(self.most).is_integer() else f'{self.most:g}'
    if math.isinf(self.most):
      return f'at least {least}' if self.has_least else f'more than {least}'
    if math.isinf(self.least):
      return f'at most {most}' if self.has_most else f'less than {most}'
    if self.has_least == self.has_most:
      return f'{least} to {most}' if self.has_least else f'between {least} and {most}'
    return f'at least {least} and less than {most}' if self.has_least else f'more than {least} and at most {most}'


@functools.cache
def interval(text: str) -> Interval:
  """Reads an interval: `[0, 1)`.

  Raises:
    ValueError: it is not an interval.
  """
  match = re.fullmatch(r'([\[(])([^,\s]+), ([^,\s]+)([\])])', text)
  if match is None:
    raise ValueError(f'{text!r} is not an interval, such as [0, 1)')
  left, least, most, right = match.groups()
  return Interval(float(least), float(most), left == '[', right == ']')


@functools.cache
def of_class(config_class: type) -> Mapping[str, str]:
  """The ranges of a configuration class's fields, including its bases: name -> interval."""
  ranges: dict[str, str] = {}
  for cls in reversed(config_class.__mro__):
    ranges.update(_OF_MODEL_GARDEN.get(cls, {}))
    ranges.update(vars(cls).get('RANGES', {}))
  return ranges


def check(params: base_config.Config, path: str = '') -> None:
  """Checks the numbers of a configuration, at all depths, except for alternatives that are not selected.

  Args:
    params: the configuration.
    path: its dotted path.

  Raises:
    UserError: naming all numbers that are out of range.
  """
  with errors.Mistakes() as mistakes:
    for field in overrides.leaves(params, path):
      owner: object = type(field.owner)
      text = of_class(owner).get(field.name)
      for number in _numbers(field.value) if text else ():
        with mistakes.noted():
          if number not in interval(text):
            finite = 'a finite number, ' if math.isinf(number) and not math.isinf(interval(text).least) else ''
            raise errors.UserError(f'{field.path}: expected {finite}{interval(text).describe()}, got {number}')


def _numbers(value: object) -> Iterator[float]:
  if isinstance(value, (list, tuple)):
    for element in value:
      yield from _numbers(element)
  elif json_values.is_number(value):
    yield value
