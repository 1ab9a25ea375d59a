"""Samples of the machine during a training: processor, memory, disk, network, GPUs. Written as events.system.jsonl."""

from collections.abc import Callable
import contextlib
import functools
import os
import time
from typing import Any

from absl import logging
import psutil

from official_ext.base.files import paths
from official_ext.base.run_folder import run_files
from official_ext.base.run_folder import run_status
from official_ext.training.writers import writers

SECONDS = 15.0
FILE = f'events.{run_files.SYSTEM_EVENT}.jsonl'
_GB, _MB = 1e9, 1e6


class SystemMetrics:
  """A context manager: while it is open, a thread appends a line to `FILE` at an interval.

  Lines are `{"time": ..., "event": "system", "step": ..., ...}`, see `sample` for the values. If the step is below
  the previous line's, a line `restored` comes first: it supersedes lines of higher steps, as in events.jsonl.

  A failure to sample or to write is logged, and does not end the run.
  """

  def __init__(self, model_dir: str, step: Callable[[], int | None], seconds: float = SECONDS):
    """Initializes the context; starts nothing.

    Args:
      model_dir: the run's folder.
      step: returns the present step; None: not known yet, or the folder belongs to another run, and nothing is written.
        Called in the thread.
      seconds: the interval.
    """
    self._model_dir = model_dir
    self._step_now = step
    self._seconds = seconds
    self._step: int | None = None
    self._writer = writers.Writers([writers.EventsWriter(os.path.join(model_dir, FILE))])
    self._sampler: Sampler | None = None
    self._has_failed = False
    self._heartbeat: run_status.Heartbeat | None = None

  def __enter__(self) -> 'SystemMetrics':
    self._sample()  # Begins the first interval.
    self._heartbeat = run_status.Heartbeat(self._write, self._seconds)
    return self

  def __exit__(self, *_: object) -> None:
    if self._heartbeat is None or self._heartbeat.close():  # A thread that hangs still has the file.
      self._writer.close()

  def _sample(self) -> dict[str, float]:
    """The present values; {} if the machine cannot be read, now or before."""
    if self._has_failed:
      return {}
    try:
      self._sampler = self._sampler or Sampler(self._model_dir)
      return self._sampler.sample()
    except Exception as error:  # pylint: disable=broad-except  # The run is more important.
      self._has_failed = True
      logging.warning('The metrics of the machine cannot be read, and end: %s', error)
      return {}

  def _write(self) -> None:
    step = self._step_now()
    values = {} if step is None else self._sample()
    if step is None or not values:
      return
    if self._step is None or step < self._step:
      self._writer.write('restored', step, {})
    self._step = step
    self._writer.write(run_files.SYSTEM_EVENT, step, values)


class Sampler:
  """Reads the machine. Rates are means since the sample before, or since the sampler was made."""

  def __init__(self, model_dir: str):
    """Begins the first interval.

    Args:
      model_dir: the run's folder.
    """
    self._model_dir = model_dir
    self._process = psutil.Process()
    self._process.cpu_percent()  # The first call begins the interval.
    self._before, self._cpu_before = _counters(), _cpu_seconds()
    self._gpus = _gpus()

  def sample(self) -> dict[str, float]:
    """The present values.

    Values: cpu_percent (of all cores), process_cpu_percent (100 is one core), process_memory_gb (resident, with child
    processes), memory_available_gb, disk_free_gb (of the run's folder, if it is local), disk_read_mb_per_second,
    disk_write_mb_per_second, network_received_mb_per_second, network_sent_mb_per_second (of the machine), and of each
    GPU N gpuN_percent, gpuN_memory_gb, gpuN_watts, gpuN_celsius, if nvidia-ml-py is installed. GB is 1e9 bytes. What
    the system does not report is missing.
    """
    processes = [self._process]
    with contextlib.suppress(psutil.Error):
      processes += self._process.children(recursive=True)
    memory = 0
    for process in processes:
      with contextlib.suppress(psutil.Error):  # It has ended.
        memory += process.memory_info().rss
    values = {
      **self._cpu_percent(),
      'process_cpu_percent': self._process.cpu_percent(),
      'process_memory_gb': memory / _GB,
      'memory_available_gb': psutil.virtual_memory().available / _GB,
    }
    if not paths.is_remote(self._model_dir):
      with contextlib.suppress(OSError):
        values['disk_free_gb'] = psutil.disk_usage(self._model_dir).free / _GB
    now = _counters()
    seconds = now['time'] - self._before['time']
    for name, value in now.items():
      if name in self._before and name != 'time' and seconds > 0:
        moved = max(0.0, value - self._before[name])  # A device may be gone, with its count.
        values[f'{name}_mb_per_second'] = moved / seconds / _MB
    self._before = now
    for read in self._gpus:
      values.update(read())
    return values

  def _cpu_percent(self) -> dict[str, float]:
    # psutil.cpu_percent has an interval for each thread, and begins with 0.
    busy, total = _cpu_seconds()
    (busy_before, total_before), self._cpu_before = self._cpu_before, (busy, total)
    if total <= total_before:  # Some containers count nothing.
      return {}
    share = (busy - busy_before) / (total - total_before)
    return {'cpu_percent': 100.0 * min(1.0, max(0.0, share))}  # Linux may count idle time and iowait back.


def _cpu_seconds() -> tuple[float, float]:
  """The seconds of all cores since the machine started: busy, and busy or idle."""
  times = psutil.cpu_times()._asdict()  # Each system has its kinds of time.
  total = sum(times.values()) - times.get('guest', 0.0) - times.get('guest_nice', 0.0)  # Linux counts these twice.
  return total - times['idle'] - times.get('iowait', 0.0), total


def _counters() -> dict[str, float]:
  """The bytes moved since the machine started, and the time in seconds."""
  found = {'time': time.monotonic()}
  with contextlib.suppress(OSError, RuntimeError):
    if (disk := psutil.disk_io_counters()) is not None:
      found |= {'disk_read': disk.read_bytes, 'disk_write': disk.write_bytes}
  with contextlib.suppress(OSError, RuntimeError):
    cards = [each for name, each in psutil.net_io_counters(pernic=True).items() if name != 'lo']
    found['network_received'] = sum(each.bytes_recv for each in cards)
    found['network_sent'] = sum(each.bytes_sent for each in cards)
  return found


def _gpus() -> list[Callable[[], dict[str, float]]]:
  """A function for each GPU that returns its values; none without NVIDIA's driver or nvidia-ml-py."""
  try:
    import pynvml  # pylint: disable=g-import-not-at-top  # Optional.

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
  except Exception:  # pylint: disable=broad-except  # Not installed, no driver, no permission: all mean no GPU values.
    return []
  return [functools.partial(_gpu, pynvml, number, handle) for number, handle in enumerate(handles)]


def _gpu(nvml: Any, number: int, handle: Any) -> dict[str, float]:
  reads = {
    'percent': lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    'memory_gb': lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / _GB,
    'watts': lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    'celsius': lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
  }
  values = {}
  for name, read in reads.items():
    with contextlib.suppress(nvml.NVMLError):  # Not every device has every sensor.
      values[f'gpu{number}_{name}'] = float(read())
  return values
