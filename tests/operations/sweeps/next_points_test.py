"""Tests of proposals: grids, draws by their distributions, and the sampler."""

import math
import statistics
import sys

import pytest

from official_ext.base import errors
from official_ext.operations.sweeps import distributions
from official_ext.operations.sweeps import samplers
from official_ext.operations.sweeps import sweep_file


def parse(method='random', **parameters):
  metric = {'name': 'loss', 'goal': 'minimize'}
  return sweep_file.parse({'method': method, 'experiment': 'a', 'metric': metric, 'parameters': parameters})


def propose_all(sweep, count, value=lambda parameters: None):
  """The first points, each with those before as input."""
  points, outcomes = {}, []
  for number in range(1, count + 1):
    point = samplers.propose(sweep, number, points, outcomes)
    if point is None:
      break
    points[number] = point
    outcomes.append(samplers.PointOutcome(number, 'finished', value(point.parameters)))
  return points


def test_a_grid_has_each_combination_once_with_the_values_of_the_file():
  sweep = parse('grid', a={'values': [1, 1.0, True, '1']}, b={'min': 2, 'max': 3}, c={'value': None})
  found = [list(point.parameters.values()) for point in propose_all(sweep, 99).values()]
  expected = [[a, b, None] for a in (1, 1.0, True, '1') for b in (2, 3)]
  assert list(map(repr, found)) == list(map(repr, expected))
  assert sweep.num_points == 8
  steps = parse('grid', a={'distribution': 'q_uniform', 'min': 0, 'max': 0.3, 'q': 0.1})
  assert [point.parameters['a'] for point in propose_all(steps, 99).values()] == [0.0, 0.1, 0.2, 0.3]


def test_a_grid_that_grows_adds_points_and_keeps_those_it_has():
  before = propose_all(parse('grid', a={'values': [1, 3]}), 9)
  after = parse('grid', a={'values': [0, 1, 2, 3]})
  assert samplers.propose(after, 3, before, []).parameters == {'a': 0}
  rest = {**before, 3: samplers.Proposal({'a': 0})}
  assert samplers.propose(after, 4, rest, []).parameters == {'a': 2}


# Of each distribution: its parameters, the map to a normal or uniform number, the mean and deviation of that.
_UNIFORM = 1 / math.sqrt(12)
_CASES = (
  ({'min': 2.0, 'max': 6.0}, lambda x: x, 4, 4 * _UNIFORM),
  ({'min': 1, 'max': 9}, lambda x: x, 5, math.sqrt(80 / 12)),
  ({'distribution': 'log_uniform', 'min': -4, 'max': 0}, math.log, -2, 4 * _UNIFORM),
  ({'distribution': 'log_uniform_values', 'min': 1e-4, 'max': 1}, math.log10, -2, 4 * _UNIFORM),
  ({'distribution': 'inv_log_uniform', 'min': 0, 'max': 4}, lambda x: math.log(1 / x), 2, 4 * _UNIFORM),
  ({'distribution': 'inv_log_uniform_values', 'min': 0.01, 'max': 100}, lambda x: math.log10(1 / x), 0, 4 * _UNIFORM),
  ({'distribution': 'normal', 'mu': 3, 'sigma': 2}, lambda x: x, 3, 2),
  ({'distribution': 'log_normal', 'mu': 1, 'sigma': 0.5}, math.log, 1, 0.5),
  ({'distribution': 'q_uniform', 'min': 0, 'max': 10, 'q': 0.5}, lambda x: x, 5, 10 * _UNIFORM),
  ({'distribution': 'q_normal', 'mu': 0, 'sigma': 5}, lambda x: x, 0, 5),
  ({'distribution': 'beta', 'a': 2, 'b': 2}, lambda x: x, 0.5, math.sqrt(1 / 20)),
)


@pytest.mark.parametrize(('values', 'transform', 'mean', 'deviation'), _CASES, ids=[str(case[0]) for case in _CASES])
def test_random_points_are_of_the_distribution_that_was_asked_for(values, transform, mean, deviation):
  sweep = parse(a=values)
  count = 4000
  drawn = [samplers.propose(sweep, number, {}, []).parameters['a'] for number in range(1, count + 1)]
  numbers = [transform(value) for value in drawn]
  assert statistics.fmean(numbers) == pytest.approx(mean, abs=4 * deviation / math.sqrt(count))
  assert statistics.stdev(numbers) == pytest.approx(deviation, rel=0.06)
  if 'min' in values and 'log_uniform' not in values.get('distribution', ''):
    assert values['min'] <= min(drawn) <= max(drawn) <= values['max']
  if 'q' in values or values.get('distribution') == 'q_normal':
    step = values.get('q', 1)
    assert all(value == float(f'{round(value / step) * step:.12g}') for value in drawn)
  assert {type(value) for value in drawn} == {int if drawn[0] == int(drawn[0]) and isinstance(drawn[0], int) else float}


def test_probabilities_are_those_of_the_choices():
  sweep = parse(a={'values': ['x', 'y', 'z'], 'probabilities': [0.5, 0.5, 0.0]})
  drawn = [samplers.propose(sweep, number, {}, []).parameters['a'] for number in range(1, 1001)]
  assert drawn.count('z') == 0
  assert drawn.count('x') == pytest.approx(500, abs=4 * math.sqrt(250))


def test_a_draw_depends_on_seed_number_and_name_alone():
  narrow, wide = parse(a={'min': 0.0, 'max': 1.0}), parse(b={'min': 0.0, 'max': 1.0}, a={'min': 0.0, 'max': 1.0})
  first = [samplers.propose(sweep, 7, {}, []).parameters['a'] for sweep in (narrow, wide, narrow)]
  assert len(set(first)) == 1
  assert samplers.propose(narrow, 8, {}, []).parameters['a'] != first[0]
  assert samplers.propose(wide, 7, {}, []).parameters['b'] != first[0]


def test_the_sampler_goes_where_the_metric_is_good():
  sweep = parse(
    'bayes',
    x={'min': 0.0, 'max': 1.0},
    n={'min': 1, 'max': 16},
    o={'values': [['a'], 'b', None]},
    c={'value': 3},
  )
  value = lambda found: (found['x'] - 0.2) ** 2 + abs(found['n'] - 4) / 16 + (found['o'] != 'b')
  points = propose_all(sweep, 40, value)
  values = {number: value(point.parameters) for number, point in points.items()}
  assert statistics.fmean(values[number] for number in range(31, 41)) < statistics.fmean(
    values[number] for number in range(1, 11)
  )
  assert [values[number] for number in range(31, 41) if points[number].parameters['o'] == 'b'][5:]
  assert {type(point.parameters['n']) for point in points.values()} == {int}
  assert {point.parameters['c'] for point in points.values()} == {3}
  shares = samplers.parameter_importances(sweep, {number: point.positions for number, point in points.items()}, values)
  assert next(iter(shares)) == 'o'
  assert sum(shares.values()) == pytest.approx(1)


def test_the_sampler_gets_points_that_run_failed_or_were_pruned():
  sweep = parse('bayes', x={'min': 0.0, 'max': 1.0})
  points = propose_all(sweep, 14, lambda found: found['x'])
  finished = [samplers.PointOutcome(number, 'finished', point.parameters['x']) for number, point in points.items()]
  ask = lambda outcomes: [samplers.propose(sweep, number, points, outcomes).parameters['x'] for number in range(15, 35)]
  failed, running, pruned = (
    ask([*finished[:11], *(samplers.PointOutcome(number, outcome, value, 3) for number in range(12, 15))])
    for outcome, value in (('failed', None), ('running', None), ('pruned', 0.5))
  )
  assert ask(finished) == ask(finished)
  assert failed == ask(finished[:11])  # Nothing is learnt of where they were.
  assert failed not in (running, pruned, ask(finished))
  assert ask(finished) not in (running, pruned)


@pytest.mark.parametrize(
  ('values', 'expected'),
  [
    ({'vals': [1]}, 'parameters.a.vals: no such key; did you mean values?'),
    ({'min': 1}, 'parameters.a: expected value, values, min and max, or a distribution'),
    (
      {'distribution': 'unifrom', 'min': 0, 'max': 1},
      "parameters.a.distribution: 'unifrom' is invalid; did you mean uniform?",
    ),
    ({'distribution': 'log_uniform_values', 'min': 0, 'max': 1}, 'parameters.a.min: 0: must be above 0'),
    ({'distribution': 'log_uniform', 'min': 1, 'max': 1000}, 'parameters.a: reaches values beyond all numbers'),
    ({'distribution': 'uniform', 'min': 1}, 'parameters.a.max: is missing, and uniform needs it'),
    ({'min': 3, 'max': 1}, 'parameters.a.min: 3 is above max, 1'),
    ({'min': True, 'max': 1.5}, 'parameters.a.min: expected a finite number, got True'),
    ({'values': [1, 2, 1]}, 'parameters.a.values: 1 occurs twice'),
    ({'values': [1, 2], 'probabilities': [0.5, 0.6]}, 'parameters.a.probabilities: expected shares'),
    ({'values': [1, 2], 'q': 3}, 'parameters.a.q: no such key of categorical'),
    ({'parameters': {'b': {'min': 2, 'max': 1}}}, 'parameters.a.parameters.b.min: 2 is above max, 1'),
    (3, 'parameters.a: expected a mapping such as {value: 3}, got 3'),
  ],
)
def test_a_parameter_that_is_none_is_named(values, expected):
  with pytest.raises(errors.UserError) as error:
    distributions.parse_all({'a': values})
  assert str(error.value).startswith(expected)


def test_nested_parameters_are_dotted_paths():
  found = distributions.parse_all({'a': {'parameters': {'b': {'value': 1}, 'c': {'parameters': {'d': {'value': 2}}}}}})
  assert [parameter.name for parameter in found] == ['a.b', 'a.c.d']


def test_without_optuna_the_method_that_needs_it_reports_it(monkeypatch):
  monkeypatch.setitem(sys.modules, 'optuna', None)
  with pytest.raises(errors.UserError, match=r"^method: bayes needs Optuna: pip install 'official-ext\[sweeps\]'$"):
    samplers.propose(parse('bayes', x={'min': 0.0, 'max': 1.0}), 1, {}, [])
  for method, parameter in (('random', {'min': 0.0, 'max': 1.0}), ('grid', {'values': [1]})):
    assert samplers.propose(parse(method, x=parameter), 1, {}, [])
