"""From patterns to layouts: which axis of a mesh splits which dimension of a tensor, by the tensor's name.

Pure functions of names, shapes and sizes; nothing here knows of devices.
"""

from collections.abc import Iterable, Mapping, Sequence
import re

from official_ext.base import errors
from official_ext.base import suggestions
from official_ext.training.config import mesh_config

PARAMETERS = 'trainer.sharding.parameters'
ACTIVATIONS = 'trainer.sharding.activations'

Rules = Sequence[mesh_config.ShardingRuleConfig]
Axes = tuple[str, ...]  # Of each dimension, '' for one that is not split.


def index_of_rule(rules: Rules, name: str) -> int | None:
  """Which rule is the first whose pattern matches a name; None if none does."""
  return next((index for index, rule in enumerate(rules) if re.search(rule.pattern, name)), None)


def axes_of(
  rule: mesh_config.ShardingRuleConfig, shape: Sequence[int | None], sizes: Mapping[str, int], where: str
) -> Axes:
  """The axes of all dimensions of a tensor.

  Args:
    rule: the rule that holds for it.
    shape: its shape; None for a size that is not known, which no axis may split.
    sizes: of the axes of the mesh.
    where: the beginning of a message: the dotted path of the rule, and the name of the tensor.

  Raises:
    UserError: the rule does not fit the shape.
  """
  if len(rule.axes) > len(shape):
    raise errors.UserError(
      f'{where} has the shape {_shown(shape)}, and axes for {len(rule.axes)} dimensions are given: {_shown(rule.axes)}'
    )
  named = (*rule.axes, *[''] * (len(shape) - len(rule.axes)))
  axes = tuple(mesh_config.axis_in(sizes, axis) for axis in named)
  for number, (axis, size) in enumerate(zip(axes, shape)):
    if axis and (size is None or size % sizes[axis]):
      raise errors.UserError(
        f'{where} has the shape {_shown(shape)}: dimension {number} cannot be split evenly over {axis}={sizes[axis]}'
      )
  return axes


def parameter_axes(rules: Rules, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> dict[str, Axes]:
  """The axes of all parameters that a rule holds for.

  Args:
    rules: `trainer.sharding.parameters`.
    shapes: of all parameters, by name.
    sizes: of the axes of the mesh.

  Raises:
    UserError: a pattern matches no parameter that is left by those before it, or a rule does not fit a shape.
  """
  indices = {name: index_of_rule(rules, name) for name in shapes}
  check_matches(rules, shapes, {index for index in indices.values() if index is not None}, PARAMETERS)
  return {
    name: axes_of(rules[index], shapes[name], sizes, f'{PARAMETERS}.{index}: {name}')
    for name, index in indices.items()
    if index is not None
  }


def check_matches(rules: Rules, names: Iterable[str], used: Iterable[int], path: str) -> None:
  """Checks that every rule is the first one that matches some name.

  Args:
    rules: of parameters or of activations.
    names: all that there are.
    used: the indices of the rules that hold for one of them.
    path: `PARAMETERS` or `ACTIVATIONS`.

  Raises:
    UserError: it names a pattern, and names that are near to it.
  """
  names, used = sorted(names), set(used)
  for index, rule in enumerate(rules):
    if index in used:
      continue
    where = f'{path}.{index}.pattern: {rule.pattern!r}'
    if any(re.search(rule.pattern, name) for name in names):
      raise errors.UserError(f'{where} matches only names that patterns before it match')
    kind = 'parameter' if path == PARAMETERS else 'layer'
    near = nearest_names(rule.pattern, names)
    told = f'near are {", ".join(near)}' if near else f'there are {", ".join(names[:6])}{", ..." * (len(names) > 6)}'
    raise errors.UserError(f'{where} matches no {kind}; {told}')


def nearest_names(pattern: str, names: Sequence[str], count: int = 3) -> list[str]:
  """The names whose parts are most similar to a pattern, such as '.../q_proj/kernel' for 'q_prj/kernel$'."""
  text = re.sub(r'\\.|[\^$*+?(){}|\[\]]', '', pattern).replace('.', '').strip('/')
  length = text.count('/') + 1
  parts: dict[str, str] = {}  # Part of a name -> the first name that has it.
  for name in names:
    words = name.split('/')
    for start in range(max(1, len(words) - length + 1)):
      parts.setdefault('/'.join(words[start : start + length]), name)
  found = [parts[part] for part in suggestions.nearest(text, parts, count)]
  return list(dict.fromkeys(found))


def slot_axes(name: str, shape: Sequence[int], parameters: Mapping[str, tuple[Sequence[int], Axes]]) -> Axes:
  """The axes of a variable that is not a parameter: those of the parameter that it belongs to.

  An optimizer names its slots after the parameter: 'Adam/m/dense/kernel' or 'dense/kernel/m'.

  Args:
    name: the variable's.
    shape: its shape.
    parameters: name -> (shape, axes) of all parameters that are split.

  Returns:
    The axes; all '' if no parameter of this shape is in the name.
  """
  inside = f'/{name}/'
  owners = [
    owner for owner, (of_owner, _) in parameters.items() if f'/{owner}/' in inside and tuple(of_owner) == tuple(shape)
  ]
  return parameters[max(owners, key=len)][1] if owners else ('',) * len(shape)


def _shown(values: Sequence[object]) -> str:
  return f'[{", ".join("" if value is None else str(value) or repr("") for value in values)}]'
