"""Configures model parallelism: a mesh of devices, and the tensors split over its axes. See docs/how_to/mesh.md."""

from collections.abc import Mapping
import dataclasses
import math
import re
from typing import Any, ClassVar

from official_ext.base import base_config
from official_ext.base import errors

AXES = ('data', 'fsdp', 'tensor', 'expert', 'context')
BATCH_AXES = ('data', 'fsdp')
_WITHOUT_MESH = 'set the size of at least one axis of runtime.mesh, such as runtime.mesh.tensor=2'


@dataclasses.dataclass
class MeshConfig(base_config.Config):
  """Devices as a grid, over whose axes batches, parameters and activations are split. No axis: there is no mesh.

  The names of the axes give their purpose. Batches are split over `data` and `fsdp`; `trainer.sharding` defines all
  else.

  Attributes:
    data: The number of parts into which batches are split. 0, here and below: there is no such axis.
    fsdp: The same, of an axis over which parameters are split too. With `data`, both above 1, parameters are split over
      data x fsdp parts.
    tensor: The size of the axis for parts of matrices.
    expert: The size of the axis for the experts of a layer.
    context: The size of the axis for parts of a sequence.
  """

  RANGES: ClassVar[Mapping[str, str]] = dict.fromkeys(AXES, '[0, inf)')

  data: int = 0
  fsdp: int = 0
  tensor: int = 0
  expert: int = 0
  context: int = 0

  def given(self) -> dict[str, int]:
    """The axes that are set, in the order of `AXES`, with their sizes; {} without a mesh."""
    return {name: getattr(self, name) for name in AXES if getattr(self, name)}

  def sizes(self) -> dict[str, int]:
    """The axes of the devices: `given`, of which `data` and `fsdp` are one if both are above 1. See `axis_in`."""
    sizes = self.given()
    if self.data > 1 and self.fsdp > 1:
      sizes['fsdp'] *= sizes.pop('data')
    return sizes

  def num_devices(self) -> int:
    """The devices of the mesh; 0 without one."""
    sizes = self.sizes()
    return math.prod(sizes.values()) if sizes else 0

  def batch_axis(self) -> str:
    """The axis over which batches are split; '' for none."""
    sizes = self.sizes()
    return max((name for name in BATCH_AXES if name in sizes), key=lambda name: sizes[name], default='')

  def check_run(self, path: str, params: Any, mode: str | None) -> None:
    """See `checks.check`."""
    if not self.sizes():
      return
    runtime, trainer = params.runtime, params.trainer
    with errors.Mistakes() as mistakes:
      for field, value, allowed, reason in (
        ('runtime.distribution_strategy', runtime.distribution_strategy, ('auto', 'one_device'), 'is one process'),
        ('runtime.enable_xla', runtime.enable_xla, ('auto', False), 'is not compiled by XLA'),
        ('runtime.loss_scale', runtime.loss_scale, (None,), 'does not scale losses'),
        (
          'runtime.mixed_precision_dtype',
          runtime.mixed_precision_dtype,
          (None, 'auto', 'float32', 'bfloat16'),
          'does not scale losses, as float16 needs it',
        ),
        ('trainer.inspect.every', trainer.inspect.every, (0,), 'cannot rehearse steps'),
        ('trainer.train_tf_function', trainer.train_tf_function, (True,), 'runs its steps as functions'),
        ('trainer.train_tf_while_loop', trainer.train_tf_while_loop, (True,), 'has its own loop'),
        ('trainer.steps_per_execution', trainer.steps_per_execution, (0, 1), 'runs one step at a time'),
      ):
        with mistakes.noted():
          if value not in allowed:
            choices = ' or '.join('null' if choice is None else str(choice).lower() for choice in allowed)
            raise errors.UserError(f'{field}: {value!r}: a mesh ({path}) {reason}; set it to {choices}')


def describe(sizes: Mapping[str, int]) -> str:
  """The axes of a mesh for people: 'data 2 x tensor 4'."""
  return ' x '.join(f'{name} {size}' for name, size in sizes.items())


def axis_in(sizes: Mapping[str, int], axis: str) -> str:
  """The axis of a mesh that a name of a rule means.

  DTensor splits the examples over one axis, so that `data` and `fsdp` are one, named fsdp, if both are above 1.

  Args:
    sizes: `MeshConfig.sizes()`.
    axis: a name; '' for none.
  """
  return 'fsdp' if axis == 'data' and axis not in sizes else axis


@dataclasses.dataclass
class ShardingRuleConfig(base_config.Config):
  """How tensors are split whose names a pattern matches.

  Attributes:
    pattern: A regular expression, searched for in the names.
    axes: For each dimension the axis of the mesh over which it is split, '' for none. Dimensions that are not listed
      are not split.
  """

  pattern: str = ''
  axes: tuple[str, ...] = ()

  def check_values(self, path: str) -> None:
    """See `checks.check`."""
    if not self.pattern:
      raise errors.UserError(f'{path}.pattern: is empty; name the weights to split')
    try:
      re.compile(self.pattern)
    except re.error as error:
      raise errors.UserError(f'{path}.pattern: {self.pattern!r} is not a regular expression: {error}') from error
    for index, axis in enumerate(self.axes):
      if axis and axis not in AXES:
        hint = errors.did_you_mean(axis, AXES, after=' ')
        raise errors.UserError(f"{path}.axes.{index}: {axis!r}: {hint}expected '' or one of {', '.join(AXES)}")
      if axis and axis in self.axes[:index]:
        raise errors.UserError(f'{path}.axes.{index}: {axis!r} splits another dimension already')


@dataclasses.dataclass
class ShardingConfig(base_config.Config):
  """The tensors split over the axes of `runtime.mesh`. Of several patterns that match a name, the first counts.

  Attributes:
    parameters: Of the model's variables, by their names ('dense/kernel'). The optimizer's follow them. Without a
      matching pattern, a variable is whole on every device.
    activations: Of the outputs of layers, by their paths ('encoder/dense'). DTensor chooses where no pattern matches.
  """

  parameters: tuple[ShardingRuleConfig, ...] = ()
  activations: tuple[ShardingRuleConfig, ...] = ()

  def check_run(self, path: str, params: Any, mode: str | None) -> None:
    """See `checks.check`."""
    given, sizes = params.runtime.mesh.given(), params.runtime.mesh.sizes()
    for name in ('parameters', 'activations'):
      for index, rule in enumerate(getattr(self, name)):
        rule_path = f'{path}.{name}.{index}'
        if not sizes:
          raise errors.UserError(f'{rule_path}: there is no mesh; {_WITHOUT_MESH}')
        for number, axis in enumerate(rule.axes):
          if axis and axis not in given:
            raise errors.UserError(
              f'{rule_path}.axes.{number}: the mesh has no axis {axis!r}, only {", ".join(given)}; set '
              f'runtime.mesh.{axis}, to 1 if it is not to split anything'
            )
        if 'data' not in sizes and {'data', 'fsdp'} <= set(rule.axes):
          raise errors.UserError(
            f'{rule_path}.axes: names data and fsdp, which are one axis of {sizes["fsdp"]} devices if both are above '
            '1; name one of them'
          )
