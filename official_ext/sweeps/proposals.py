"""What a sweep tries next: a function of its file, the number of the point, and what is known of the others.

Nothing is kept between two questions. So it does not matter who asks, or how often a controller was killed in between.
No TensorFlow; method bayes needs Optuna, which optuna_study.py imports.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import itertools
from typing import Any

from official_ext.sweeps import distributions
from official_ext.sweeps import sweep_file

FINISHED = 'finished'
PRUNED = 'pruned'
FAILED = 'failed'
RUNNING = 'running'


@dataclasses.dataclass(frozen=True)
class Told:
  """What the sampler is told about a point when it is asked for another one.

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

  def as_list(self) -> list[Any]:
    """JSON values, which `parse_told` reads."""
    return [self.number, self.outcome, self.value, self.iteration]


def parse_told(values: Any) -> list[Told]:
  """What `Told.as_list` has written."""
  return [Told(*each) for each in values]


@dataclasses.dataclass(frozen=True)
class Proposal:
  """A point to try.

  Attributes:
    parameters: name -> value.
    positions: name -> what a sampler has chosen, of which the value follows (Parameter.value); {} for a grid.
  """

  parameters: Mapping[str, Any]
  positions: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def propose(
  sweep: sweep_file.SweepFile, number: int, points: Mapping[int, Proposal], told: Sequence[Told]
) -> Proposal | None:
  """The point of a number.

  Args:
    sweep: the sweep.
    number: of the point, from 1.
    points: all others, by number.
    told: what is known of them; only method bayes asks.

  Returns:
    The point; None if all points of a grid are there.

  Raises:
    UserError: Optuna is not installed, and is needed.
  """
  if sweep.method == 'grid':
    return _next_of_grid(sweep.parameters, points)
  if sweep.method == 'random':
    searched = {each.name: each.searched(draw(sweep.seed, number, each.name)) for each in sweep.parameters}
    return _proposal(sweep.parameters, searched)
  from official_ext.sweeps import optuna_study  # pylint: disable=g-import-not-at-top  # Optuna takes a second.

  positions = {each: points[each].positions for each in points}
  return _proposal(sweep.parameters, optuna_study.ask(sweep, number, positions, told))


def _proposal(parameters: Sequence[distributions.Parameter], positions: Mapping[str, Any]) -> Proposal:
  values = {each.name: each.value(positions.get(each.name, 0)) for each in parameters}
  return Proposal(values, {each.name: positions[each.name] for each in parameters if not each.is_constant})


def draw(seed: int, number: int, name: str) -> float:
  """A number from 0 to 1, uniform: the draw of a parameter for the point of a number. Never 0 or 1."""
  digest = hashlib.blake2b(f'{seed}/{number}/{name}'.encode('utf-8', 'surrogatepass'), digest_size=8).digest()
  return ((int.from_bytes(digest) >> 12) + 0.5) / (1 << 52)


def _next_of_grid(parameters: Sequence[distributions.Parameter], points: Mapping[int, Proposal]) -> Proposal | None:
  """The first point of a grid that is not there yet; the last parameter changes first."""
  names = [each.name for each in parameters]
  known = {_key([point.parameters.get(name) for name in names]) for point in points.values()}
  for values in itertools.product(*(each.grid() or () for each in parameters)):
    if _key(values) not in known:
      return Proposal(dict(zip(names, values)))
  return None


def _key(values: Sequence[Any]) -> str:
  return repr(list(values))  # 1 is not 1.0, nor true.
