"""Tests of the requests of the sweeps' pages."""

import json
import os

import pytest

from tests.operations.queue import queues
from tests.operations.runs import folders as run_folders
from tests.operations.sweeps import folders


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp('sweeps') / 'runs'
  folders.make(root, 'search', count=8, pruned=(3,), failed=(5,))
  folders.make(root, 'in/side', count=2, run_cap=9)
  return root


@pytest.fixture(scope='module')
def console(root, start_console):
  return start_console(root)


def test_sweeps_are_listed_with_their_best(console, root):
  found = {each['name']: each for each in console.get('/api/sweeps')['sweeps']}
  assert found.keys() == {'search', 'in/side'}
  assert found['search']['counts'] == {'finished': 6, 'pruned': 1, 'failed': 1}
  values = {
    number: folders.accuracy(point.record.proposal.parameters) - 0.06
    for number, point in folders.points(folders.sweep_folder.SweepFolder(str(root), 'search')).items()
    if point.status == 'finished'
  }
  best = max(values, key=values.get)
  assert found['search']['best']['point'] == best
  assert found['search']['best']['value'] == pytest.approx(values[best])
  assert found['in/side']['status'] == 'interrupted'  # 2 of 9.


def test_a_sweep_has_its_points_in_order_and_its_file(console, root):
  found = console.get('/api/sweep', sweep='search')
  assert found['order'][0] == found['best']
  assert {point['point'] for point in found['points']} == set(range(1, 9))
  assert found['points'][2]['reason'] == '0.5 at iteration 1, and 0.7 was needed'
  assert found['file'] == (root / 'search/sweep.yaml').read_text()
  assert found['command'] == f'official-ext sweep {root}/search'
  assert all(os.path.isdir(root / point['run']) for point in found['points'])


@pytest.mark.slow
def test_importances_are_computed_beside_the_server(console):
  ask = lambda name: console.get('/api/sweep/importances', sweep=name)['importances']
  found = queues.until(lambda: ask('search'))
  assert list(found)[0] in ('learning_rate', 'task.model.dropout_rate', 'optimizer')
  assert sum(found.values()) == pytest.approx(1)
  assert ask('search') == found  # At once.
  assert 'too few points' in queues.until(lambda: ask('in/side'))


def test_points_are_tried_again_resumed_and_deleted(console, root):
  found = console.post('/api/sweep/retry', sweep='search')
  assert found['done'] == {'points': [5]}
  assert found['sweep']['counts']['queued'] == 1
  assert console.post('/api/sweep/resume', sweep='search', points=[3])['sweep']['counts']['queued'] == 2
  assert console.post('/api/sweep/delete', sweep='search', points=[5])['sweep']['counts']['deleted'] == 1
  assert console.try_post('/api/sweep/resume', sweep='search', points=[1]) == (
    400,
    {'errors': ['point 1: is finished: only pruned or stopped points can be resumed']},
  )
  stopped = console.post('/api/sweep/stop', sweep='search')
  assert stopped['done'] == {'points': [3]}
  assert stopped['sweep']['status'] == 'stopped'
  assert console.try_post('/api/sweep/go_on', sweep='search', slots=0)[0] == 400


def test_no_path_leads_out_of_the_folder(console, root, tmp_path):
  folders.make(tmp_path, 'other', count=1)
  os.symlink(tmp_path / 'other', root / 'link')
  os.makedirs(root / 'half')
  (root / 'half/settings.json').write_text('{}')
  os.symlink(tmp_path / 'other/sweep.yaml', root / 'half/sweep.yaml')
  for name in ('link', 'half', '../other', '.trash', '/etc', '', 'search/../search', 'none'):
    status, answer = console.try_get('/api/sweep', sweep=name)
    assert status == 400, answer
    assert console.try_post('/api/sweep/stop', sweep=name)[0] == 400
  assert {each['name'] for each in console.get('/api/sweeps')['sweeps']} == {'search', 'in/side'}


def test_a_sweep_whose_file_is_damaged_reports_it(console, root):
  run_folders.make(root, 'a', status='finished')
  (root / 'broken').mkdir()
  (root / 'broken/settings.json').write_text(json.dumps({}))
  (root / 'broken/sweep.yaml').write_text('method: gird')
  found = {each['name']: each for each in console.get('/api/sweeps')['sweeps']}
  assert found['broken']['status'] == 'unreadable'
  assert found['broken']['reason'].startswith("method: 'gird' is invalid")
