"""A point that a sweep tries, and its sampler's input about others. No TensorFlow."""

import dataclasses
import hashlib

from official_ext.base import json_types

FINISHED = 'finished'
PRUNED = 'pruned'
FAILED = 'failed'
RUNNING = 'running'


@dataclasses.dataclass(frozen=True)
class Told:
  """The sampler's input about an earlier point.

  Attributes:
    number: of the point.
    outcome: FINISHED, PRUNED, FAILED or RUNNING, for all that is not over.
    value: of the metric; None if it has none.
    iteration: of a pruned one, how many values it had.
  """

  number: int
  outcome: str
  value: float | None = None
  iteration: int = 0

  def as_list(self) -> list[json_types.Json]:
    """JSON values: the arguments of `Told`."""
    return [self.number, self.outcome, self.value, self.iteration]


@dataclasses.dataclass(frozen=True)
class Proposal:
  """A point to try.

  Attributes:
    parameters: name -> value.
    positions: name -> the choice of a sampler, of which the value follows (Parameter.value); {} for a grid.
  """

  parameters: json_types.JsonMapping
  positions: json_types.JsonMapping = dataclasses.field(default_factory=dict)


def draw(seed: int, number: int, name: str) -> float:
  """A number from 0 to 1, uniform: the draw of a parameter for the point of a number. Never 0 or 1."""
  digest = hashlib.blake2b(f'{seed}/{number}/{name}'.encode('utf-8', 'surrogatepass'), digest_size=8).digest()
  return ((int.from_bytes(digest) >> 12) + 0.5) / (1 << 52)
