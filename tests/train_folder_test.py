"""train.py and the folder that it is given: another training in it, evaluations beside it, a kill, `~`."""

import json
import os
import shutil
import time

import pytest

from official_ext.base.run_folder import run_lock
from official_ext.training.checkpoints import manifests
from tests.soak import comparison

FLAGS = [
  '--experiment=digits_mlp',
  '--set=runtime.enable_xla=false',
  '--set=steps_per_loop=5',
  '--set=checkpoint_interval=5',
  '--set=trainer.max_to_keep=1',
  '--set=trainer.validation_steps=1',
]
ENDLESS = '--set=train_steps=100000000'


def _flags(folder, mode, *more):
  return [*FLAGS, f'--mode={mode}', f'--model_dir={folder}', *more]


def _wait_for(condition, process):
  deadline = time.monotonic() + 120
  while not condition():
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.05)


@pytest.mark.slow
def test_a_folder_has_one_training_and_any_number_of_evaluations(run_train, start_train, tmp_path):
  folder = tmp_path / 'run[1]'
  first = start_train(_flags(folder, 'train', ENDLESS))
  first.stdout.close()
  first.stdout = None
  _wait_for(lambda: manifests.complete_paths(str(folder)), first)

  # With one checkpoint kept, and another every few milliseconds, an evaluation has to be quick, or retry.
  evaluation = run_train(_flags(folder, 'eval'))
  assert evaluation.returncode == 0, evaluation.stderr
  assert '.broken' not in ' '.join(os.listdir(folder))

  names = {name for name in os.listdir(folder) if not name.startswith('ckpt-')}
  second = run_train(_flags(folder, 'train_and_eval', '--set=learning_rate=1'))
  assert second.returncode == 4
  (error,) = (line for line in second.stderr.splitlines() if line.startswith('error: '))
  assert f'process {first.pid} on ' in error and 'trains in this folder' in error
  now = {name for name in os.listdir(folder) if not (name.startswith('ckpt-') or '.tmp' in name)}
  assert now == {name for name in names if '.tmp' not in name}
  assert first.poll() is None

  first.kill()
  first.wait()
  assert (folder / run_lock.NAME).exists()
  newest = manifests.step_of(manifests.complete_paths(str(folder))[-1])
  again = run_train(_flags(folder, 'train', f'--set=train_steps={newest + 5}'))  # At once.
  assert again.returncode == 0, again.stderr
  record = json.loads((folder / 'run.json').read_text())
  assert (record['status'], record['attempt'], record['step']) == ('finished', 2, newest + 5)
  assert not (folder / run_lock.NAME).exists()


def test_a_tilde_after_the_equals_sign_is_the_home_folder(run_train, tmp_path):
  home = tmp_path / 'home'
  home.mkdir()
  (home / 'more.yaml').write_text('trainer: {train_steps: 5}\n')
  process = run_train(
    _flags('~/run', 'train', '--config_file=~/more.yaml', '--set=task.init_checkpoint=~/nothing'),
    env={'HOME': str(home)},
    cwd=tmp_path,
  )
  assert process.returncode == 2 and f'error: task.init_checkpoint: {home}/nothing: ' in process.stderr
  process = run_train(_flags('~/run', 'train', '--config_file=~/more.yaml'), env={'HOME': str(home)}, cwd=tmp_path)
  assert process.returncode == 0, process.stderr
  assert manifests.complete_paths(f'{home}/run') == [f'{home}/run/ckpt-5']
  assert os.listdir(tmp_path) == ['home']


@pytest.mark.slow
def test_a_run_moved_to_another_machine_path_and_number_of_devices_at_once(run_train, tmp_path):
  flags = [
    '--set=trainer.best_checkpoint_export_subdir=best',
    '--set=trainer.best_checkpoint_eval_metric=validation_loss',
  ]
  flags += ['--set=trainer.best_checkpoint_metric_comp=lower', '--set=trainer.validation_interval=5', '--set=seed=3']
  flags.append('--params_override=trainer.optimizer_config.ema.average_decay=0.9')
  first, moved, stayed = tmp_path / 'first', tmp_path / 'elsewhere' / 'läuft', tmp_path / 'stayed'
  run = run_train(_flags(first, 'train_and_eval', *flags, '--set=train_steps=10'))
  assert run.returncode == 0, run.stderr
  shutil.copytree(first, stayed)
  moved.parent.mkdir()
  first.rename(moved)
  record = json.loads((moved / 'run.json').read_text())
  elsewhere = {'host': 'far', 'boot_id': 'another', 'machine_id': 'another', 'pid': 1}
  (moved / 'run.json').write_text(json.dumps({**record, **elsewhere}))
  more = [*flags, '--set=train_steps=20', '--set=runtime.num_virtual_cpus=2']
  for folder in (moved, stayed):
    run = run_train(_flags(folder, 'train_and_eval', *more))
    assert run.returncode == 0, run.stderr
    assert f'restored 10/20  {folder}/ckpt-10' in run.stdout
    assert 'Traceback' not in run.stderr
  assert comparison.differences(moved, stayed) == []
  assert not first.exists()
  now = json.loads((moved / 'run.json').read_text())
  assert (now['attempt'], now['host'], now['status']) == (2, record['host'], 'finished')
