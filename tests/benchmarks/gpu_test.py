"""benchmarks/gpu.sh and benchmarks/gpt2 without a GPU: the order of commands, the network of both libraries."""

import json
import math
import os
import pathlib
import subprocess

import pytest
import torch

from benchmarks.gpt2 import __main__ as command
from benchmarks.gpt2 import plain_torch
from benchmarks.gpt2 import sizes
from benchmarks.gpt2 import worker
from benchmarks.peers import catalogue
from benchmarks.peers import process
from benchmarks.peers import worker as peers_worker
from tests import train_processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
_STUB = '#!/bin/sh\necho "$BENCH_ON_GPU $*" >>"{log}"\ncase "$*" in *benchmarks.peers\\ digits_conv*) exit 3;; esac\n'


def gpu_sh(*arguments, **environment):
  return subprocess.run(
    [str(ROOT / 'benchmarks/gpu.sh'), *arguments],
    env={**os.environ, **environment},
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
  )


@pytest.fixture
def machine(tmp_path):
  """Replaces a machine with a GPU: (run, commands); both the driver's tool and Python only take notes."""
  log = tmp_path / 'log'
  for path in (tmp_path / 'bin/nvidia-smi', tmp_path / 'venv/bin/python'):
    path.parent.mkdir(parents=True)
    path.write_text(_STUB.format(log=log))
    path.chmod(0o755)

  def run(*arguments):
    path = f'{tmp_path}/bin:{os.environ["PATH"]}'
    return gpu_sh(f'--venv={tmp_path}/venv', f'--results={tmp_path}/results', *arguments, PATH=path, BENCH_ON_GPU='')

  return run, lambda: log.read_text().splitlines()


def test_a_dry_run_names_every_row_and_their_peers_exist():
  done = gpu_sh('--dry_run')
  assert done.returncode == 0, done.stderr
  rows = dict(line.split(': ', 1) for line in done.stdout.splitlines())
  assert list(rows)[-7:] == [
    *('gpt2', 'decoder', 'digits_mlp', 'digits_conv', 'generation', 'checkpoint', 'decoder_24_layers')
  ]
  for name in list(rows)[-6:]:
    workload = catalogue.workload(name)
    (wanted,) = [word.removeprefix('--peers=') for word in rows[name].split() if word.startswith('--peers=')]
    assert {workload.peer(peer).name for peer in wanted.split(',')} and wanted
  assert {catalogue.workload(name).letter for name in list(rows)[-6:]} == set('abcdgi')


def test_all_parts_are_run_and_one_that_fails_stops_no_other(machine, tmp_path):
  run, commands = machine
  done = run('--minutes=5')
  assert done.returncode == 1 and done.stdout.count('failed with status 3') == 1
  assert '== digits_conv: failed' in done.stdout
  smi, devices, torch, attention, gpt2, *rows = commands()
  assert smi == ' ' and devices.startswith(' -c ') and torch.startswith(' -c ')
  assert attention.startswith(' -m pytest ') and gpt2.startswith(' -m benchmarks.gpt2 ')
  assert len(rows) == 6 and all(row.startswith('1 -m benchmarks.peers ') for row in rows)
  assert (tmp_path / 'results/gpt2.txt').exists()


def test_what_no_time_is_left_for_is_reported_as_left_out(machine):
  run, commands = machine
  done = run('--minutes=0')
  assert done.returncode == 0 and done.stdout.count('left out, no time') == 10
  assert commands() == [' ']


def test_mistakes_are_one_line(tmp_path):
  for flag, message in (
    ('--venv=nowhere', '--venv=nowhere: has no bin/python'),
    ('--wheels=nowhere', '--wheels=nowhere: no such folder'),
    ('--torch_python=nowhere', '--torch_python=nowhere: no such program'),
    ('--minutes=1.5', '--minutes=1.5: must be a whole number'),
    ('--gpus=2', '--gpus=2: no such option; '),
  ):
    done = gpu_sh(flag)
    assert (done.returncode, done.stdout) == (2, '') and done.stderr.startswith(f'error: {message}'), done
  (tmp_path / 'nvidia-smi').write_text('#!/bin/sh\nexit 9\n')
  (tmp_path / 'nvidia-smi').chmod(0o755)
  done = gpu_sh('--venv=.venv', f'--results={tmp_path}/results', PATH=f'{tmp_path}:{os.environ["PATH"]}')
  assert done.returncode == 2 and done.stderr.startswith('error: nvidia-smi: finds no GPU')


def test_wheels_are_installed_without_a_network(tmp_path):
  done = gpu_sh('--dry_run', f'--wheels={tmp_path}')
  first, second = done.stdout.splitlines()[:2]
  assert first == 'venv: python3 -m venv .venv-gpu'
  assert f'--no-index --find-links {tmp_path} ' in second and '.venv-gpu/bin/python -m pip install' in second


def test_peers_get_the_gpu_only_on_request(monkeypatch):
  peer = catalogue.workload('digits_mlp').peer('jax_scan')
  monkeypatch.delenv('BENCH_ON_GPU', raising=False)
  assert peers_worker._variables(peer)['CUDA_VISIBLE_DEVICES'] == ''
  monkeypatch.setenv('BENCH_ON_GPU', '1')
  found = peers_worker._variables(peer)
  assert not {'CUDA_VISIBLE_DEVICES', 'JAX_PLATFORMS'} & found.keys() and found['TF_CPP_MIN_LOG_LEVEL'] == '3'


def test_gpt2_has_124_million_weights_and_its_arithmetic():
  with torch.device('meta'):
    network = plain_torch.GPT2(sizes.GPT2)
  count = sum(parameter.numel() for parameter in network.parameters())
  assert count == sizes.GPT2.num_parameters and round(count / 1e6) == 124
  # Each product of a matrix counts 2 forward and 4 backward; the scores and their use are t x t x width each.
  matrices = 12 * 12 * 768**2 + 50304 * 768
  others = sizes.GPT2.num_parameters - 1024 * 768 - matrices  # Biases and norms, which the rule counts as well.
  assert sizes.GPT2.flops_per_token == 6 * (matrices + others) + 12 * (2 + 4) * 2 * 1024 * 768
  assert others < 0.002 * matrices


def test_a_gpu_is_known_by_its_name():
  assert sizes.peak_flops('NVIDIA H100 80GB HBM3') == sizes.peak_flops('NVIDIA H200') == 989e12
  assert sizes.peak_flops('NVIDIA H100 PCIe') == 756e12 and sizes.peak_flops('NVIDIA A100-SXM4-80GB') == 312e12
  assert sizes.peak_flops('NVIDIA L4') == 121e12 and sizes.peak_flops('Radeon') == 0


def test_larger_memories_try_larger_batches_down_to_one_row():
  tried = [sizes.batch_sizes(gigabytes * 10**9, sizes.GPT2) for gigabytes in (1, 24, 80)]
  assert tried[0] == [1] and all(each[-1] == 1 for each in tried)
  assert tried[1][0] < tried[2][0] and 32 in tried[2]


@pytest.mark.soak
def test_both_libraries_train_the_same_network(start_script):
  code = """
import json
from benchmarks.gpt2 import ours, sizes
made = ours.measurement(sizes.TINY, 2)
print(json.dumps({**made.run(made.multiple), 'parameters': made.parameters, 'multiple': made.multiple}))
"""
  script = start_script(code, env=train_processes.UNOPTIMISED)
  made = plain_torch.measurement(sizes.TINY, 2)
  loss = made.run(made.multiple)['loss']
  done = script.finish(timeout=300)
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout.splitlines()[-1])
  assert found['parameters'] == made.parameters == sizes.TINY.num_parameters
  assert found['multiple'] == made.multiple == 2 * 2 * 32  # Steps of a loop, rows, tokens.
  # Small first weights know nothing: the loss is that of 256 equal chances.
  assert loss == pytest.approx(math.log(256), abs=0.1) and found['loss'] == pytest.approx(math.log(256), abs=0.1)


def test_the_largest_batch_that_fits_is_taken(monkeypatch, tmp_path):
  class Process:
    """Has memory for four rows."""

    ready = {'multiple': 8, 'parameters': 3}

    def __init__(self, words, log, seconds_allowed):
      rows = int(words[-1].removeprefix('--batch_size='))
      if rows > 4:
        raise process.PeerError('out of memory')
      self.rows = rows

    def run(self, amount):
      return process.Turn(amount, 2.0, 2.0, {}, 'fused', 0)

    def close(self):
      pass

  monkeypatch.setattr(process, 'Process', Process)
  found = command.measure('ours', [16, 8, 4, 2, 1], 2, False, tmp_path, 1.0)
  assert found == command.Found('ours', 4, 4.0, 3, 'fused')
  assert command.measure('ours', [16, 8], 2, False, tmp_path, 1.0).note == 'failed: out of memory'
  rows = command.table(
    [found, command.Found('torch', 4, 8.0, 3), command.Found('torch_compile', note='failed')], sizes.GPT2, 1e12
  )
  mfu = 100 * 4 * sizes.GPT2.flops_per_token / 1e12
  assert rows[1][4] == f'{mfu:.1f} %' and rows[2][5] == '0.50' and rows[3][2:] == ('', '', '', '', 'failed')


def test_without_a_gpu_a_batch_size_must_be_given(monkeypatch, capsys):
  monkeypatch.setattr(command, 'device', lambda folder: ('', 0))
  with pytest.raises(SystemExit):
    command.main([])
  assert '--batch_size: there is no GPU' in capsys.readouterr().err
  assert worker.LIBRARIES.keys() >= {'ours', 'torch', 'torch_compile'}
