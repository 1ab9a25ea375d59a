"""Curves of runs, and runs side by side, as the pages request them."""

import json

import pytest

from official_ext.operations.runs import run_comparison
from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture(scope='module')
def console(tmp_path_factory, start_console):
  root = tmp_path_factory.mktemp('runs')
  for number in range(2):
    events = [event('start', 0, effective_batch_size=8)]
    for step in range(1, 2001):
      loss = 'NaN' if step == 700 and number else 1e6 if step == 1300 and number else 1 / step
      events.append(event('train', step, training_loss=loss))
    events.append(event('eval', 2000, accuracy=0.5 + number / 4))
    folders.make(root, f'run {number}', events, seed=number, identity=folders.ended_process(), status='finished')
  folders.make(root, 'old', [event('train', 1, training_loss=0.5)])
  return start_console(root)


def test_names_of_curves(console):
  assert console.get('/api/curves/names', run=['run 0', 'none', 'old', '../run 0']) == {
    'names': {'run 0': ['train/training_loss', 'eval/accuracy'], 'old': ['train/training_loss']},
    'missing': ['none', '../run 0'],
  }


def test_curves_are_strict_json_with_the_spike_and_the_nan(console):
  runs = ['run 0', 'run 1']
  found = console.get('/api/curves', run=runs, name='train/training_loss', buckets=50)
  assert (found['first'], found['last'], found['lacking']) == (1, 2000, [])
  assert [(each['run'], each['name'], each['num_points']) for each in found['curves']] == [
    (run, 'train/training_loss', 2000) for run in runs
  ]
  spiky = found['curves'][1]
  assert len(spiky['x']) == len(spiky['low']) == len(spiky['rises']) == 50
  assert (max(spiky['high']), spiky['marks'], spiky['num_marks']) == (1e6, {'NaN': [700]}, {'NaN': 1})
  # A part of it, point by point.
  part = console.get('/api/curves', run='run 1', name='train/training_loss', buckets=50, first=690, last=710)
  (curve,) = part['curves']
  assert curve['x'] == list(range(689, 712)) and curve['y'][11] is None
  examples = console.get('/api/curves', run=['run 0', 'old'], name='eval/accuracy', x='examples')
  assert (examples['curves'][0]['x'], examples['lacking']) == ([16_000], ['old'])


def test_runs_side_by_side_are_what_the_command_prints(console):
  from official_ext.operations.runs import run_folders

  runs = [run_folders.get_run(console.context.root, name) for name in ('run 0', 'run 1')]
  found = console.get('/api/compare', run=[run.name for run in runs])
  assert found == json.loads(json.dumps(run_comparison.compare_runs(runs).as_dict()))
  assert found['params'] == {'runtime.seed': [0, 1]}
  assert found['best']['accuracy'] == [[0.5, 2000], [0.75, 2000]]
  everything = console.get('/api/compare', run=[run.name for run in runs], all=1)
  assert everything['params']['trainer.train_steps'] == [100, 100]


def test_a_number_for_a_curve_of_each_run(console):
  ask = lambda **query: console.get('/api/curves/values', run=['run 0', 'old', 'run 1'], **query)['values']
  found = ask(name='train/training_loss', value='max')
  assert [(each['value'], each['step']) for each in found] == [(1, 1), (0.5, 1), (1e6, 1300)]
  assert ask(name='eval/accuracy', value='best')[1] is None


def test_curves_over_a_metric_of_groups_count_what_they_leave_out(console):
  query = {'run': ['run 0', 'run 1'], 'name': 'eval/accuracy', 'x': 'train/training_loss'}
  curves = console.get('/api/curves', **query)['curves']
  assert [(each['x'], each['num_unplaced']) for each in curves] == [([1 / 2000], 0)] * 2
  query |= {'name': 'train/training_loss', 'x': 'eval/accuracy', 'group': ['a', 'a']}
  (band,) = console.get('/api/curves', **query)['curves']
  assert (band['x'], band['num_unplaced']) == ([0.5, 0.75], 2 * 1999)


def test_curves_of_groups(console):
  runs = ['run 0', 'run 1']
  found = console.get('/api/groups', run=runs)
  assert found == {'fields': [], 'groups': [{'label': 'all', 'runs': runs}]}  # The seed is no field of a group.
  by_seed = console.get('/api/groups', run=['run 1', 'run 0'], by='runtime.seed')['groups']
  assert by_seed == [{'label': 'seed=1', 'runs': ['run 1']}, {'label': 'seed=0', 'runs': ['run 0']}]
  (curve,) = console.get('/api/curves', run=runs, name='eval/accuracy', group=['0', '0'])['curves']
  assert (curve['run'], curve['num_runs'], curve['y']) == ('0', 2, [0.625])
  deviation = 0.25 / 2**0.5
  assert (curve['low'], curve['high']) == ([pytest.approx(0.625 - deviation)], [pytest.approx(0.625 + deviation)])


@pytest.mark.parametrize(
  'path,query',
  [
    ('/api/curves', {}),
    ('/api/curves', {'run': 'none', 'name': 'train/a'}),
    ('/api/curves', {'run': '../run 0', 'name': 'train/a'}),
    ('/api/curves', {'run': 'run 0', 'name': 'loss'}),
    ('/api/curves', {'run': 'run 0', 'name': '../events:eval/loss'}),
    ('/api/curves', {'run': 'run 0', 'name': 'train/a', 'buckets': 10**9}),
    ('/api/curves', {'run': 'run 0', 'name': 'train/a', 'buckets': 'nan'}),
    ('/api/curves', {'run': 'run 0', 'name': 'train/a', 'first': 2, 'last': 1}),
    ('/api/curves', {'run': 'run 0', 'name': 'train/a', 'x': 'epoch'}),
    ('/api/curves', {'run': ['run 0', 'run 1'], 'name': [f'train/{i}' for i in range(1001)]}),
    ('/api/curves', {'run': ['run 0', 'run 1'], 'name': 'train/a', 'group': 'one'}),
    ('/api/groups', {'run': 'none'}),
    ('/api/groups', {'run': 'run 0', 'by': 'no_such_field'}),
    ('/api/curves/names', {}),
    ('/api/curves', {'run': 'run 0', 'name': 'train/training_loss', 'x': 'training_loss'}),
    ('/api/curves/values', {'run': 'run 0', 'name': 'training_loss'}),
    ('/api/curves/values', {'run': 'run 0', 'name': 'train/training_loss', 'value': 'median'}),
    ('/api/curves/values', {'run': 'run 0', 'name': 'train/training_loss', 'value': 'mean', 'count': 0}),
    ('/api/curves/values', {'run': '../run 0', 'name': 'train/training_loss'}),
    ('/api/compare', {'run': [f'run {i}' for i in range(101)]}),
  ],
)
def test_what_cannot_be_asked_is_reported(console, path, query):
  status, answer = console.try_get(path, **query)
  assert status == 400 and len(answer['errors']) == 1
