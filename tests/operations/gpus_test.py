"""Checks of GPUs, with an nvidia-smi that describes planted ones."""

import os
import sys

import pytest

from official_ext.operations import doctor

_TENSORFLOW = {'version': '2.20.0', 'cuda': '12.5.1', 'capabilities': ['sm_60', 'sm_80', 'compute_90'], 'gpus': 1}


@pytest.fixture
def plant(tmp_path, monkeypatch):
  """`plant(code)` makes nvidia-smi a Python program."""
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)

  def make(code):
    path = tmp_path / 'nvidia-smi'
    path.write_text(f'#!{sys.executable}\n{code}\n')
    path.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')

  return make


def _lines(found):
  return [(each.name, each.level) for each in found]


def test_a_gpu_that_tensorflow_finds_is_no_problem(plant):
  plant("print('NVIDIA H100 80GB HBM3, 550.54.15, 9.0, 81559')")
  found, wrong = doctor.read_gpus()
  assert found == [doctor.Gpu('NVIDIA H100 80GB HBM3', '550.54.15', 90, '81559')] and wrong == []
  checked = list(doctor.check_gpus(found, _TENSORFLOW))
  assert _lines(checked) == [('driver', 'ok'), ('gpu', 'ok'), ('cuda', 'ok')]
  assert checked[1].text == 'NVIDIA H100 80GB HBM3, 81559 MiB, compute capability 9.0'


@pytest.mark.parametrize('capability', ['12.0', '10.0', '5.2'])
def test_a_capability_that_xla_cannot_target_is_a_problem(plant, capability):
  plant(f"print('NVIDIA X, 570.1, {capability}, 100')")
  _, found, _ = doctor.check_gpus(doctor.read_gpus()[0], _TENSORFLOW)
  assert found.level == doctor.PROBLEM
  assert found.text.endswith(f'compute capability {capability}: TensorFlow 2.20.0 is built for 6.0 to 9.0')
  assert '--set=runtime.enable_xla=false' in found.fix


def test_an_old_driver_is_a_problem(plant):
  plant("print('NVIDIA X, 470.82.01, 8.0, 100')")
  found, *_ = doctor.check_gpus(doctor.read_gpus()[0], _TENSORFLOW)
  assert (found.name, found.level, found.fix) == ('driver', doctor.PROBLEM, 'install driver 525 or later')


@pytest.mark.parametrize(
  ('tensorflow', 'fix'),
  [
    ({'gpus': 0}, "pip install 'official-ext[gpu]'"),
    ({'gpus': 0, 'cuda': ''}, "pip install 'tensorflow[and-cuda]'"),
  ],
)
def test_a_gpu_that_tensorflow_does_not_find_is_a_problem(plant, tensorflow, fix):
  plant("print('NVIDIA X, 550.1, 8.0, 100')")
  *_, found = doctor.check_gpus(doctor.read_gpus()[0], {**_TENSORFLOW, **tensorflow})
  assert (found.name, found.level, found.fix) == ('cuda', doctor.PROBLEM, fix)
  assert found.text.startswith('requested 1 GPUs, TensorFlow finds 0')


def test_gpus_that_are_hidden_are_not_missed(plant, monkeypatch):
  plant("print('NVIDIA X, 550.1, 8.0, 100\\nNVIDIA X, 550.1, 8.0, 100')")
  found, _ = doctor.read_gpus()
  assert len(found) == 2
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
  assert _lines(doctor.check_gpus(found, {**_TENSORFLOW, 'gpus': 0}))[-1] == ('cuda', 'ok')


@pytest.mark.parametrize(
  ('code', 'text'),
  [
    ("import sys; print('Failed to initialize NVML'); sys.exit(9)", 'nvidia-smi: Failed to initialize NVML'),
    ('import threading; threading.Event().wait()', 'nvidia-smi does not answer in 0.5 s'),
  ],
)
def test_a_driver_that_does_not_answer_is_a_problem(plant, code, text):
  plant(code)
  found, (wrong,) = doctor.read_gpus(0.5 if 'Event' in code else 30)
  assert found == [] and (wrong.name, wrong.level, wrong.text) == ('driver', doctor.PROBLEM, text)


def test_no_gpu_is_no_problem():
  (found,) = doctor.check_gpus([], None)
  assert (found.name, found.level) == ('gpu', doctor.OK)
