"""What an optimizer_config's values must satisfy beyond their types."""

from collections.abc import Iterable, Sequence
import re
from typing import Any

from official_ext import errors
from official_ext.optimization import configs
from official_ext.optimization import rounding
from official_ext.optimization import schedules
from official_ext.optimization import stable_adamw

_CHOICES = {
  'learning_rate.cyclical.mode': schedules.CYCLES,
  'learning_rate.one_cycle.anneal_strategy': schedules.ANNEAL_STRATEGIES,
  'learning_rate.warmup_stable_decay.decay_shape': schedules.DECAY_SHAPES,
  'optimizer.stable_adamw.slot_dtype': stable_adamw.SLOT_DTYPES,
  'optimizer.stable_adamw.slot_rounding': rounding.ROUNDINGS,
}


def check(config: configs.OptimizationConfig, path: str = 'trainer.optimizer_config') -> None:
  """Checks choices, patterns and what belongs together of what the configuration selects.

  Args:
    config: of optimizer and schedule.
    path: its dotted path.

  Raises:
    UserError: naming all fields that are wrong. Ranges are with the fields: see `RANGES` in configs.py.
  """
  if not isinstance(config, configs.OptimizationConfig):  # An experiment may have one of its own.
    return
  with errors.Mistakes() as mistakes:
    for name, choices in _CHOICES.items():
      for value in _selected(config, name):
        with mistakes.noted():
          if value not in choices:
            raise errors.UserError(f'{path}.{name}: expected {" or ".join(choices)}, got {value!r}')
    name = 'learning_rate.stepwise'
    for boundaries, values in zip(_selected(config, f'{name}.boundaries'), _selected(config, f'{name}.values')):
      with mistakes.noted():
        _check_pieces(boundaries, values, f'{path}.{name}')
    for value in _selected(config, 'optimizer.muon.adamw_patterns'):
      with mistakes.noted():
        _check_patterns(value, f'{path}.optimizer.muon.adamw_patterns')
    for index, group in enumerate(config.parameter_groups):
      with mistakes.noted():
        _check_group(group, f'{path}.parameter_groups.{index}')


def _selected(config: configs.OptimizationConfig, name: str) -> tuple[Any, ...]:
  """The value of a field, where the configuration selects what it belongs to; nothing elsewhere."""
  part, kind, field = name.split('.')
  chosen = getattr(config, part)
  return (getattr(chosen.get(), field),) if chosen.type == kind else ()


def _check_pieces(boundaries: Sequence[int] | None, values: Sequence[float] | None, path: str) -> None:
  if boundaries is None or values is None:  # That they must be set is told elsewhere.
    return
  if any(first >= second for first, second in zip(boundaries, boundaries[1:])):
    raise errors.UserError(f'{path}.boundaries: expected steps that increase, got {list(boundaries)}')
  if len(values) != len(boundaries) + 1:
    raise errors.UserError(
      f'{path}.values: expected {len(boundaries) + 1} of them for {len(boundaries)} boundaries, got {len(values)}'
    )


def _check_patterns(patterns: Iterable[str], path: str) -> None:
  for index, pattern in enumerate(patterns):
    try:
      re.compile(pattern)
    except re.error as error:
      raise errors.UserError(f'{path}.{index}: {pattern!r} is no regular expression: {error}') from error


def _check_group(group: configs.ParameterGroupConfig, path: str) -> None:
  if not group.patterns:
    raise errors.UserError(f'{path}.patterns: is empty; name the variables of the group')
  _check_patterns(group.patterns, f'{path}.patterns')
  if not group.learning_rate_scale > 0:
    raise errors.UserError(
      f'{path}.learning_rate_scale: expected more than 0, got {group.learning_rate_scale}; set frozen to leave '
      'variables as they are'
    )
  if group.frozen and (group.learning_rate_scale != 1 or not group.weight_decay):
    raise errors.UserError(f'{path}.frozen: is true, and so learning_rate_scale and weight_decay have no effect')
