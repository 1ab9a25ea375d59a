"""The next point of a sweep: a function of its file, the number of the point, and the results of the others.

Nothing is kept between two questions. So it does not matter who asks, or how often a controller was killed in between.
No TensorFlow; method bayes needs Optuna, which optuna_study.py imports.
"""

from collections.abc import Mapping, Sequence
import itertools

from official_ext.base import json_types
from official_ext.operations.sweeps import distributions
from official_ext.operations.sweeps import optuna_study
from official_ext.operations.sweeps import proposals
from official_ext.operations.sweeps import sweep_file


def propose(
  sweep: sweep_file.SweepFile, number: int, points: Mapping[int, proposals.Proposal], told: Sequence[proposals.Told]
) -> proposals.Proposal | None:
  """The point of a number.

  Args:
    sweep: the sweep.
    number: of the point, from 1.
    points: all others, by number.
    told: their results; only method bayes asks.

  Returns:
    The point; None if all points of a grid exist.

  Raises:
    UserError: Optuna is not installed, and is needed.
  """
  if sweep.method == 'grid':
    return _next_of_grid(sweep.parameters, points)
  if sweep.method == 'random':
    searched = {each.name: each.searched(proposals.draw(sweep.seed, number, each.name)) for each in sweep.parameters}
    return _proposal(sweep.parameters, searched)
  positions = {each: points[each].positions for each in points}
  return _proposal(sweep.parameters, optuna_study.ask(sweep, number, positions, told))


def _proposal(parameters: Sequence[distributions.Parameter], positions: json_types.JsonMapping) -> proposals.Proposal:
  values = {each.name: each.value(positions.get(each.name, 0)) for each in parameters}
  return proposals.Proposal(values, {each.name: positions[each.name] for each in parameters if not each.is_constant})


def _next_of_grid(
  parameters: Sequence[distributions.Parameter], points: Mapping[int, proposals.Proposal]
) -> proposals.Proposal | None:
  """The first point of a grid that does not exist yet; the last parameter changes first."""
  names = [each.name for each in parameters]
  known = {_key([point.parameters.get(name) for name in names]) for point in points.values()}
  for values in itertools.product(*(each.grid() or () for each in parameters)):
    if _key(values) not in known:
      return proposals.Proposal(dict(zip(names, values)))
  return None


def _key(values: Sequence[object]) -> str:
  return repr(list(values))  # 1 is not 1.0, nor true.
