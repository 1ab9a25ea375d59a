"""official-ext runs with runs on remote file systems: TensorFlow reads file:// as it reads gs://."""

import pytest

from official_ext.cli import main as cli
from tests.operations.runs import folders
from tests.operations.runs import run_checkpoints_test
from tests.operations.runs.folders import event

READING = ('show', 'compare', 'config', 'checkpoints', 'events')
OTHERS = ('log', 'export', 'tag', 'archive', 'delete', 'stop', 'evaluate')


@pytest.fixture
def runs(capfd, tmp_path_factory, monkeypatch):
  """runs(command, ...) -> (status, stdout, stderr)."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))

  def run(*arguments):
    code = cli.main(['runs', *map(str, arguments)])
    return code, *capfd.readouterr()

  return run


@pytest.fixture
def both(tmp_path):
  """The path of a run, and its remote path."""
  events = [event('train', 8, training_loss=2.0), event('eval', 8, accuracy=0.5), event('train', 10, training_loss=1.0)]
  folders.make(tmp_path, 'a b', events, identity=folders.ended_process())
  run_checkpoints_test._save(tmp_path / 'a b', 'ckpt-8')
  run_checkpoints_test._save(tmp_path / 'a b', 'ckpt-10')
  (tmp_path / 'a b' / 'ckpt-10.index').write_bytes(b'short')
  run_checkpoints_test._save(tmp_path / 'a b' / 'best', 'best_ckpt-8', step=8, logs={'accuracy': 0.5})
  (tmp_path / 'a b' / 'train').mkdir()
  return str(tmp_path / 'a b'), f'file://{tmp_path}/a b'


@pytest.mark.tensorflow
@pytest.mark.parametrize('command', [each for each in READING if each != 'compare'])
def test_a_remote_run_reads_like_a_local_one(command, both, runs):
  local, remote = both
  expected = runs(command, local)
  assert expected[0] == 0 and expected[1]
  code, out, _ = runs(command, remote)
  assert (code, out.replace(remote, local)) == expected[:2]


@pytest.mark.tensorflow
def test_remote_runs_are_compared(both, runs, tmp_path):
  folders.make(tmp_path, 'c', rate=0.5, identity=folders.ended_process())
  code, out, _ = runs('compare', both[1], f'file://{tmp_path}/c/', '--json')
  assert code == 0 and 'a b' in out and '"c"' in out
  code, _, err = runs('compare', both[1], tmp_path / 'c')
  assert code == 2 and 'is a local folder beside the remote' in err


@pytest.mark.parametrize('command', OTHERS)
def test_a_command_that_changes_runs_names_those_that_read_remote_ones(command, both, runs):
  needed = {'export': ['--to=csv'], 'tag': ['--tag=a']}
  code, _, err = runs(command, both[1], *needed.get(command, ()))
  assert code == 2 and err.startswith(f'error: {both[1]}: this command takes local folders; {", ".join(READING[:-1])}')


@pytest.mark.tensorflow
def test_a_remote_folder_without_a_run_is_an_error_in_one_line(tmp_path, runs):
  (tmp_path / 'empty').mkdir()
  for name in ('empty', 'none'):
    folder = f'file://{tmp_path}/{name}'
    assert runs('show', folder) == (2, '', f'error: {folder}: no run; name the folder that has its run.json\n')
  assert runs('show', 'unknown://b/run')[2].startswith('error: unknown://b/run: cannot be read: ')
