"""Optuna as the sampler of a sweep and the judge of its parameters: a study that is built anew for each question.

Of Optuna's storage, pruners and loop nothing is used. Its input is in the folders of the runs. No TensorFlow.
"""

from collections.abc import Mapping, Sequence
import importlib.util
from typing import Any
import warnings

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.operations.sweeps import distributions
from official_ext.operations.sweeps import proposals
from official_ext.operations.sweeps import sweep_file

_MIN_POINTS = 4  # With fewer, an importance is meaningless.
_STARTUP_POINTS = 10  # So many are drawn at random, before the model of those that were good is of use.
_MISSING = "method: bayes needs Optuna: pip install 'official-ext[sweeps]'"


def require() -> Any:
  """Optuna.

  Raises:
    UserError: it is not installed.
  """
  try:
    import optuna  # pylint: disable=g-import-not-at-top
  except ImportError as error:
    raise errors.UserError(_MISSING) from error
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  return optuna


def check_installed() -> None:
  """Checks that Optuna is installed, without the second that its import takes.

  Raises:
    UserError: it is not installed.
  """
  if importlib.util.find_spec('optuna') is None:
    raise errors.UserError(_MISSING)


def ask(
  sweep: sweep_file.SweepFile,
  number: int,
  positions: Mapping[int, Mapping[str, object]],
  told: Sequence[proposals.Told],
) -> json_types.JsonObject:
  """The positions of a point, by the tree-structured Parzen estimator (Bergstra et al., 2011).

  Points that run count as bad ones, so that no two are tried at the same place.

  Args:
    sweep: the sweep.
    number: of the point.
    positions: of the others, by number.
    told: their results, by number.
  """
  optuna = require()
  space = _space(optuna, sweep.parameters)
  if not space:
    return {}
  seed = int(proposals.draw(sweep.seed, number, 'sampler') * (1 << 32))
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Of options that Optuna calls experimental.
    sampler = optuna.samplers.TPESampler(
      seed=seed, multivariate=True, constant_liar=True, n_startup_trials=_STARTUP_POINTS
    )
    study = optuna.create_study(sampler=sampler, direction=sweep.metric.goal if sweep.metric else 'minimize')
    study.add_trials([_trial(optuna, space, positions[each.number], each) for each in told if each.number in positions])
    return dict(study.ask(fixed_distributions=space).params)


def importances(
  sweep: sweep_file.SweepFile, positions: Mapping[int, Mapping[str, object]], values: Mapping[int, float]
) -> dict[str, float]:
  """How much of the variance of the metric each parameter explains, the greatest first (fANOVA, Hutter et al., 2014).

  Args:
    sweep: the sweep.
    positions: of the points, by number.
    values: of those that have one.

  Returns:
    Name -> share, from 0 to 1; {} if there are too few points, or all are equal.

  Raises:
    UserError: Optuna is not installed.
  """
  optuna = require()
  space = {
    name: each
    for name, each in _space(optuna, sweep.parameters).items()
    if len({repr(positions[number].get(name)) for number in values}) > 1
  }
  if len(values) < _MIN_POINTS or len(set(values.values())) < 2 or not space:
    return {}
  told = [proposals.Told(number, proposals.FINISHED, value) for number, value in sorted(values.items())]
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    study = optuna.create_study()
    study.add_trials([_trial(optuna, space, positions[each.number], each) for each in told])
    found = optuna.importance.get_param_importances(
      study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0), params=list(space)
    )
  return {name: float(share) for name, share in found.items()}


def _space(optuna: Any, parameters: Sequence[distributions.Parameter]) -> json_types.JsonObject:
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


def _trial(optuna: Any, space: json_types.JsonMapping, positions: json_types.JsonMapping, told: proposals.Told) -> Any:
  states = optuna.trial.TrialState
  state = {
    proposals.FINISHED: states.COMPLETE,
    proposals.PRUNED: states.PRUNED if told.value is not None else states.FAIL,
    proposals.RUNNING: states.RUNNING,
  }.get(told.outcome, states.FAIL)
  return optuna.trial.create_trial(
    state=state,
    value=told.value if state == states.COMPLETE else None,
    params={name: positions[name] for name in space},
    distributions=dict(space),
    intermediate_values={told.iteration: told.value} if state == states.PRUNED else None,
  )
