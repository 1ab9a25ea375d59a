"""benchmarks/limited_cpu: a command sees an older processor, in CPUID and in /proc/cpuinfo, and else runs as before."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from benchmarks.limited_cpu import __main__ as limited_cpu

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPUINFO = pathlib.Path('/proc/cpuinfo').read_text()
# A Xeon with AMX, shortened; the kind that it is limited to -> the vector instructions that it has left.
FLAGS = 'fpu avx avx_vnni avx2 avx512f avx512_bf16 avx512vbmi gfni vaes avx512_vnni amx_bf16 avx512_fp16 amx_tile clwb'
LEFT = {
  'avx512_bf16': 'fpu avx avx_vnni avx2 avx512f avx512_bf16 avx512vbmi gfni vaes avx512_vnni clwb',
  'avx512f': 'fpu avx avx2 avx512f avx512vbmi gfni vaes avx512_vnni clwb',
  'avx2': 'fpu avx avx2 clwb',
}
# What PyTorch, by CPUID, and this library, by /proc/cpuinfo, see; then a fault that Python's handler reports.
SEES = """
import ctypes, faulthandler, torch
from official_ext.training.devices import device_types
found = sorted(device_types.fast_products())
print(torch.backends.cpu.get_cpu_capability(), torch.cpu._is_amx_tile_supported(), *found)
faulthandler.enable()
ctypes.string_at(0)
"""

on_such_a_machine = pytest.mark.skipif(
  os.geteuid() != 0 or not all(flag in CPUINFO for flag in ('cpuid_fault', 'avx512f')),
  reason='requires root, and a processor with AVX-512 that lets CPUID fault',
)


@pytest.mark.parametrize('kind', limited_cpu.NEWER)
def test_cpuinfo_loses_the_flags_of_newer_processors(kind):
  text = f'processor\t: 0\nmodel name\t: A CPU\nflags\t\t: {FLAGS}\nbugs\t\t: avx2\n'
  model, flags, bugs = limited_cpu.limited_cpuinfo(text, kind).splitlines()[1:]
  assert model == f'model name\t: A CPU, limited to {kind}'
  assert flags == f'flags\t\t: {LEFT[kind]}' and bugs == 'bugs\t\t: avx2'


@on_such_a_machine
def test_libraries_see_the_older_processor_and_faults_are_reported_as_before():
  command = [sys.executable, '-m', 'benchmarks.limited_cpu', 'avx2', sys.executable, '-c', SEES]
  ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
  assert ended.stdout == 'AVX2 False float32\n'
  assert 'Fatal Python error: Segmentation fault' in ended.stderr
  assert ended.returncode == 128 + signal.SIGSEGV


@pytest.mark.parametrize('words', [[], ['avx2'], ['sse2', 'true']])
def test_it_names_the_kinds(words, monkeypatch):
  monkeypatch.setattr(sys, 'argv', ['limited_cpu', *words])
  with pytest.raises(SystemExit, match=r'usage: .* \{avx512_bf16,avx512f,avx2\} COMMAND'):
    limited_cpu.main()


def test_it_names_what_the_machine_lacks(tmp_path, monkeypatch):
  cpuinfo = tmp_path / 'cpuinfo'
  monkeypatch.setattr(limited_cpu, '_CPUINFO', cpuinfo)
  with pytest.raises(SystemExit, match='cpuid_fault'):
    limited_cpu.run('avx2', ['true'])
  cpuinfo.write_text('flags : cpuid_fault avx2')
  monkeypatch.setenv('PATH', str(tmp_path))
  with pytest.raises(SystemExit, match='no `cc` on this machine'):
    limited_cpu.run('avx2', ['true'])
