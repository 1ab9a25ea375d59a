"""A sweep around a new run, from the values of a form."""

import sys

import pytest

from official_ext.base import errors
from official_ext.operations.runs import new_runs
from official_ext.operations.sweeps import form_sweep
from official_ext.operations.sweeps import sweep_file
from tests.operations.runs import folders


def _sweep(root, *ranges, run=None, **values):
  run = run or new_runs.NewRun(str(root), 'search', 'digits', sets=('train_steps=5', 'learning_rate=1'))
  return form_sweep.FormSweep(run, tuple(form_sweep.Range(**each) for each in ranges), **values)


def test_lists_and_ranges_of_a_grid(tmp_path):
  values, points = _sweep(
    tmp_path,
    {'name': 'learning_rate', 'kind': 'log', 'low': '1e-4', 'high': '1e-1', 'count': 4},
    {'name': 'task.model.dropout_rate', 'kind': 'linear', 'low': '0', 'high': '0.5', 'count': 3},
    {'name': 'width', 'kind': 'log', 'low': '16', 'high': '128', 'count': 4},
    {'name': 'optimizer', 'values': 'adam, "s gd"'},
    {'name': 'seed', 'values': '7'},
  ).check()
  assert values['parameters'] == {
    'learning_rate': {'values': [1e-4, 1e-3, 1e-2, 1e-1]},
    'task.model.dropout_rate': {'values': [0, 0.25, 0.5]},
    'width': {'values': [16, 32, 64, 128]},
    'optimizer': {'values': ['adam', 's gd']},
    'seed': {'value': 7},
  }
  assert points == 4 * 3 * 4 * 2
  # A field of the form that is swept has no other value; the others are shared.
  assert values['flags'] == ['--set=train_steps=5']
  assert (values['experiment'], values['mode'], values['name']) == ('digits', 'train', 'search')
  assert sweep_file.parse(values).num_points == points


def test_random_points_are_drawn_from_ranges(tmp_path):
  values, points = _sweep(
    tmp_path,
    {'name': 'a', 'kind': 'log', 'low': '1e-4', 'high': '0.1'},
    {'name': 'b', 'kind': 'linear', 'low': '1', 'high': '9'},
    {'name': 'c', 'kind': 'log', 'low': '1', 'high': '64'},
    method='random',
    count=12,
    metric='accuracy',
    goal='maximize',
  ).check()
  assert points == values['run_cap'] == 12
  parameters = {each.name: each for each in sweep_file.parse(values).parameters}
  assert {name: each.distribution for name, each in parameters.items()} == {
    'a': 'log_uniform_values',
    'b': 'int_uniform',
    'c': 'q_log_uniform_values',
  }
  assert isinstance(parameters['c'].at(0.3), int)
  assert values['metric'] == {'name': 'accuracy', 'goal': 'maximize'}


def test_a_bayesian_search_has_its_metric_and_ends_bad_runs(tmp_path):
  ranges = ({'name': 'a', 'kind': 'log', 'low': '1e-4', 'high': '0.1'}, {'name': 'b', 'values': '1, 2'})
  given = {'method': 'bayes', 'count': 20, 'metric': 'accuracy', 'goal': 'maximize', 'min_iter': 4}
  values, points = _sweep(tmp_path, *ranges, **given).check()
  found = sweep_file.parse(values)
  assert points == found.num_points == 20
  assert (found.method, found.metric.goal, found.early_terminate.bands[:3]) == ('bayes', 'maximize', (4, 12, 36))
  assert [each.distribution for each in found.parameters] == ['log_uniform_values', 'categorical']


def test_without_optuna_a_bayesian_search_is_refused_before_a_process(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'optuna', None)
  with pytest.raises(errors.UserError, match=r"^method: bayes needs Optuna: pip install 'official-ext\[sweeps\]'$"):
    _sweep(tmp_path, {'name': 'a', 'values': '1, 2'}, method='bayes', metric='loss').check()


@pytest.mark.parametrize(
  'ranges, values, expected',
  [
    ([{'name': 'a', 'values': ''}], {}, 'a: expected values such as 1, 2'),
    ([{'name': '', 'values': '1'}], {}, 'a field of the sweep has no name'),
    ([{'name': 'a', 'values': '1, 1'}], {}, 'parameters.a.values: 1 occurs twice'),
    ([{'name': 'a', 'values': '1'}, {'name': 'a', 'values': '2'}], {}, 'a: is given twice; remove one'),
    ([{'name': 'a', 'kind': 'linear', 'low': 'x', 'high': '1'}], {}, "a: from: expected a number, got 'x'"),
    ([{'name': 'a', 'kind': 'linear', 'low': '2', 'high': '1'}], {}, 'a: 2 is not below 1'),
    ([{'name': 'a', 'kind': 'log', 'low': '0', 'high': '1'}], {}, 'a: 0: a logarithmic range must begin above 0'),
    ([{'name': 'a', 'kind': 'linear', 'low': '0', 'high': '1', 'count': 1}], {}, 'must be from 2 to 1000'),
    ([{'name': 'a', 'kind': 'cubic'}], {}, 'a: cubic: expected one of values, linear, log'),
    ([{'name': 'a', 'values': '1, 2'}], {'method': 'annealing'}, "method: 'annealing' is invalid; choose one of grid,"),
    ([{'name': 'a', 'values': '1, 2'}], {'method': 'bayes'}, 'metric: method bayes needs one'),
    ([{'name': 'a', 'values': '1, 2'}], {'min_iter': 3}, 'metric: early_terminate needs one'),
    ([{'name': 'a', 'values': '1, 2'}], {'metric': 'accuracy'}, 'accuracy requires goal: maximize'),
    ([{'name': 'a', 'values': '1, 2'}], {'metric': 'elbo'}, 'metric.goal: the name elbo does not imply whether'),
    ([{'name': 'a', 'values': '1, 2'}], {'method': 'random', 'count': 1001}, '1,001 points: the form starts 1,000'),
  ],
)
def test_mistakes_are_reported(tmp_path, ranges, values, expected):
  with pytest.raises(errors.UserError, match=expected.replace('(', r'\(')):
    _sweep(tmp_path, *ranges, **values).check()


def test_a_clone_shares_the_configuration_of_its_original(tmp_path):
  original = folders.make(tmp_path, 'first', identity=folders.ended_process(), status='finished')
  run = new_runs.NewRun(str(tmp_path), 'search', sets=('train_steps=3',), original=original)
  values, _ = _sweep(tmp_path, {'name': 'seed', 'values': '1, 2'}, run=run).check()
  assert values['flags'] == [f'--config_file={tmp_path}/search/base_params.yaml', '--set=train_steps=3']
  assert (values['experiment'], values['mode']) == ('digits', 'train_and_eval')


@pytest.mark.parametrize('rows', [None, [], 'a', [1], [{'name': 1}], [{'name': 'a', 'count': '3'}]])
def test_rows_of_another_form_are_refused(rows):
  with pytest.raises(errors.UserError):
    form_sweep.ranges_of(rows)
