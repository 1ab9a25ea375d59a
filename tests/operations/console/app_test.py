"""The console as a program, and its list of runs: it does the same as the command line."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from official_ext.cli import main as cli
from official_ext.operations.console import app
from official_ext.operations.console import security
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index
from official_ext.operations.runs import run_processes
from official_ext.operations.runs import statuses
from tests import disks
from tests.operations.console import small_run
from tests.operations.runs import folders
from tests.operations.runs.folders import event


def _wait(condition, seconds=60):
  deadline = time.monotonic() + seconds
  while not (found := condition()):
    assert time.monotonic() < deadline
    time.sleep(0.02)
  return found


class _Program:
  """`official-ext console` as a process."""

  def __init__(self, root, port=0):
    words = [sys.executable, '-m', 'official_ext.cli.main', 'console', str(root), f'--port={port}']
    self.process = subprocess.Popen(
      words, cwd=small_run.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    self.line = self.process.stdout.readline()
    assert 'http://127.0.0.1:' in self.line, self.line + self.process.stdout.read()
    self.port = int(self.line.partition('http://127.0.0.1:')[2].partition(' ')[0])

  def get(self, path):
    connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=20)
    connection.request('GET', path)
    return json.loads(connection.getresponse().read())

  def end(self, number=signal.SIGKILL):
    self.process.send_signal(number)
    rest = self.process.stdout.read()
    return self.process.wait(20), rest


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  root = tmp_path_factory.mktemp('app') / 'runs'
  ended = folders.ended_process()
  folders.make(root, 'good', [event('eval', 10, accuracy=0.9)], rate=1e-3, identity=ended, status='finished')
  folders.make(root, 'bad one/ä"<b>', [event('eval', 10, accuracy=0.5)], rate=1e-2, identity=ended, status='failed')
  folders.make(root, 'nan', [event('train', 10, accuracy=float('nan'))], identity=ended, status='diverged')
  return root


@pytest.fixture(scope='module')
def console(root, start_console):
  return start_console(root)


@pytest.fixture
def processes():
  """Identities of processes to kill in the end."""
  found = []
  yield found
  for run in found:
    if (process := statuses.of_run(run).process) is not None:
      run_processes.send_signal(process, signal.SIGKILL, run.name)


# The list.


def test_the_list_is_that_of_the_command_line(console, root):
  listed = console.get('/api/runs')['runs']
  expected = [json.loads(json.dumps(each.as_dict())) for each in run_index.RunIndex(str(root)).summaries()]
  assert [{**each, 'path': None} for each in listed] == [{**each, 'path': None} for each in expected]
  assert next(run for run in listed if run['name'] == 'nan')['train']['accuracy'] == 'NaN'


_FILTERS = ['accuracy>0.6', 'learning_rate=1e-3', 'name~BAD', 'status!=finished', 'cosine.initial_learning_rate>=0.01']


@pytest.mark.parametrize('condition', _FILTERS)
def test_filters_and_orders_are_those_of_runs_list(console, root, capsys, condition):
  assert cli.main(['runs', 'list', str(root), f'--filter={condition}', '--sort=accuracy', '--json']) == 0
  expected = [each['name'] for each in json.loads(capsys.readouterr().out)]
  assert console.get('/api/runs/filter', filter=condition, sort='accuracy')['names'] == expected
  assert 0 < len(expected) < 3


def test_a_wrong_filter_is_the_line_of_the_command_line(console, root, capsys):
  for condition in ('nothing', 'no_such_field=1'):
    assert cli.main(['runs', 'list', str(root), f'--filter={condition}']) == 2
    code, values = console.try_get('/api/runs/filter', filter=condition)
    assert code == 400
    assert [f'error: {line}' for line in values['errors']] == capsys.readouterr().err.splitlines()


def test_fields_of_configurations_are_listed_by_run(console):
  values = console.get('/api/runs/fields', name=['learning_rate', 'runtime.seed'])['values']
  assert values['good'] == {'learning_rate': 1e-3, 'runtime.seed': 0}
  about = console.get('/api/runs/fields')
  assert 'learning_rate' in about['names'] and 'trainer.train_steps' in about['names']
  assert about['best']['accuracy'] == 'max'


# Actions on several at once.


def test_tags_and_notes_are_those_of_runs_tag(console, root, capsys):
  name = 'bad one/ä"<b>'
  found = console.post('/api/runs/tag', runs=['good', name, 'none'], add=['x', 'y'], note='a\n<b>')
  assert [each['run'] for each in found['done']] == ['good', name] and len(found['errors']) == 1
  cli.main(['runs', 'tag', str(root), name, '--json'])
  assert json.loads(capsys.readouterr().out) == {'name': name, 'tags': ['x', 'y'], 'note': 'a\n<b>'}
  assert console.post('/api/runs/tag', runs=['good'], remove=['x'])['done'][0]['tags'] == ['y']
  assert console.post('/api/runs/tag', runs=['good'], add=['a,b'])['errors'] == [
    "--tag='a,b': a tag has 1 to 100 letters in one line, and no comma"
  ]


def test_a_deleted_run_comes_back_and_an_archived_one_too(console, root):
  folders.make(root, 'gone', [], identity=folders.ended_process(), status='finished')
  (done,) = console.post('/api/runs/delete', runs=['gone'])['done']
  assert not (root / 'gone').exists()
  (deleted,) = console.get('/api/runs/trash')['deleted']
  assert (deleted['key'], deleted['name']) == (done['key'], 'gone')
  assert console.post('/api/runs/restore', keys=[done['key']])['done'] == [{'run': done['key'], 'name': 'gone'}]
  console.post('/api/runs/archive', runs=['gone'])
  assert [run['is_archived'] for run in console.get('/api/runs')['runs'] if run['name'] == 'gone'] == [True]
  console.post('/api/runs/unarchive', runs=['gone'])
  (done,) = console.post('/api/runs/delete', runs=['gone'])['done']
  assert console.post('/api/runs/delete_forever', keys=[done['key']])['errors'] == []
  assert console.get('/api/runs/trash')['deleted'] == [] and not (root / 'gone').exists()


def test_a_run_is_stopped_and_resumes(console, root, processes):
  folder = root / 'lively'
  run = run_folders.Run(str(folder), 'lively')
  processes.append(run)
  run_processes.start_run(small_run.command(folder), str(folder), cwd=str(small_run.ROOT))
  _wait(lambda: statuses.of_run(run).status == 'running')
  for action in ('delete', 'archive'):
    assert 'stop it first' in console.post(f'/api/runs/{action}', runs=['lively'])['errors'][0]
  with console.stream() as stream:
    stream.next('runs')
    stopping = console.post('/api/runs/stop', runs=['lively'])['done'][0]['status']
    assert stopping in ('stopping', 'preempted')
    seen = set()
    while 'preempted' not in seen:
      seen |= {each['status'] for each in stream.next('runs')[1]['changed'] if each['name'] == 'lively'}
  step = int((folder / 'step.txt').read_text())
  _wait(lambda: not statuses.is_alive(run))
  assert console.post('/api/runs/stop', runs=['lively'])['errors']
  for wrong in (0, -1, 1.5, '9', True, 1 << 60):
    error = console.post('/api/runs/resume', runs=['lively'], train_steps=wrong)['errors'][0]
    limit = '9007199254740991 or less' if wrong == 1 << 60 else '1 or more'
    assert error == f'train_steps: expected an integer of {limit}, got {wrong!r}'
  assert console.post('/api/runs/resume', runs=['lively'])['errors'] == []
  _wait(lambda: statuses.of_run(run).status == 'running' and run.record()['step'] >= step)
  assert 'wait for it' in console.post('/api/runs/resume', runs=['lively'])['errors'][0]
  assert console.post('/api/runs/stop', runs=['lively'], now=True)['errors'] == []
  _wait(lambda: not statuses.is_alive(run))
  assert (folder / 'starts.txt').read_text().count('\n') == 2


def test_a_disk_that_cannot_be_written_is_reported(tmp_path, start_console):
  with disks.small(tmp_path / 'disk') as disk:
    root = disk.folder / 'runs'
    folders.make(root, 'run', [event('train', 1)], identity=folders.ended_process(), status='finished')
    console = start_console(root)
    disk.turn_read_only()
    assert [run['name'] for run in console.get('/api/runs')['runs']] == ['run']
    for action in ('tag', 'archive', 'delete'):
      (line,) = console.post(f'/api/runs/{action}', runs=['run'], add=['x'])['errors']
      assert 'cannot be' in line and str(root) in line


def test_an_error_of_our_own_is_an_answer_and_not_the_end(console, capfd):
  def fails(_):
    raise ZeroDivisionError('ours')

  answer = app.answers.handler(fails)(None)
  assert answer.status_code == 500
  assert b'ZeroDivisionError at app_test.py' in answer.body and b'ours' not in answer.body
  assert 'ZeroDivisionError: ours' in capfd.readouterr().err
  assert console.get('/api/runs')['runs']


# The program.


def _error(capsys, *arguments):
  assert cli.main(['console', *map(str, arguments)]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  return line


def test_what_cannot_be_served_is_one_line(tmp_path, root, capsys, monkeypatch):
  assert 'no such folder' in _error(capsys, tmp_path / 'none')
  assert 'no such folder' in _error(capsys, root / 'good' / 'run.json')
  assert '--port=70000' in _error(capsys, root, '--port=70000')
  assert 'needs a token' in _error(capsys, root, '--host=0.0.0.0')
  monkeypatch.setenv(security.PASSWORD, 'short')
  line = _error(capsys, root, '--host=0.0.0.0')
  assert 'must have 16' in line and 'short' not in line
  monkeypatch.setenv(security.PASSWORD, 'long enough'.replace(' ', '-') * 2)
  assert '--host=none.invalid: is not an address' in _error(capsys, root, '--host=none.invalid')
  monkeypatch.delitem(sys.modules, 'official_ext.operations.console.server')
  monkeypatch.setitem(sys.modules, 'uvicorn', None)
  assert _error(capsys, root) == "error: console: needs starlette and uvicorn: pip install 'official-ext[console]'"


def test_a_port_that_is_taken_is_one_line(console, root, tmp_path, capsys):
  port = console.context.port
  assert f'a console of this folder is already running: http://127.0.0.1:{port}' in _error(
    capsys, root, f'--port={port}'
  )
  assert 'a console of another folder' in _error(capsys, tmp_path, f'--port={port}')
  with socket.create_server(('127.0.0.1', 0)) as other:
    assert 'another program listens' in _error(capsys, root, f'--port={other.getsockname()[1]}')


def test_an_empty_folder_is_served(tmp_path, start_console):
  console = start_console(tmp_path)
  assert console.get('/api/runs') == {'runs': []}
  assert console.get('/api/runs/fields') == {'names': [], 'best': {}}
  with console.stream() as stream:
    assert stream.next('runs')[1]['all'] == []
  assert os.listdir(tmp_path) == []  # It has left nothing there.


@pytest.mark.slow
@pytest.mark.parametrize('kills', [3, pytest.param(100, marks=pytest.mark.soak)])
def test_runs_continue_whatever_becomes_of_the_server(tmp_path, processes, kills):
  """Killed again and again, also while it starts and stops runs; in the end it gets SIGTERM, and ends at once."""
  root = tmp_path / 'runs'
  for number in range(3):
    run = run_folders.Run(str(root / f'run{number}'), f'run{number}')
    processes.append(run)
    run_processes.start_run(small_run.command(run.path), run.path, cwd=str(small_run.ROOT))
  _wait(lambda: all(statuses.of_run(run).status == 'running' for run in processes))
  port = 0
  for kill in range(kills):
    program = _Program(root, port)
    port = program.port
    began = time.monotonic()
    listed = program.get('/api/runs')['runs']
    assert time.monotonic() - began < 2
    assert [(each['name'], each['status']) for each in listed] == [(f'run{number}', 'running') for number in range(3)]
    assert program.end()[0] == -signal.SIGKILL
    assert kill == kills - 1 or len(listed) == 3
  assert all(statuses.of_run(run).status == 'running' for run in processes)
  assert [(root / f'run{number}' / 'starts.txt').read_text().count('\n') for number in range(3)] == [1, 1, 1]
  program = _Program(root, port)
  second = _Program(root)  # Two of one folder are in nobody's way.
  assert [each['name'] for each in second.get('/api/runs')['runs']] == ['run0', 'run1', 'run2']
  listener = http.client.HTTPConnection('127.0.0.1', program.port, timeout=20)
  listener.request('GET', '/api/stream?topics=runs&run=run0')
  assert listener.getresponse().readline()
  for each, number in ((program, signal.SIGTERM), (second, signal.SIGINT)):
    began = time.monotonic()
    assert each.end(number) == (0, '')  # No word but the line at the beginning.
    assert time.monotonic() - began < 1.5
