"""A mesh over two real processes, through train.py: the weights of one process, kills, and other meshes that resume."""

import re

import numpy as np
import pytest

from official_ext.training.checkpoints import manifests
from tests import train_processes
from tests.multi_worker_test import assert_same
from tests.multi_worker_test import launched  # noqa: F401  # A fixture.
from tests.multi_worker_test import run_two_workers
from tests.soak import comparison

STEPS = 50
FLAGS = [
  '--experiment=digits_mlp',
  '--mode=train_and_eval',
  f'--set=train_steps={STEPS}',
  '--set=steps_per_loop=10',
  '--set=checkpoint_interval=20',
  f'--set=validation_interval={STEPS}',
  '--set=trainer.summary_interval=10',
  '--set=runtime.worker_timeout_seconds=10',
]
MESH = [
  '--set=runtime.mesh.data=2',
  '--set=runtime.mesh.tensor=2',
  '--set=trainer.sharding.parameters=[{pattern: dense/kernel, axes: ["", tensor]}]',
]


def until(steps):
  """FLAGS, of a run that ends there."""
  return [flag.replace(f'={STEPS}', f'={steps}') for flag in FLAGS]


def losses(folder):
  return [event['training_loss'] for event in comparison.history(folder) if event['event'] == 'train']


@pytest.fixture(scope='module')
def one_process(tmp_path_factory, run_train):
  """The folder of a run on a mesh of four devices of one process."""
  folder = tmp_path_factory.mktemp('one_process')
  process = run_train([*FLAGS, *MESH, f'--model_dir={folder}'])
  assert process.returncode == 0, process.stderr
  assert 'Devices: mesh data 2 x tensor 2 on 4 CPUs, float32' in process.stdout
  return folder


@pytest.mark.slow
def test_two_processes_have_the_weights_of_one_bit_for_bit(one_process, train_server, tmp_path):
  folder = tmp_path / 'two'
  statuses, outputs = run_two_workers(train_server(), [*FLAGS, *MESH, f'--model_dir={folder}'], tmp_path)
  assert statuses == [0, 0], outputs
  for output in outputs:
    assert 'Devices: mesh data 2 x tensor 2 on 4 CPUs of 2 workers, float32' in output
  assert_same(folder, one_process, STEPS)
  assert losses(folder) == losses(one_process) and len(losses(folder)) == STEPS // 10


@pytest.mark.slow
def test_losses_are_those_of_one_device(one_process, run_train, tmp_path):
  assert run_train([*FLAGS, f'--model_dir={tmp_path}']).returncode == 0
  np.testing.assert_allclose(losses(one_process), losses(tmp_path), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('worker', [0, 1])
def test_a_killed_process_ends_the_others_and_all_resume_bit_for_bit(launched, one_process, tmp_path, worker):  # noqa: F811
  run = launched(tmp_path, *MESH, base=FLAGS, max_restarts=1)
  run.wait_for(r'\[0\] checkpoint 20/')
  run.kill(worker)
  assert run.end() == 0, run.text
  assert re.search(rf'\[{1 - worker}\] error: worker {worker} \(127.0.0.1:\d+\) was lost: .* Start all', run.text)
  assert f'launch: worker {1 - worker} stopped with status 75' in run.text
  assert_same(tmp_path, one_process, STEPS)


@pytest.mark.slow
def test_another_mesh_another_number_of_processes_and_no_mesh_resume(one_process, run_train, train_server, tmp_path):
  folder, logs = tmp_path / 'run', tmp_path / 'logs'
  logs.mkdir()
  statuses, outputs = run_two_workers(train_server(), [*until(20), *MESH, f'--model_dir={folder}'], logs)
  assert statuses == [0, 0], outputs
  assert manifests.read(f'{folder}/ckpt-20')['num_replicas'] == 1
  for flags in ([*until(40), '--set=runtime.mesh.tensor=4', MESH[2]], FLAGS):
    process = run_train([*flags, f'--model_dir={folder}'])
    assert process.returncode == 0, process.stderr
  np.testing.assert_allclose(losses(folder), losses(one_process), rtol=1e-5)


def test_devices_that_the_processes_cannot_share_evenly_are_refused(train_server, tmp_path):
  flags = [*FLAGS, '--set=runtime.mesh.data=3', f'--model_dir={tmp_path / "run"}']
  log = tmp_path / 'log'
  process = train_server().start(flags, log, env=train_processes.slurm_variables(0, '5'))
  assert process.wait(timeout=100) == 2
  assert 'error: runtime.mesh: 3 devices cannot be spread evenly over the 2 workers of TF_CONFIG' in log.read_text()
