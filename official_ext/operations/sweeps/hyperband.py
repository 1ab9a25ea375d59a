"""Early ends, as the `early_terminate` of Weights & Biases has them: Hyperband's brackets (Li et al., 2018).

An iteration of a run is one value of the metric that it has reported, counted from 0. At some iterations, the bands, a
run has to be among the best 1 / eta of those that have come so far: see https://docs.wandb.ai/models/sweeps. No
TensorFlow.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from official_ext.base import errors
from official_ext.base import integers
from official_ext.base import json_types
from official_ext.base import suggestions

_KEYS = ('type', 'min_iter', 'max_iter', 's', 'eta', 'strict')
_MAX_BANDS = 100


@dataclasses.dataclass(frozen=True)
class Hyperband:
  """When runs are ended early.

  Attributes:
    bands: the iterations at which runs are compared, ascending.
    eta: one run in so many continues.
    strict: whether the value at the band counts, as in the paper; otherwise it is the best of the run so far.
  """

  bands: tuple[int, ...]
  eta: float = 3.0
  strict: bool = False

  def to_end(self, histories: Mapping[int, Sequence[float]], running: Sequence[int], goal: str) -> dict[int, str]:
    """The runs that should end, with the reason for people.

    Args:
      histories: number of a point -> all values of its metric, in their order.
      running: the numbers of those that still run.
      goal: 'minimize' or 'maximize'.
    """
    sign = -1.0 if goal == 'maximize' else 1.0
    costs = {number: [sign * value for value in history] for number, history in histories.items()}
    ended = {}
    for number in running:
      own = costs.get(number, [])
      band = max((band for band in self.bands if band < len(own)), default=None)
      if band is None:
        continue
      reached = sorted(cost[band] for cost in costs.values() if len(cost) > band)
      threshold = reached[int(len(reached) / self.eta)]
      cost = own[band] if self.strict else min(own)
      if cost > threshold:
        ended[number] = f'{sign * cost:.6g} at iteration {band}, and {sign * threshold:.6g} was needed'
    return ended


def parse(values: json_types.Json, path: str = 'early_terminate') -> Hyperband:
  """The early end that some values of a sweep's file describe.

  Raises:
    UserError: they are wrong.
  """
  if not isinstance(values, Mapping):
    raise errors.UserError(f'{path}: expected a mapping such as {{type: hyperband, min_iter: 3}}')
  for key in values:
    if key not in _KEYS:
      near = suggestions.did_you_mean(key, _KEYS, before='; ')
      raise errors.UserError(f'{path}.{key}: no such key{near}; there are {", ".join(_KEYS)}')
  if values.get('type') != 'hyperband':
    raise errors.UserError(f'{path}.type: {values.get("type")!r}: there is hyperband')
  eta, strict = values.get('eta', 3), values.get('strict', False)
  if not isinstance(eta, (int, float)) or isinstance(eta, bool) or not eta > 1:
    raise errors.UserError(f'{path}.eta: expected a number above 1, got {eta!r}')
  if not isinstance(strict, bool):
    raise errors.UserError(f'{path}.strict: expected true or false, got {strict!r}')
  return Hyperband(tuple(_bands(values, float(eta), path)), float(eta), strict)


def _bands(values: Mapping[str, object], eta: float, path: str) -> list[int]:
  if 'max_iter' in values:
    if 'min_iter' in values:
      raise errors.UserError(f'{path}.min_iter: give min_iter, or max_iter and s')
    if 's' not in values:
      raise errors.UserError(f'{path}.s: is missing, and max_iter needs it: the number of bands')
    band, bands = float(_positive(values, 'max_iter', path)), []
    for _ in range(_positive(values, 's', path)):
      band /= eta
      if band < 1:
        break
      bands.append(int(band))
    if not bands:
      raise errors.UserError(f'{path}.max_iter: {values["max_iter"]}: leaves no band; it must be at least eta, {eta:g}')
    return sorted(set(bands))
  if 's' in values:
    raise errors.UserError(f'{path}.s: goes with max_iter, not with min_iter')
  if 'min_iter' not in values:
    raise errors.UserError(f'{path}: expected min_iter, or max_iter and s')
  least = _positive(values, 'min_iter', path)
  return sorted({int(least * eta**power) for power in range(_MAX_BANDS) if least * eta**power < 1e9})


def _positive(values: Mapping[str, object], key: str, path: str) -> int:
  return integers.check(values[key], f'{path}.{key}')
