"""Tests for selection."""

import math

import pytest

from official_ext.base import errors
from official_ext.operations.runs import run_index
from official_ext.operations.runs import selection

_RUNS = [
  run_index.RunSummary(
    'a',
    '/a',
    'running',
    '',
    'digits',
    step=5,
    evaluation={'accuracy': 0.5},
    tags=('x', 'y'),
    train={'learning_rate': 0.5},  # As the schedule has it now: the configuration decides.
  ),
  run_index.RunSummary('b', '/b', 'finished', '', 'digits', step=9, evaluation={'accuracy': 0.75}, tags=('x',)),
  run_index.RunSummary('c', '/c', 'dead', '', 'resnet', train={'loss': math.nan}, started=7.0),
  run_index.RunSummary('d', '/d', 'dead', '', 'resnet', train={'loss': 0.25}, started=8.0),
]
_PARAMS = {
  'a': {'learning_rate': 0.001, 'trainer.train_steps': 100, 'task.name': None, 'task.flag': True},
  'b': {'learning_rate': 0.01, 'trainer.train_steps': 50, 'task.name': 'x', 'task.flag': False},
  'c': {'learning_rate': 1},
}


def _chosen(**kwargs):
  return ''.join(run.name for run in selection.Selection(**kwargs).choose(_RUNS, lambda: _PARAMS))


@pytest.mark.parametrize(
  'condition,expected',
  [
    ('learning_rate=1e-3', 'a'),
    ('learning_rate=0.0010', 'a'),
    ('learning_rate!=1e-3', 'bc'),
    ('learning_rate>=.01', 'bc'),
    ('trainer.train_steps < 100', 'b'),
    ('trainer.train_steps=100', 'a'),
    ('task.name=null', 'a'),
    ('task.flag=true', 'a'),
    ('name~A', 'a'),
    ('accuracy>0.5', 'b'),
    ('validation_accuracy>=0.5', 'ab'),
    ('experiment=resnet', 'cd'),
    ('loss=.nan', 'c'),
    ('step>5', 'b'),
  ],
)
def test_conditions(condition, expected):
  assert _chosen(filters=[condition]) == expected


def test_texts_that_are_numbers_count_as_numbers():
  """In the order of float(); trackers and quoted YAML keep numbers as texts."""
  rates = ['10', '1e-05', 0.01, '5E-4', '2.', '0.0001', 'auto']
  runs = [run_index.RunSummary(str(number), '/', 'finished', '', 'digits') for number in range(len(rates))]
  params = lambda: {str(number): {'rate': rate} for number, rate in enumerate(rates)}
  found = [rates[int(run.name)] for run in selection.in_order(runs, 'rate', params)]
  assert found == [*sorted(rates[:-1], key=float), 'auto']
  chosen = selection.Selection(filters=['rate<1e-3']).choose(runs, params)
  assert sorted(rates[int(run.name)] for run in chosen) == ['0.0001', '1e-05', '5E-4']


def test_all_that_is_given_must_be_true():
  assert _chosen(tags=['x', 'y']) == 'a'
  assert _chosen(statuses=['dead', 'running'], experiments=['digits']) == 'a'
  assert _chosen(filters=['learning_rate>0', 'accuracy>0.6']) == 'b'


def test_mistakes_are_reported():
  for kwargs, message in (
    ({'statuses': ['runing']}, '--status=runing: no such status'),
    ({'filters': ['learning_rate']}, '--filter=learning_rate: expected NAME=VALUE'),
    ({'filters': ['nothing=1']}, '--filter=nothing: no run has a metric or a field'),
    ({'filters': ['accuracy>>0.5']}, "--filter=accuracy>>0.5: > compares numbers, and '>0.5' is none"),
  ):
    with pytest.raises(errors.UserError, match=message):
      _chosen(**kwargs)


@pytest.mark.parametrize(
  'sort,expected',
  [
    ('accuracy', 'bacd'),  # The best first, and those without it last.
    ('-accuracy', 'abcd'),
    ('loss', 'dabc'),
    ('learning_rate', 'abcd'),
    ('-learning_rate', 'cbad'),
    ('started', 'dcab'),
    ('step', 'abcd'),
    ('-name', 'dcba'),
  ],
)
def test_order(sort, expected):
  assert ''.join(run.name for run in selection.in_order(_RUNS, sort, lambda: _PARAMS)) == expected


def test_a_metric_of_evaluations_is_not_compared_with_training():
  """A run that was stopped before its first evaluation is not the best by its accuracy in training."""
  runs = [
    run_index.RunSummary('evaluated', '/', 'finished', '', 'digits', evaluation={'accuracy': 0.8}),
    run_index.RunSummary('stopped', '/', 'preempted', '', 'digits', train={'accuracy': 1.0}),
  ]
  assert [run.name for run in selection.in_order(runs, 'accuracy', dict)] == ['evaluated', 'stopped']
  assert [run.name for run in selection.Selection(filters=['accuracy>0.5']).choose(runs, dict)] == ['evaluated']
  assert [run.name for run in selection.in_order(runs[1:], 'accuracy', dict)] == ['stopped']


def test_configurations_are_read_only_if_they_are_needed():
  selection.in_order(_RUNS, 'accuracy', lambda: 1 / 0)
  selection.Selection(filters=['accuracy>0']).choose(_RUNS, lambda: 1 / 0)
