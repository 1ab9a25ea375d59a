"""The estimate of a training's memory beside that of a machine, whose size the tests choose."""

import json
import pathlib
import re
import subprocess
import sys
import time
import types

import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import hardware
from official_ext.training.config import definitions
from official_ext.training.loop import run_checks
from official_ext.training.model_parts import model_size

_SIZE = model_size.ModelSize(100, 50, weight_bytes=400, gradient_bytes=200, slot_bytes=400)
_MILLION = 10**6
ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def machine(monkeypatch):
  """`machine(total, available)` gives this machine another size, of which the process takes 1000 bytes."""

  def set_size(total, available):
    monkeypatch.setattr(hardware, 'read_memory', lambda: hardware.MachineMemory(total, available))
    monkeypatch.setattr(hardware, 'resident_memory', lambda: 1000)

  return set_size


def estimated(activations, steps=1):
  experiment = types.SimpleNamespace(
    strategy=tf.distribute.get_strategy(),
    task=types.SimpleNamespace(activation_bytes=lambda model, num_replicas: activations),
    params=definitions.ExperimentConfig(trainer=definitions.TrainerConfig(gradient_accumulation_steps=steps)),
    workers=types.SimpleNamespace(count=1),
  )
  return run_checks.estimate_memory(experiment, _SIZE, None)


def test_a_run_that_takes_more_than_nine_tenths_is_warned_of(machine):
  room = 20 * 2**27
  machine(4 * 2**30, room - 1000)
  rest = 1000 + 200 + run_checks._COMPILATION
  at_most = int(0.9 * room) - rest
  assert estimated(at_most).warning() == ''
  found = estimated(at_most + 1)
  assert found.peak == 0.9 * room + 1 and found.available == room
  assert found.warning().startswith('memory: a step takes about 2.25 GiB, and 2.5 GiB are available: ')
  assert found.describe() == (
    'about 2.25 GiB at the peak of a step (now 9.31e-07, gradients 1.86e-07, activations 1.69, compilation 0.559); '
    '2.5 of 4 GiB available'
  )


def test_gradients_are_there_twice_while_they_are_summed(machine):
  machine(10**9, 10**9)
  assert estimated(0, steps=2).peak - estimated(0).peak == _SIZE.gradient_bytes


def test_a_task_that_does_not_know_its_activations_has_no_estimate(machine):
  machine(10**9, 10**9)
  assert estimated(None) is None


@pytest.mark.parametrize('optimizer, slots', [('adamw_experimental', 2), ('stable_adamw', 1), ('sgd', 0)])
def test_weights_and_slots_alone_are_refused_above_the_memory(machine, optimizer, slots):
  task = types.SimpleNamespace(least_weights=lambda: (4 * _MILLION, _MILLION))
  needed = 4 * _MILLION * (1 + slots)
  check = lambda: run_checks.check_memory(task, optimizer, tf.distribute.get_strategy())
  machine(needed, 0)  # Other programs may end.
  check()
  machine(needed - 1, needed)
  with pytest.raises(
    errors.UserError, match=r'task\.model: 0\.00373 GiB of weights.* are more than the .* this machine; '
  ):
    check()


def test_a_run_is_refused_before_its_model_is_made(run_train, tmp_path):
  wide = ('hidden_size=65536', 'intermediate_size=262144', 'num_hidden_layers=64')
  flags = [f'--set=task.model.{each}' for each in wide]
  done = run_train(['--experiment=language_model', '--mode=train', f'--model_dir={tmp_path}/run', *flags])
  assert done.returncode == 2, done.stderr
  weights = 4 * (64 * (4 * 65536**2 + 3 * 65536 * 262144) + 512 * 65536)  # At least.
  line = done.stderr.splitlines()[-1]
  stated = float(line.split('task.model: ')[1].split(' GiB of weights')[0].replace(',', ''))
  assert 1 <= stated * 2**30 / weights < 1.1 and 'GiB of slots of' in line
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_run_records_and_prints_its_estimate(run_train, tmp_path):
  small = ('vocab_size=300', 'hidden_size=16', 'intermediate_size=24', 'num_hidden_layers=1', 'num_attention_heads=2')
  flags = [f'--set=task.model.{each}' for each in (*small, 'num_key_value_heads=2')]
  length = ['--set=task.train_data.seq_length=16', '--set=task.train_data.global_batch_size=2']
  warmup = '--set=trainer.optimizer_config.warmup.linear.warmup_steps=1'
  done = run_train(
    [
      '--experiment=language_model',
      '--mode=train',
      f'--model_dir={tmp_path}/run',
      *flags,
      *length,
      '--set=train_steps=2',
      warmup,
    ]
  )
  assert done.returncode == 0, done.stderr
  record = json.loads((tmp_path / 'run/run.json').read_text())
  memory, tokens = record['memory'], 2 * 16
  kept = 4 * (tokens * 6 * 16 + 2 * 2 * 2 * 16 * 16) + 4 * tokens * (2 * 16 + 3 * 24)
  assert memory['activations'] == 2 * kept + 16 * tokens * 300
  assert memory['gradients'] == record['model']['gradient_bytes']
  parts = ('resident', 'gradients', 'activations', 'compilation')
  assert memory['peak'] == sum(memory[name] for name in parts)
  assert 0 < memory['resident'] < memory['available'] <= memory['total']
  assert f'Memory: about {memory["peak"] / 2**30:,.3g} GiB at the peak of a step (now ' in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('remat', ['none', 'block'])
def test_the_estimate_is_near_the_peak_of_a_real_process(remat, tmp_path):
  shape = ('hidden_size=256', 'intermediate_size=688', 'num_hidden_layers=8', f'remat={remat}')
  flags = [f'--set=task.model.{each}' for each in (*shape, 'num_attention_heads=8', 'num_key_value_heads=8')]
  data = ['--set=task.train_data.seq_length=512', '--set=task.train_data.global_batch_size=8']
  warmup = '--set=trainer.optimizer_config.warmup.linear.warmup_steps=1'
  words = ['--experiment=language_model', '--mode=train', f'--model_dir={tmp_path}/run', '--set=train_steps=2', warmup]
  process = subprocess.Popen([sys.executable, str(ROOT / 'train.py'), *words, *flags, *data], stdout=subprocess.DEVNULL)
  # Not `ru_maxrss`, which begins with the memory of this process.
  peak, status = 0, pathlib.Path(f'/proc/{process.pid}/status')
  while process.poll() is None:
    if found := re.search(r'VmHWM:\s+(\d+) kB', status.read_text()):  # A process that has ended has none.
      peak = 1024 * int(found[1])
    time.sleep(0.1)
  assert process.returncode == 0
  memory = json.loads((tmp_path / 'run/run.json').read_text())['memory']
  assert memory['activations'] > (0.9e9 if remat == 'none' else 0.2e9)  # Enough to matter beside the constant.
  assert 0.8 < memory['peak'] / peak < 1.25
