"""The next point of a sweep: a function of its file, the number of the point, and the results of the others.

No state is kept between two calls. So the point does not depend on the caller, or on how often a controller was killed
in between. Method bayes needs Optuna: a study is built for each call, from the folders of the runs. Optuna's storage,
pruners and loop are not used.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import importlib.util
import itertools
from typing import Any
import warnings

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.operations.sweeps import distributions
from official_ext.operations.sweeps import sweep_file

FINISHED = 'finished'
PRUNED = 'pruned'
FAILED = 'failed'
RUNNING = 'running'


@dataclasses.dataclass(frozen=True)
class PointOutcome:
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

  def as_list(self) -> list[json_values.Json]:
    """JSON values: the arguments of `PointOutcome`."""
    return [self.number, self.outcome, self.value, self.iteration]


@dataclasses.dataclass(frozen=True)
class Proposal:
  """A point to try.

  Attributes:
    parameters: name -> value.
    positions: name -> the choice of a sampler, of which the value follows (Parameter.value); {} for a grid.
  """

  parameters: json_values.JsonMapping
  positions: json_values.JsonMapping = dataclasses.field(default_factory=dict)


def draw(seed: int, number: int, name: str) -> float:
  """A number from 0 to 1, uniform: the draw of a parameter for the point of a number. Never 0 or 1."""
  digest = hashlib.blake2b(f'{seed}/{number}/{name}'.encode('utf-8', 'surrogatepass'), digest_size=8).digest()
  return ((int.from_bytes(digest) >> 12) + 0.5) / (1 << 52)


_MIN_POINTS = 4  # With fewer, an importance is meaningless.
_STARTUP_POINTS = 10  # Points drawn at random, before the model of the good ones is of use.
_MISSING_OPTUNA = "method: bayes needs Optuna: pip install 'official-ext[sweeps]'"


def require_optuna() -> Any:
  """Optuna.

  Raises:
    UserError: it is not installed.
  """
  try:
    import optuna  # pylint: disable=g-import-not-at-top
  except ImportError as error:
    raise errors.UserError(_MISSING_OPTUNA) from error
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  return optuna


def check_optuna() -> None:
  """Checks that Optuna is installed, without the second that its import takes.

  Raises:
    UserError: it is not installed.
  """
  if importlib.util.find_spec('optuna') is None:
    raise errors.UserError(_MISSING_OPTUNA)


def ask_optuna(
  sweep: sweep_file.SweepFile,
  number: int,
  positions: Mapping[int, Mapping[str, object]],
  outcomes: Sequence[PointOutcome],
) -> json_values.JsonObject:
  """The positions of a point, by the tree-structured Parzen estimator (Bergstra et al., 2011).

  Points that run count as bad ones, so that no two are tried at the same place.

  Args:
    sweep: the sweep.
    number: of the point.
    positions: of the others, by number.
    outcomes: their results, by number.
  """
  optuna = require_optuna()
  space = _optuna_space(optuna, sweep.parameters)
  if not space:
    return {}
  seed = int(draw(sweep.seed, number, 'sampler') * (1 << 32))
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Of options that Optuna calls experimental.
    sampler = optuna.samplers.TPESampler(
      seed=seed, multivariate=True, constant_liar=True, n_startup_trials=_STARTUP_POINTS
    )
    study = optuna.create_study(sampler=sampler, direction=sweep.metric.goal if sweep.metric else 'minimize')
    study.add_trials(
      [_optuna_trial(optuna, space, positions[each.number], each) for each in outcomes if each.number in positions]
    )
    return dict(study.ask(fixed_distributions=space).params)


def parameter_importances(
  sweep: sweep_file.SweepFile, positions: Mapping[int, Mapping[str, object]], values: Mapping[int, float]
) -> dict[str, float]:
  """How much of the variance of the metric each parameter explains, the greatest first (fANOVA, Hutter et al., 2014).

  Args:
    sweep: the sweep.
    positions: of the points, by number.
    values: of the points that have one.

  Returns:
    Name -> share, from 0 to 1; {} if there are too few points, or all are equal.

  Raises:
    UserError: Optuna is not installed.
  """
  optuna = require_optuna()
  space = {
    name: each
    for name, each in _optuna_space(optuna, sweep.parameters).items()
    if len({repr(positions[number].get(name)) for number in values}) > 1
  }
  if len(values) < _MIN_POINTS or len(set(values.values())) < 2 or not space:
    return {}
  outcomes = [PointOutcome(number, FINISHED, value) for number, value in sorted(values.items())]
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    study = optuna.create_study()
    study.add_trials([_optuna_trial(optuna, space, positions[each.number], each) for each in outcomes])
    found = optuna.importance.get_param_importances(
      study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0), params=list(space)
    )
  return {name: float(share) for name, share in found.items()}


def _optuna_space(optuna: Any, parameters: Sequence[distributions.Parameter]) -> json_values.JsonObject:
  """The variables of Optuna: integers, numbers of choices, and positions of all else, where each is as likely."""
  kinds = optuna.distributions
  space: dict[str, object] = {}
  for each in parameters:
    if each.is_constant:
      continue
    if each.choices:
      space[each.name] = kinds.CategoricalDistribution(tuple(range(len(each.choices))))
    elif each.is_integer:
      space[each.name] = kinds.IntDistribution(int(each.numbers['min']), int(each.numbers['max']))
    else:
      space[each.name] = kinds.FloatDistribution(0.0, 1.0)
  return space


def _optuna_trial(
  optuna: Any, space: json_values.JsonMapping, positions: json_values.JsonMapping, outcome: PointOutcome
) -> Any:
  states = optuna.trial.TrialState
  state = {
    FINISHED: states.COMPLETE,
    PRUNED: states.PRUNED if outcome.value is not None else states.FAIL,
    RUNNING: states.RUNNING,
  }.get(outcome.outcome, states.FAIL)
  return optuna.trial.create_trial(
    state=state,
    value=outcome.value if state == states.COMPLETE else None,
    params={name: positions[name] for name in space},
    distributions=dict(space),
    intermediate_values={outcome.iteration: outcome.value} if state == states.PRUNED else None,
  )


def propose(
  sweep: sweep_file.SweepFile, number: int, points: Mapping[int, Proposal], outcomes: Sequence[PointOutcome]
) -> Proposal | None:
  """The point of a number.

  Args:
    sweep: the sweep.
    number: of the point, from 1.
    points: all others, by number.
    outcomes: their results; only method bayes asks.

  Returns:
    The point; None if all points of a grid exist.

  Raises:
    UserError: Optuna is not installed, and is needed.
  """
  if sweep.method == 'grid':
    return _next_of_grid(sweep.parameters, points)
  if sweep.method == 'random':
    searched = {each.name: each.searched(draw(sweep.seed, number, each.name)) for each in sweep.parameters}
    return _proposal_at(sweep.parameters, searched)
  positions = {each: points[each].positions for each in points}
  return _proposal_at(sweep.parameters, ask_optuna(sweep, number, positions, outcomes))


def _proposal_at(parameters: Sequence[distributions.Parameter], positions: json_values.JsonMapping) -> Proposal:
  values = {each.name: each.value(positions.get(each.name, 0)) for each in parameters}
  return Proposal(values, {each.name: positions[each.name] for each in parameters if not each.is_constant})


def _next_of_grid(parameters: Sequence[distributions.Parameter], points: Mapping[int, Proposal]) -> Proposal | None:
  """The first point of a grid that does not exist yet; the last parameter changes first."""
  names = [each.name for each in parameters]
  known = {_key_of([point.parameters.get(name) for name in names]) for point in points.values()}
  for values in itertools.product(*(each.grid() or () for each in parameters)):
    if _key_of(values) not in known:
      return Proposal(dict(zip(names, values)))
  return None


def _key_of(values: Sequence[object]) -> str:
  return repr(list(values))  # 1 is not 1.0, nor true.
