"""The life of a run in folders named with their file system: file://, and ram://, which ends with its process."""

import json
import os
import signal
import time

import numpy as np
from official.common import registry_imports  # noqa: F401  Model Garden's experiments.
import pytest
import tensorflow as tf

import official_ext
from official_ext.base import errors
from official_ext.base.run_folder import run_lock
from official_ext.base.run_folder import run_status
from official_ext.cli import main as cli
from official_ext.deployment.server import served_model
from official_ext.training.checkpoints import manifests
from official_ext.training.writers import writers
from tests import tiers
from tests.cli import export_test
from tests.operations.console import servers
from tests.soak import comparison
from tests.training.loop import small_run

FLAGS = [
  '--experiment=digits_mlp',
  '--set=runtime.enable_xla=false',
  '--set=steps_per_loop=5',
  '--set=checkpoint_interval=5',
  '--set=summary_interval=5',
  '--set=trainer.validation_interval=5',
  '--set=trainer.validation_steps=1',
  '--set=trainer.writers=[csv]',
]


@pytest.fixture
def command(capsys, tmp_path_factory, monkeypatch):
  """command(...) -> stdout of `official-ext ...`, which must succeed."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))

  def run(*arguments):
    status = cli.main(list(map(str, arguments)))
    output = capsys.readouterr()
    assert status == 0, output.err
    return output.out

  return run


@pytest.fixture
def console():
  """console(root) -> a console of the runs in a folder."""
  started = []

  def start(root):
    started.append(servers.Console(root))
    return started[-1]

  yield start
  for each in started:
    each.close()


def _tensors(path):
  reader = tf.compat.v1.train.NewCheckpointReader(path)
  names = [name for name in reader.get_variable_to_shape_map() if not name.startswith('save_counter/')]
  return {name: np.asarray(reader.get_tensor(name)) for name in names}


def _are_equal(one, other):
  return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@tiers.parametrize('is_whole', [False, True], fast=1)
def test_a_run_lives_in_a_folder_of_file(is_whole, run_train, start_train, command, console, tmp_path):
  url, folder = f'file://{tmp_path}/runs/a', tmp_path / 'runs/a'
  flags = [*FLAGS, '--mode=train_and_eval', f'--model_dir={url}']
  first = start_train([*flags, '--set=train_steps=100000000'])
  first.stdout.close()
  first.stdout = None
  deadline = time.monotonic() + 120
  while not manifests.complete_paths(str(folder)):  # Before: a TypeError at the first start.
    assert first.poll() is None and time.monotonic() < deadline
    time.sleep(0.05)
  with pytest.raises(errors.UserError, match=f'process {first.pid} on '):  # Locked, as under its path.
    run_lock.check_free(str(folder))
  os.kill(first.pid, signal.SIGKILL)
  first.wait()
  newest = manifests.step_of(manifests.complete_paths(str(folder))[-1])

  more = f'--set=train_steps={newest + 10}'
  by_path = [*FLAGS, '--mode=train_and_eval', f'--model_dir={folder}', more]
  done = run_train(by_path)  # The same run.
  assert done.returncode == 0, done.stderr
  assert f'restored {newest}/{newest + 10}  {folder}/ckpt-{newest}' in done.stdout
  record = json.loads((folder / 'run.json').read_text())
  assert (record['status'], record['attempt'], record['step']) == ('finished', 2, newest + 10)

  if is_whole:
    done = run_train([*FLAGS, more, '--mode=eval', f'--model_dir={url}', f'--checkpoint={url}/ckpt-{newest + 5}'])
    assert done.returncode == 0 and f'eval step {newest + 5} ' in done.stdout, done.stderr
    done = run_train([*FLAGS, more, '--mode=export', f'--model_dir={url}'])
    assert done.returncode == 0 and (folder / f'export/{newest + 10}/saved_model.pb').exists(), done.stderr

  (listed,) = json.loads(command('runs', 'list', f'file://{tmp_path}/runs', '--json'))
  assert (listed['path'], listed['status'], listed['step']) == (str(folder), 'finished', newest + 10)
  assert command('runs', 'show', url) == command('runs', 'show', folder)
  assert command('runs', 'tag', url, '--tag=kept') == 'a: kept\n'
  found = console(f'file://{tmp_path}/runs').get('/api/runs')
  assert [(run['name'], run['tags']) for run in found['runs']] == [('a', ['kept'])]


class _Interruption(BaseException):
  """Ends a run in the middle of its steps, in a process that lives on."""


def _interrupted(folder, num_loops, **options):
  """Runs until the end of a loop of steps, which is never saved."""
  ended = []

  def interrupt(logs):
    del logs
    ended.append(None)
    if len(ended) == num_loops:
      raise _Interruption

  with pytest.raises(_Interruption):
    small_run.run(folder, train_actions=[interrupt], **options)


@pytest.mark.slow
def test_a_run_in_memory_begins_and_is_restored():
  folder = 'ram://remote_life_test/b'
  settings = {'train_steps': 4, 'steps_per_loop': 2, 'checkpoint_interval': 2}
  _interrupted(folder, 2, trainer=settings, mode='train')
  small_run.run(folder, 'train', trainer=settings)  # Before: no checkpoint could be read there.
  record = run_status.read(folder)
  assert (record['status'], record['step'], record['attempt']) == ('finished', 4, 2)
  assert [e['step'] for e in writers.read_events(f'{folder}/events.jsonl') if e['event'] == 'restored'] == [2]


@pytest.mark.slow
def test_a_run_lives_in_memory(command, console, tmp_path, capsys):
  root = 'ram://remote_life_test/runs'
  folder, straight = f'{root}/a', str(tmp_path / 'straight')
  options = {
    'trainer': {
      'steps_per_loop': 2,
      'checkpoint_interval': 4,
      'train_steps': 12,
      'validation_interval': 4,
      'best_checkpoint_eval_metric': 'validation_loss',
      'best_checkpoint_metric_comp': 'lower',
      'best_checkpoint_export_subdir': 'best',
      'writers': ['csv'],
    },
    'origin': {'experiment': export_test.register('linear'), 'registry': []},
  }
  small_run.run(straight, **options)
  _interrupted(folder, 3, **options)  # At step 6.
  _interrupted(folder, 3, **options)  # At step 10, after a restore.
  small_run.run(folder, **options)
  assert _are_equal(*map(_tensors, (f'{folder}/ckpt-12', f'{straight}/ckpt-12')))
  assert comparison.history(folder) == comparison.history(straight)
  kinds = [event['event'] for event in writers.read_events(f'{folder}/events.jsonl')]
  assert kinds.count('restored') == 2 and kinds[-1] == 'finished'
  assert run_status.read(folder)['attempt'] == 3
  local = str(tmp_path / 'local')
  small_run.run(local, checkpoint=f'{folder}/ckpt-8', **options)  # A local run from a remote checkpoint.
  assert _are_equal(*map(_tensors, (f'{folder}/ckpt-12', f'{local}/ckpt-12')))

  _, logs = small_run.run(folder, 'eval', checkpoint=f'{folder}/ckpt-8', **options)
  events = writers.read_events(f'{folder}/events.jsonl')
  assert logs['validation_loss'] == [e for e in events if (e['event'], e['step']) == ('eval', 8)][-1]['validation_loss']
  weights = [official_ext.load(place, which=12).get_weights() for place in (folder, straight)]
  assert all(np.array_equal(*pair) for pair in zip(*weights, strict=True))
  capsys.readouterr()
  assert f'to {folder}/export/12' in command('export', folder, '--which=12', '--examples=0')
  assert 'serving_default' in command('predict', f'{folder}/export/12')
  command('export', folder, '--which=12', '--examples=0', '--format=litert')  # Whose runtime opens local files alone.
  for place in (folder, f'{folder}/export/12', f'{folder}/export/12-litert'):
    assert served_model.load(place).version == 12

  listed = json.loads(command('runs', 'list', root, '--json'))
  assert [(run['path'], run['status'], run['step'], run['attempt']) for run in listed] == [(folder, 'finished', 12, 3)]
  shown = json.loads(command('runs', 'show', root, 'a', '--json'))
  assert shown['path'] == folder and shown['checkpoints'][:3] == ['ckpt-4', 'ckpt-8', 'ckpt-12']
  compared = json.loads(command('runs', 'compare', folder, straight, '--json'))
  assert compared['names'] == ['a', 'straight'] and compared['params'] == {}
  command('runs', 'tag', folder, '--tag=kept')

  served = console(root)
  assert served.get('/api/session')['root'] == root
  (run,) = served.get('/api/runs')['runs']
  assert (run['name'], run['step'], run['tags']) == ('a', 12, ['kept'])
  (curve,) = served.get('/api/curves', run='a', name='eval/validation_loss')['curves']
  assert curve['x'] == [4.0, 8.0, 12.0]
  assert served.try_post('/api/runs/tag', runs=['a'], add=['more']) == (
    403,
    {'errors': [f'{root}: is remote, and its console only shows runs; use `official-ext runs`']},
  )
