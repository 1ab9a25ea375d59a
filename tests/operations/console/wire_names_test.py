"""Names of files that are not UTF-8, to a browser and back."""

import json
import os
import urllib.parse

import pytest

from official_ext.operations.console import answers
from official_ext.operations.runs import run_folders
from tests.operations.runs import folders
from tests.operations.sweeps import folders as sweep_folders

_NAMES = [b'caf\xe9', b'\xff\xfe', 'käse 🧀'.encode(), rb'\udce9', b'\xf0\x9f', b'plain']


@pytest.mark.parametrize('name', map(os.fsdecode, _NAMES))
def test_a_name_survives_json_an_address_and_the_way_back(name):
  sent = json.loads(answers.names_in_json(json.dumps({'name': name})))['name']
  assert sent.encode()  # Valid Unicode.
  returned = urllib.parse.parse_qs(urllib.parse.urlencode({'run': sent}))['run'][0]
  assert answers.name_of_wire(returned) == name


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp('names') / 'runs'
  for name in map(os.fsdecode, _NAMES):
    folders.make(
      root, name, [folders.event('train', 1, loss=1.0)], identity=folders.ended_process(), status='preempted'
    )
  sweep_folders.make(root, os.fsdecode(b'sweep\xe9'), count=2)
  return root


def test_each_run_and_sweep_of_the_list_can_be_opened_and_changed(root, start_console):
  console = start_console(root)
  listed = [run['name'] for run in console.get('/api/runs')['runs'] if '/' not in run['name']]
  assert sorted(map(answers.name_of_wire, listed)) == sorted(map(os.fsdecode, _NAMES))
  for name in listed:
    assert console.get('/api/run', run=name)['summary']['name'] == name
    found = console.get('/api/curves', run=name, name='train/loss')['curves']
    assert [(curve['run'], curve['y']) for curve in found] == [(name, [1.0])]
    with console.stream(topics='', run=[name], **{'from': '0'}) as stream:
      assert stream.next('events')[1]['run'] == name
  done = console.post('/api/runs/tag', runs=listed, add=['good'])['done']
  assert [each['run'] for each in done] == listed
  (sweep,) = console.get('/api/sweeps')['sweeps']
  assert console.get('/api/sweep', sweep=sweep['name'])['name'] == sweep['name']
  deleted = console.post('/api/runs/delete', runs=listed)['done']
  assert len(deleted) == len(listed) and not [run for run in run_folders.find_runs(str(root)) if '/' not in run.name]
  console.post('/api/runs/restore', keys=[each['key'] for each in deleted])
  assert len([run for run in run_folders.find_runs(str(root)) if '/' not in run.name]) == len(_NAMES)
