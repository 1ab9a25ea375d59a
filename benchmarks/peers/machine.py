"""The machine: lines for the head of a table."""

from collections.abc import Mapping
import os
import pathlib
import platform

_VECTORS = ('avx2', 'avx512f', 'avx512_bf16', 'amx_bf16')  # What decides which kernels are fast, from old to new.
_CPUINFO = '/proc/cpuinfo'


def kind() -> str:
  """The kind of processor, by the newest of its vector instructions: 'avx2', ..., 'amx_bf16'; 'other' without any.

  AMD's Zen 4 computes 512 bits in two halves, and is a kind by itself: 'avx512_bf16_zen4'.
  """
  newest = next(iter(reversed(_vectors())), 'other')
  is_zen4 = newest.startswith('avx512') and _cpu('vendor_id') == 'AuthenticAMD' and _cpu('cpu family') == '25'
  return f'{newest}_zen4' if is_zen4 else newest


def _vectors() -> list[str]:
  flags = _cpu('flags').split()
  return [name for name in _VECTORS if name in flags]


def _processor() -> str:
  """The name, with the numbers that tell generations apart: some virtual machines hide all else."""
  name, family, model = _cpu('model name') or platform.processor(), _cpu('cpu family'), _cpu('model')
  return f'{name}, family {family} model {model}' if family and model else name


def describe() -> list[str]:
  """Processor, cores, memory, load, system, Python."""
  vectors = _vectors()
  memory = int((_value('/proc/meminfo', 'MemTotal') or '0').split()[0]) / 2**20
  return [
    f'{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB; {" ".join(vectors)}',
    f'{platform.system()} {platform.release()}, Python {platform.python_version()}',
    f'load average at the start {os.getloadavg()[0]:.2f}',
  ]


def versions(found: Mapping[str, str]) -> str:
  """One line of packages and their versions."""
  return ', '.join(f'{name} {version}' for name, version in sorted(found.items()))


def _cpu(name: str) -> str:
  return _value(_CPUINFO, name)


def _value(path: str, name: str) -> str:
  """The first value of a name in a file of `name: value` lines; '' if there is none."""
  try:
    lines = pathlib.Path(path).read_text().splitlines()
  except OSError:
    return ''
  return next((line.partition(':')[2].strip() for line in lines if line.partition(':')[0].strip() == name), '')
