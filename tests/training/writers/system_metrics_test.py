"""Tests for the samples of the machine."""

import json
import sys
import time
import types

import numpy as np
import pytest

from official_ext.operations.curves import column_store
from official_ext.operations.curves import curves
from official_ext.operations.runs import run_folders
from official_ext.training.writers import system_metrics


def _lines(folder):
  return [json.loads(line) for line in (folder / system_metrics.FILE).read_text().splitlines()]


def _until(condition):
  deadline = time.monotonic() + 60
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.01)


def test_samples_are_written_until_it_closes_and_follow_memory_and_processor(tmp_path):
  path, steps = tmp_path / system_metrics.FILE, iter(range(1, 10**6))
  begin = time.process_time()
  with system_metrics.SystemMetrics(str(tmp_path), lambda: next(steps), seconds=0.2):
    _until(lambda: path.exists() and len(_lines(tmp_path)) >= 2)
    before = len(_lines(tmp_path))
    block = np.ones(50_000_000)  # 0.4 GB.
    end = time.process_time() + 0.6
    while time.process_time() < end:
      pass
    _until(lambda: len(_lines(tmp_path)) >= before + 4)
    del block
  used = time.process_time() - begin
  lines = _lines(tmp_path)
  assert lines[0]['event'] == 'restored' and {line['event'] for line in lines[1:]} == {'system'}
  samples = lines[1:]
  assert [line['step'] for line in samples] == list(range(1, len(samples) + 1))
  memory = [line['process_memory_gb'] for line in samples]
  assert 0.35 < max(memory) - min(memory) < 0.8
  pairs = zip(samples, samples[1:])
  seconds = sum(line['process_cpu_percent'] / 100 * (line['time'] - last['time']) for last, line in pairs)
  assert 0.5 < seconds < used + 0.1  # The loop above, and threads of other tests.
  # A short interval may hold no tick of a busy core; some containers count none at all.
  assert all(0 <= line.get('cpu_percent', 0) <= 100 and line['memory_available_gb'] > 0 for line in samples)
  assert all(line['disk_free_gb'] > 0 for line in samples)
  assert all(value >= 0 for line in samples for name, value in line.items() if name.endswith('_per_second'))
  time.sleep(0.5)
  assert len(_lines(tmp_path)) == len(lines)


def test_a_curve_leaves_out_samples_before_a_rollback(tmp_path):
  (tmp_path / 'run.json').write_text('{}')
  steps = iter([10, 20, None, 15, 25])  # None: being restored.
  metrics = system_metrics.SystemMetrics(str(tmp_path), lambda: next(steps))
  for _ in range(5):
    metrics._write()
  store, run = column_store.ColumnStore(str(tmp_path / 'cache')), run_folders.get_run(str(tmp_path), '.')
  (tmp_path / 'events.jsonl').write_text('{"time": 1.0, "event": "start", "step": 0}\n')
  assert 'system:system/process_memory_gb' in curves.names(store, run)
  found = curves.read(store, [run], ['system:system/process_memory_gb']).curves['.', 'system:system/process_memory_gb']
  assert found.x.tolist() == [10, 15, 25]


def test_a_failure_ends_the_samples_and_not_the_run(tmp_path, monkeypatch, caplog):
  monkeypatch.setattr(system_metrics.psutil, 'virtual_memory', lambda: 1 / 0)
  with system_metrics.SystemMetrics(str(tmp_path), lambda: 0) as metrics:
    metrics._write()
    metrics._write()
  assert caplog.text.count('The metrics of the machine cannot be read') == 1
  full = tmp_path / 'none' / 'folder'
  monkeypatch.undo()
  with system_metrics.SystemMetrics(str(full), lambda: 0) as metrics:
    (tmp_path / 'none').write_text('')
    metrics._write()  # The folder cannot be made: logged.


def test_a_sample_costs_little(tmp_path):
  metrics = system_metrics.SystemMetrics(str(tmp_path), lambda: 0)
  metrics._write()
  before = time.process_time()
  for _ in range(20):
    metrics._write()
  assert (time.process_time() - before) / 20 < 0.002 * system_metrics.SECONDS  # 0.2 % of a core.


def test_processor_time_that_is_not_counted_is_missing(monkeypatch, tmp_path):
  seconds = iter([(1.0, 5.0), (2.0, 9.0), (2.0, 9.0), (2.0, 10.0), (1.5, 11.0), (2.5, 11.5)])
  monkeypatch.setattr(system_metrics, '_cpu_seconds', lambda: next(seconds))
  sampler = system_metrics.Sampler(str(tmp_path))
  assert [sampler.sample().get('cpu_percent') for _ in range(5)] == [25, None, 0, 0, 100]


def test_values_of_gpus_have_their_units(monkeypatch, tmp_path):
  class NVMLError(Exception):
    pass

  def unsupported(_):
    raise NVMLError

  nvml = types.SimpleNamespace(
    NVMLError=NVMLError,
    NVML_TEMPERATURE_GPU=0,
    nvmlInit=lambda: None,
    nvmlDeviceGetCount=lambda: 2,
    nvmlDeviceGetHandleByIndex=lambda number: number,
    nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=10 * handle),
    nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=3_000_000_000),
    nvmlDeviceGetPowerUsage=unsupported,
    nvmlDeviceGetTemperature=lambda handle, sensor: 40 + handle,
  )
  monkeypatch.setitem(sys.modules, 'pynvml', nvml)
  values = system_metrics.Sampler(str(tmp_path)).sample()
  found = {name: value for name, value in values.items() if name.startswith('gpu')}
  assert found == {
    **{'gpu0_percent': 0, 'gpu0_memory_gb': pytest.approx(3), 'gpu0_celsius': 40},
    **{'gpu1_percent': 10, 'gpu1_memory_gb': pytest.approx(3), 'gpu1_celsius': 41},
  }
