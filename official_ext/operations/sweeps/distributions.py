"""The parameters of a sweep, and how values are drawn for them: the distributions of Weights & Biases.

A value is a function of a position u in [0, 1]: the value that a share u of all draws lies below (its quantile). So a
uniform u gives a draw, and a sampler that searches the positions searches by the distribution of the file.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
import statistics
from typing import Any

from official_ext.base import errors
from official_ext.base import json_values

_EDGE = 1e-12  # The quantiles 0 and 1 of a normal distribution are not finite.


@dataclasses.dataclass(frozen=True)
class Parameter:
  """A parameter of a sweep.

  Attributes:
    name: a short name or a dotted path, as --set takes it.
    distribution: one of DISTRIBUTIONS.
    choices: of 'constant' and 'categorical': the values, as written in the file.
    probabilities: of the choices; () if all are equal.
    numbers: of the others, their parameters: min, max, q, mu, sigma, a, b.
  """

  name: str
  distribution: str
  choices: tuple[json_values.Json, ...] = ()
  probabilities: tuple[float, ...] = ()
  numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)

  @property
  def is_constant(self) -> bool:
    """Whether it has one value only, and nothing to search."""
    return len(self.choices) == 1

  @property
  def is_integer(self) -> bool:
    """Whether it is searched as an integer from min to max."""
    return self.distribution == 'int_uniform'

  def at(self, position: float) -> json_values.Json:
    """The value at a position from 0 to 1; an int where the distribution has ints alone."""
    if self.choices:
      return self.choices[self._choice(position)]
    value = DISTRIBUTIONS[self.distribution].value(position, self.numbers)
    if self.is_integer:
      return int(min(value, self.numbers['max']))
    step = self.numbers.get('q')
    if step is None:
      return value
    first, last = self._multiples(step)
    return _multiple(min(max(round(value / step), first), last), step)

  def grid(self) -> Sequence[object] | None:
    """All its values, in order; None if there are too many to try each."""
    if self.choices:
      return self.choices
    low, high = self.numbers.get('min', 0), self.numbers.get('max', 0)
    if self.is_integer:
      return range(int(low), int(high) + 1)
    if self.distribution == 'q_uniform':
      step = self.numbers['q']
      first, last = self._multiples(step)
      return [_multiple(number, step) for number in range(int(first), int(last) + 1)]
    return None

  def _multiples(self, step: float) -> tuple[float, float]:
    """The first and the last number whose product with a step is between the bounds; infinite without bounds."""
    return DISTRIBUTIONS[self.distribution].multiples(step, self.numbers)

  def extremes(self) -> list[json_values.Json]:
    """Values that represent the whole range: each choice, or both ends and one between them."""
    if self.choices:
      return list(self.choices)
    far = (0.0, 1.0) if 'min' in self.numbers else (0.01, 0.99)
    return [self.at(position) for position in (far[0], 0.381966, far[1])]

  def searched(self, position: float) -> float | int:
    """A position as a sampler has it: the number of a choice, an integer itself, or the position, of all others."""
    if self.choices:
      return self._choice(position)
    return self.at(position) if self.is_integer else position

  def value(self, searched: float | int) -> json_values.Json:
    """The value that `searched`, or a sampler's own choice like it, means."""
    if self.choices:
      return self.choices[int(searched)]
    return int(searched) if self.is_integer else self.at(float(searched))

  def search_of(self, value: Any) -> float | int | None:
    """The choice for a value, if that is unique: of choices and whole ranges; None otherwise."""
    if self.choices:
      texts = [repr(choice) for choice in self.choices]
      return texts.index(repr(value)) if repr(value) in texts else None
    if self.is_integer:
      return value
    if self.distribution == 'q_uniform' and self.numbers['max'] > self.numbers['min']:
      return min(max((value - self.numbers['min']) / (self.numbers['max'] - self.numbers['min']), 0.0), 1.0)
    return None

  def _choice(self, position: float) -> int:
    count = len(self.choices)
    if not self.probabilities:
      return min(int(position * count), count - 1)
    total = 0.0
    for index, share in enumerate(self.probabilities):
      total += share
      if position < total:
        return index
    return max(index for index, share in enumerate(self.probabilities) if share > 0)


def _multiple(number: float, step: float) -> float | int:
  """A multiple of a step without the noise of the product; an int if the step is one."""
  return int(number) * step if isinstance(step, int) else float(f'{number * step:.12g}')


def _uniform(u: float, of: Mapping[str, float]) -> float:
  return of['min'] + u * (of['max'] - of['min'])


def _log_uniform_values(u: float, of: Mapping[str, float]) -> float:
  return min(max(math.exp(_uniform(u, {name: math.log(of[name]) for name in ('min', 'max')})), of['min']), of['max'])


def _normal(u: float, of: Mapping[str, float]) -> float:
  if not of['sigma']:
    return of['mu']
  return statistics.NormalDist(of['mu'], of['sigma']).inv_cdf(min(max(u, _EDGE), 1 - _EDGE))


def _beta(u: float, of: Mapping[str, float]) -> float:
  from scipy import special  # pylint: disable=g-import-not-at-top  # It takes a while.

  return float(special.betaincinv(of['a'], of['b'], u))


@dataclasses.dataclass(frozen=True)
class Distribution:
  """How values are drawn.

  Attributes:
    value: (position, numbers) -> the value there, not rounded yet.
    needs: numbers that it must be given.
    defaults: numbers that it may be given.
    is_positive: whether min and max must be above 0.
    is_bounded: whether values have a least and a greatest one, at the positions 0 and 1.
  """

  value: Callable[[float, Mapping[str, float]], float]
  needs: tuple[str, ...] = ()
  defaults: Mapping[str, float] = dataclasses.field(default_factory=dict)
  is_positive: bool = False
  is_bounded: bool = True

  def multiples(self, step: float, numbers: Mapping[str, float]) -> tuple[float, float]:
    """The first and the last number whose product with a step is within the bounds; infinite without bounds.

    The first is above the last if no product is.
    """
    if not self.is_bounded:
      return -math.inf, math.inf
    low, high = (self.value(position, numbers) for position in (0.0, 1.0))
    return math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)


_RANGE = ('min', 'max')
_NORMAL = {'mu': 0.0, 'sigma': 1.0}
_BETA = {'a': 1.0, 'b': 1.0}
_STEP = {'q': 1}
_log_uniform = lambda u, of: math.exp(_uniform(u, of))
# In the inverse ones min and max are of log(1 / value): large positions, large values, as in the others.
_inverse_log_uniform = lambda u, of: math.exp(-_uniform(1 - u, of))
_log_normal = lambda u, of: math.exp(_normal(u, of))
# https://docs.wandb.ai/models/sweeps/sweep-config-keys: min and max of log_uniform are exponents of e.
DISTRIBUTIONS: Mapping[str, Distribution] = {
  'constant': Distribution(_uniform),
  'categorical': Distribution(_uniform),
  'int_uniform': Distribution(lambda u, of: math.floor(of['min'] + u * (of['max'] - of['min'] + 1)), _RANGE),
  'uniform': Distribution(_uniform, _RANGE),
  'q_uniform': Distribution(_uniform, _RANGE, _STEP),
  'log_uniform': Distribution(_log_uniform, _RANGE),
  'log_uniform_values': Distribution(_log_uniform_values, _RANGE, is_positive=True),
  'q_log_uniform': Distribution(_log_uniform, _RANGE, _STEP),
  'q_log_uniform_values': Distribution(_log_uniform_values, _RANGE, _STEP, is_positive=True),
  'inv_log_uniform': Distribution(_inverse_log_uniform, _RANGE),
  'inv_log_uniform_values': Distribution(_log_uniform_values, _RANGE, is_positive=True),
  'normal': Distribution(_normal, (), _NORMAL, is_bounded=False),
  'q_normal': Distribution(_normal, (), {**_NORMAL, **_STEP}, is_bounded=False),
  'log_normal': Distribution(_log_normal, (), _NORMAL, is_bounded=False),
  'q_log_normal': Distribution(_log_normal, (), {**_NORMAL, **_STEP}, is_bounded=False),
  'beta': Distribution(_beta, (), _BETA),
  'q_beta': Distribution(_beta, (), {**_BETA, **_STEP}),
}
_CHOICES = ('constant', 'categorical')
_KEYS = ('value', 'values', 'probabilities', 'distribution', 'parameters', *_RANGE, *_NORMAL, *_BETA, *_STEP)


def parse_all(values: object, path: str = 'parameters', prefix: str = '') -> list[Parameter]:
  """The parameters of a file, in its order; nested ones by dotted paths.

  Args:
    values: the mapping under `parameters`.
    path: of that, for messages.
    prefix: of the names.

  Raises:
    UserErrors: one line for each mistake.
  """
  if not isinstance(values, Mapping) or not values:
    raise errors.UserError(
      f'{path}: expected at least one parameter, NAME: {{values: [...]}} or {{min: ..., max: ...}}'
    )
  found: list[Parameter] = []
  with errors.Mistakes() as mistakes:
    for name, each in values.items():
      with mistakes.noted():
        if isinstance(each, Mapping) and 'parameters' in each:
          _refuse_others(each, ('parameters',), f'{path}.{name}')
          found += parse_all(each['parameters'], f'{path}.{name}.parameters', f'{prefix}{name}.')
        else:
          found.append(_parse(f'{prefix}{name}', each, f'{path}.{name}'))
  return found


def _parse(name: str, values: object, path: str) -> Parameter:
  if not isinstance(values, Mapping):
    raise errors.UserError(f'{path}: expected a mapping such as {{value: {values!r}}}, got {values!r}')
  _refuse_others(values, _KEYS, path)
  kind = values['distribution'] if 'distribution' in values else _default(values, path)
  if kind == 'categorical_w_probabilities':
    kind = 'categorical'
  if kind not in DISTRIBUTIONS:
    near = errors.did_you_mean(kind, DISTRIBUTIONS, before='; ')
    raise errors.UserError(f'{path}.distribution: {kind!r} is invalid{near}; choose one of {", ".join(DISTRIBUTIONS)}')
  if kind in _CHOICES:
    return _parse_choices(name, kind, values, path)
  distribution = DISTRIBUTIONS[kind]
  _refuse_others(values, ('distribution', *distribution.needs, *distribution.defaults), path, f' of {kind}')
  numbers = {**distribution.defaults}
  for key in (*distribution.needs, *distribution.defaults):
    if key in values:
      numbers[key] = _number(values[key], f'{path}.{key}', kind == 'int_uniform')
    elif key in distribution.needs:
      raise errors.UserError(f'{path}.{key}: is missing, and {kind} needs it')
  _check(numbers, distribution, path)
  return Parameter(name, kind, numbers=numbers)


def _check(numbers: Mapping[str, float], distribution: Distribution, path: str) -> None:
  if 'min' in numbers and numbers['min'] > numbers['max']:
    raise errors.UserError(f'{path}.min: {numbers["min"]} is above max, {numbers["max"]}')
  if distribution.is_positive and numbers['min'] <= 0:
    raise errors.UserError(f'{path}.min: {numbers["min"]}: must be above 0; of log_uniform min and max are exponents')
  for key in ('q', 'a', 'b'):
    if numbers.get(key, 1) <= 0:
      raise errors.UserError(f'{path}.{key}: {numbers[key]}: must be above 0')
  if numbers.get('sigma', 1) < 0:
    raise errors.UserError(f'{path}.sigma: {numbers["sigma"]}: must not be below 0')
  try:
    ends = [distribution.value(position, numbers) for position in (0.0, 1.0)]
  except OverflowError:
    ends = [math.inf]
  if not all(map(math.isfinite, ends)):
    raise errors.UserError(f'{path}: reaches values beyond all numbers; of log_uniform min and max are exponents of e')
  if 'q' in numbers:
    first, last = distribution.multiples(numbers['q'], numbers)
    if first > last:
      raise errors.UserError(
        f'{path}.q: {numbers["q"]}: no multiple of it is from {ends[0]:.6g} to {ends[1]:.6g}; lower q'
      )


def _parse_choices(name: str, kind: str, values: Mapping[str, object], path: str) -> Parameter:
  key = 'value' if kind == 'constant' else 'values'
  _refuse_others(values, ('distribution', key, *(['probabilities'] if key == 'values' else [])), path, f' of {kind}')
  choices = [values['value']] if 'value' in values else values.get('values')
  if not isinstance(choices, list) or not choices:
    raise errors.UserError(
      f'{path}.{key}: expected {"a value" if key == "value" else "a list with at least one value"}'
    )
  texts = [repr(choice) for choice in choices]
  for text in texts:
    if texts.count(text) > 1:
      raise errors.UserError(f'{path}.values: {text} occurs twice; `probabilities` makes one more likely')
  shares = values.get('probabilities')
  if shares is None:
    return Parameter(name, kind, tuple(choices))
  if not isinstance(shares, list) or len(shares) != len(choices):
    raise errors.UserError(f'{path}.probabilities: expected {len(choices)} numbers, one for each value')
  numbers = [_number(share, f'{path}.probabilities') for share in shares]
  if min(numbers) < 0 or abs(sum(numbers) - 1) > 1e-6:
    raise errors.UserError(f'{path}.probabilities: expected shares from 0 on whose sum is 1, got {numbers}')
  return Parameter(name, kind, tuple(choices), tuple(numbers))


def _default(values: Mapping[str, object], path: str) -> str:
  """The distribution of a parameter that names none, as Weights & Biases has it."""
  if 'value' in values:
    return 'constant'
  if 'values' in values:
    return 'categorical'
  if all(key in values for key in _RANGE):
    return 'int_uniform' if all(json_values.is_int(values[key]) for key in _RANGE) else 'uniform'
  raise errors.UserError(f'{path}: expected value, values, min and max, or a distribution')


def _number(value: Any, path: str, is_integer: bool = False) -> float:
  if not json_values.is_finite(value) or (is_integer and value != int(value)):
    raise errors.UserError(f'{path}: expected {"an integer" if is_integer else "a finite number"}, got {value!r}')
  return int(value) if is_integer else value


def _refuse_others(values: Mapping[str, object], known: Sequence[str], path: str, of: str = '') -> None:
  for key in values:
    if key not in known:
      near = errors.did_you_mean(key, known, before='; ')
      raise errors.UserError(f'{path}.{key}: no such key{of}{near}; there are {", ".join(known)}')
