"""official-ext runs with runs on remote file systems: ram:// stands for gs://, which tests cannot reach."""

import json
import os

import pytest

from official_ext.base.files import paths
from official_ext.cli import main as cli
from tests.operations.runs import folders
from tests.operations.runs import run_checkpoints_test
from tests.operations.runs.folders import event

READING = ('show', 'compare', 'config', 'checkpoints', 'events')
REFUSED = {
  'delete': (['a'], '`runs delete` requires locks and renames of folders'),
  'resume': (['a', '--train_steps=200'], 'a detached process keeps its log and its lock in a local folder'),
  'evaluate': (['a'], 'a detached process keeps its log and its lock in a local folder'),
  'clone': (['a', '--start'], 'a detached process needs a local folder'),
  'import': (['--to=/tmp/runs'], 'this command takes local folders'),
  'log': (['a'], 'has no run.log'),
  'export': (['a', '--to=csv'], '--output_dir'),
}


@pytest.fixture
def runs(capfd, tmp_path_factory, monkeypatch):
  """runs(command, ...) -> (status, stdout, stderr)."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))

  def run(*arguments):
    code = cli.main(['runs', *map(str, arguments)])
    return code, *capfd.readouterr()

  return run


@pytest.fixture
def printed(runs):
  """printed(command, ...) -> stdout of a command that succeeds."""

  def run(*arguments):
    code, out, err = runs(*arguments)
    assert code == 0, err
    return out

  return run


def _make(root):
  """The run `a` in a local folder."""
  events = [event('train', 8, training_loss=2.0), event('eval', 8, accuracy=0.5), event('train', 10, training_loss=1.0)]
  ended = folders.ended_process()
  command = f'python train.py --experiment=digits --mode=train --model_dir={root}/a'
  folders.make(root, 'a', events, identity=ended, command=command, status='preempted')
  run_checkpoints_test._save(root / 'a', 'ckpt-8')
  run_checkpoints_test._save(root / 'a', 'ckpt-10')
  (root / 'a/ckpt-10.index').write_bytes(b'short')
  run_checkpoints_test._save(root / 'a/best', 'best_ckpt-8', step=8, logs={'accuracy': 0.5})
  (root / 'a/train').mkdir()


@pytest.fixture
def local(tmp_path):
  """A folder with the run `a`."""
  _make(tmp_path / 'runs')
  return tmp_path / 'runs'


@pytest.fixture
def remote(local):
  """A copy of that folder in memory."""
  root = f'ram:/{local}'
  for name in paths.files_below(str(local)):
    paths.make_folder(os.path.dirname(f'{root}/{name}'))
    paths.write_atomically(f'{root}/{name}', (local / name).read_bytes())
  return root


@pytest.mark.parametrize('command', READING)
def test_a_url_of_a_file_is_its_path(command, local, printed):
  folders.make(local, 'c', rate=0.5, identity=folders.ended_process())
  more = ['c'] if command == 'compare' else []
  expected = printed(command, local, 'a', *more)
  assert printed(command, f'file://{local}', 'a', *more) == expected
  assert printed(command, f'file://{local}/a', *(f'file://localhost{local}/{name}' for name in more)) == expected
  assert printed(command, local, f'file://{local}/a', *more) == expected


def test_a_run_is_changed_by_its_url(local, printed, runs):
  url = f'file://{local}'
  assert printed('tag', url, 'a', '--tag=x') == 'a: x\n' and 'a: x' in printed('tag', local, 'a')
  printed('archive', f'{url}/a')
  assert 'a' in printed('list', url, '--archived') and 'no runs, but 1 archived' in printed('list', local)
  printed('restore', url, 'a')
  assert f'--model_dir={local}/b' in printed('clone', url, 'a', '--name=b') and (local / 'b/base_params.yaml').exists()
  assert '--set=trainer.train_steps=200' in printed('resume', url, 'a', '--train_steps=200', '--print')
  printed('delete', url, 'a')
  assert 'a' in printed('list', url, '--trash') and not (local / 'a').exists()
  code, _, err = runs('list', 'file://runs/a')
  assert code == 2 and err.startswith(
    "error: runs list: argument RUNS_DIR: file://runs/a: names the host 'runs'; write "
  )


@pytest.mark.tensorflow
@pytest.mark.parametrize('command', [each for each in READING if each not in ('compare', 'checkpoints')])
def test_a_remote_run_reads_like_a_local_one(command, local, remote, printed):
  expected = printed(command, local / 'a')
  for words in ([f'{remote}/a'], [f'{remote}/a/'], [remote, 'a'], [local, f'{remote}/a']):
    assert printed(command, *words).replace(remote, str(local)) == expected


@pytest.mark.tensorflow
def test_remote_runs_are_listed_and_queried(local, remote, printed):
  folders.make(local, 'a2', rate=0.5, identity=folders.ended_process(1))  # To ram:// `a` is the start of its name.
  for name in ('run.json', 'events.jsonl', 'params.yaml'):
    paths.make_folder(f'{remote}/deep/a2')
    paths.write_atomically(f'{remote}/deep/a2/{name}', (local / 'a2' / name).read_bytes())
  found = json.loads(printed('list', remote, '--json'))
  assert [(each['name'], each['path'], each['step']) for each in found] == [
    ('a', f'{remote}/a', 10),
    ('deep/a2', f'{remote}/deep/a2', 10),
  ]
  assert found[0]['evaluation'] == {'accuracy': 0.5} and found[0]['train'] == {'training_loss': 1.0}
  (one,) = json.loads(printed('list', remote, '--filter=learning_rate=0.5', '--json'))
  assert one['name'] == 'deep/a2'
  assert 'training_loss' in printed('table', remote, '--metric=training_loss', '--status=preempted', '--group=name')
  rows = printed('query', remote, 'SELECT run, step, value FROM metrics ORDER BY 2', '--format=csv').split()
  assert rows == ['run,step,value', 'a,8,2.0', 'a,8,0.5', 'a,10,1.0']
  listed = json.loads(printed('checkpoints', remote, 'a', '--json'))
  assert [(each['name'], bool(each['damage'])) for each in listed] == [
    ('ckpt-8', False),
    ('ckpt-10', True),
    ('best/best_ckpt-8', False),
  ]


@pytest.mark.tensorflow
def test_remote_and_local_runs_are_compared(local, remote, printed, runs):
  folders.make(local, 'c', rate=0.5, identity=folders.ended_process())
  for words in ([f'{remote}/a', local / 'c'], [local / 'c', f'{remote}/a'], [local, 'c', f'{remote}/a']):
    found = json.loads(printed('compare', *words, '--json'))
    assert sorted(found['names']) == ['a', 'c'] and 0.5 in next(iter(found['params'].values()))
  found = json.loads(printed('compare', f'{remote}/a', local / 'a', '--json'))
  assert found['names'] == [f'{remote}/a', str(local / 'a')] and found['params'] == {}
  code, _, err = runs('compare', f'{remote}/a', f'{remote}/a/')
  assert code == 2 and 'name two runs or more, each by its path' in err
  code, _, err = runs('compare', f'{remote}/a', local / 'none')
  assert code == 2 and 'no run; name the folder that has its run.json' in err


@pytest.mark.tensorflow
def test_a_remote_run_is_tagged_archived_and_cloned(local, remote, printed):
  assert printed('tag', remote, 'a', '--tag=x,y', '--note=good') == 'a: x, y; good\n'
  assert printed('tag', f'{remote}/a', '--untag=x') == 'a: y; good\n'
  assert json.loads(paths.read(f'{remote}/a/notes.json')) == {'tags': ['y'], 'note': 'good'}
  printed('archive', remote, 'a')
  assert 'no runs, but 1 archived' in printed('list', remote)
  printed('restore', remote, 'a')
  assert 'a ' in printed('list', remote) and not paths.exists(f'{remote}/a/archived.json')
  words = printed('clone', remote, 'a', '--name=b')
  assert f'--model_dir={remote}/b --config_file={remote}/b/base_params.yaml' in words
  assert paths.read(f'{remote}/b/base_params.yaml') == (local / 'a/params.yaml').read_bytes()
  assert f'--model_dir={remote}/b-2 ' in printed('clone', f'{remote}', 'a', '--name=b-2')
  assert f'--model_dir={local}/b ' in printed('clone', local, f'{remote}/a', '--name=b')
  assert printed('resume', remote, 'a', '--print').endswith(f'--model_dir={remote}/a\n')
  evaluating = printed('evaluate', remote, 'a', '--print')
  assert f'--config_file={remote}/a/params.yaml --checkpoint={remote}/a/ckpt-8' in evaluating


@pytest.mark.tensorflow
@pytest.mark.parametrize('command', REFUSED)
def test_what_needs_a_local_folder_is_refused_in_a_line(command, remote, runs):
  before = sorted(paths.files_below(remote))
  words, expected = REFUSED[command]
  code, out, err = runs(command, remote, *words)
  assert (code, out) == (2, '') and err.startswith('error: ') and err.count('\n') == 1
  assert expected in err and (remote in err or command == 'log')
  assert sorted(paths.files_below(remote)) == before


@pytest.mark.tensorflow
def test_a_remote_folder_without_a_run_is_an_error_in_one_line(remote, runs):
  paths.make_folder(f'{remote}/empty')
  for name in ('empty', 'none'):
    folder = f'{remote}/{name}'
    assert runs('show', folder) == (2, '', f'error: {folder}: no run; name the folder that has its run.json\n')
  assert runs('list', f'{remote}/none')[2] == f'error: {remote}/none: no such folder; name the one that has your runs\n'
  for command in ('show', 'list'):
    assert runs(command, 'unknown://b/run')[2].startswith('error: unknown://b/run: cannot be read: ')
