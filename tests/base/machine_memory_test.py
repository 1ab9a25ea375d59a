"""The memory of the machine and the limits of cgroups, of both versions, from files as the kernel writes them."""

import ctypes
import os
import platform

import pytest

from official_ext.base import hardware

_GIB = 2**30
_MEMINFO = f'MemTotal:       {8 * _GIB // 1024} kB\nMemFree:  1 kB\nMemAvailable:   {6 * _GIB // 1024} kB\n'


def write(root, files):
  for name, text in {'proc/meminfo': _MEMINFO, **files}.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  return str(root)


def test_without_a_limit_it_is_the_machine(tmp_path):
  files = {'proc/self/cgroup': '0::/user\n', 'sys/fs/cgroup/user/memory.max': 'max\n'}
  assert hardware.read_memory(write(tmp_path, files)) == hardware.MachineMemory(8 * _GIB, 6 * _GIB)


def test_the_tightest_of_the_limits_above_a_process_counts_without_unused_caches(tmp_path):
  files = {
    'proc/self/cgroup': '0::/pod/box\n',
    'sys/fs/cgroup/pod/memory.max': f'{4 * _GIB}\n',
    'sys/fs/cgroup/pod/memory.current': f'{3 * _GIB}\n',
    'sys/fs/cgroup/pod/memory.stat': f'anon {_GIB}\ninactive_file {_GIB}\n',
    'sys/fs/cgroup/pod/box/memory.max': f'{5 * _GIB}\n',
    'sys/fs/cgroup/pod/box/memory.current': '0\n',
  }
  assert hardware.read_memory(write(tmp_path, files)) == hardware.MachineMemory(4 * _GIB, 2 * _GIB, True)


@pytest.mark.parametrize('limit', [2 * _GIB, 9223372036854771712])
def test_the_first_version_of_cgroups(tmp_path, limit):
  files = {
    'proc/self/cgroup': '5:devices:/\n4:cpu,memory:/box\n0::/\n',
    'sys/fs/cgroup/memory/box/memory.limit_in_bytes': f'{limit}\n',
    'sys/fs/cgroup/memory/box/memory.usage_in_bytes': f'{_GIB}\n',
    'sys/fs/cgroup/memory/box/memory.stat': f'total_inactive_file {_GIB // 2}\n',
  }
  found = hardware.read_memory(write(tmp_path, files))
  of_box = hardware.MachineMemory(2 * _GIB, 2 * _GIB - _GIB // 2, True)
  assert found == (of_box if limit == 2 * _GIB else hardware.MachineMemory(8 * _GIB, 6 * _GIB))


def test_another_system_reports_nothing(tmp_path):
  assert hardware.read_memory(str(tmp_path)) is None and hardware.resident_memory(str(tmp_path)) == 0


@pytest.mark.skipif(not os.path.exists('/proc/self/status'), reason='Linux')
def test_the_resident_memory_grows_with_what_is_written():
  before = hardware.resident_memory()
  held = bytearray(b'1') * (64 * 2**20)
  assert 60 * 2**20 < hardware.resident_memory() - before < 100 * 2**20
  del held


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='malloc_trim is of glibc')
def test_freed_memory_is_given_back_although_the_end_of_the_heap_is_in_use():
  libc = ctypes.CDLL(None)
  libc.malloc.restype, libc.free.argtypes, libc.memset.argtypes = (
    ctypes.c_void_p,
    [ctypes.c_void_p],
    [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t],
  )
  size, number = 64 * 1024, 1024  # 64 MiB, in blocks too small to be mapped separately.
  blocks = [libc.malloc(size) for _ in range(number)]
  for block in blocks:
    libc.memset(block, 1, size)
  end = libc.malloc(size)
  for block in blocks:
    libc.free(block)
  before = hardware.resident_memory()
  hardware.release_freed_memory()
  given_back = before - hardware.resident_memory()
  libc.free(end)
  assert given_back > size * number / 2
