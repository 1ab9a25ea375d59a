"""A sweep from the form of a new run."""

import os

import pytest
import yaml

from official_ext.operations.queue import queue_folder
from official_ext.operations.sweeps import sweep_folder
from tests.operations.queue import queues
from tests.operations.runs import folders


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  return tmp_path_factory.mktemp('runs')


@pytest.fixture(scope='module')
def console(root, start_console):
  return start_console(root)


def _form(*parameters, **values):
  return {'experiment': 'digits', 'mode': 'train', 'name': '', 'parameters': list(parameters), **values}


_RATES = {'name': 'learning_rate', 'kind': 'log', 'low': '1e-3', 'high': '1e-1', 'count': 3}


def test_the_number_of_points_and_the_file_are_reported_and_nothing_is_written(console, root):
  edits = [{'key': 'train_steps', 'text': '5'}]
  found = console.post(
    '/api/new/sweep/check', **_form(_RATES, {'name': 'seed', 'values': '1, 2'}, edits=edits, slots=2)
  )
  assert (found['name'], found['points'], found['lines']) == ('digits-sweep', 6, [])
  file = yaml.safe_load(found['file'])
  assert file['parameters'] == {'learning_rate': {'values': [1e-3, 1e-2, 1e-1]}, 'seed': {'values': [1, 2]}}
  assert file['flags'] == ['--set=train_steps=5']
  assert found['command'] == f'official-ext sweep digits-sweep.yaml {root} --slots=2'
  found = console.post('/api/new/sweep/check', **_form(_RATES, {'name': 'seed', 'values': ''}))
  assert (found['points'], found['lines']) == (None, ['seed: expected values such as 1, 2'])
  assert os.listdir(root) == []


@pytest.mark.parametrize(
  'values',
  [
    {'name': '../swept'},
    {'name': '/tmp/out'},
    {'name': 'taken'},
    {'mode': 'eval'},
    {'parameters': []},
    {'parameters': 'a'},
    {'slots': 0},
    {'count': 'x', 'method': 'random'},
    {'experiment': ''},
  ],
)
def test_what_cannot_be_started_is_refused_before_a_process(console, root, values):
  folders.make(root, 'taken')
  body = {**_form(_RATES, name='search'), **values}
  checked = console.post('/api/new/sweep/check', **body)
  assert checked['lines'] and checked['points'] is None
  status, answer = console.try_post('/api/new/sweep/start', **body)
  assert status == 400 and answer['errors']
  assert set(os.listdir(root)) == {'taken'} and not os.path.exists(root.parent / 'swept')


def test_a_start_needs_the_token_of_the_page(console):
  status, _, _ = console.request(
    'POST', '/api/new/sweep/start', '{}', {'Content-Type': 'application/json', 'Origin': console.url}
  )
  assert status == 403


@pytest.mark.slow
def test_the_drivers_mistakes_are_reported_and_nothing_is_left(console, root):
  """A real `official-ext sweep`, with its process that holds TensorFlow."""
  before = set(os.listdir(root))
  body = _form({'name': 'learning_rate', 'values': '0.1, fast'}, name='wrong', base='trainer:\n  train_steps: 3\n')
  status, answer = console.try_post('/api/new/sweep/start', **body)
  assert status == 400 and any('fast' in line for line in answer['errors'])
  assert set(os.listdir(root)) == before


@pytest.mark.slow
def test_a_sweep_is_started_with_its_pasted_configuration(console, root):
  """Real points, which train."""
  body = _form({'name': 'learning_rate', 'values': '0.1, 0.01'}, name='made', base='trainer:\n  train_steps: 3\n')
  assert console.post('/api/new/sweep/start', **body) == {'sweep': 'made'}
  folder = sweep_folder.SweepFolder(str(root), 'made')
  assert folder.load().flags == (f'--config_file={root}/made/base_params.yaml',)
  queues.until(lambda: console.get('/api/sweep', sweep='made')['counts'].get('finished') == 2)
  assert [point['parameters'] for point in console.get('/api/sweep', sweep='made')['points']] == [
    {'learning_rate': 0.1},
    {'learning_rate': 0.01},
  ]
  for record in folder.records():
    assert yaml.safe_load(open(os.path.join(record.folder, 'params.yaml')))['trainer']['train_steps'] == 3
  queues.until(lambda: queue_folder.Queue(str(root)).dispatcher() is None)
