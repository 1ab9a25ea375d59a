"""The hardware that processes of this machine may use: GPUs by their names in CUDA_VISIBLE_DEVICES, and memory.

The memory is the machine's, or a cgroup's if its limit is tighter: see cgroups(7) and proc(5).
"""

from collections.abc import Iterator
import contextlib
import ctypes
import dataclasses
import os
import pathlib

CUDA_VARIABLE = 'CUDA_VISIBLE_DEVICES'


def visible_gpus() -> list[str]:
  """The GPUs that CUDA_VISIBLE_DEVICES names; if it is unset, all of the machine. [] without GPUs."""
  visible = os.environ.get(CUDA_VARIABLE)
  return all_gpus() if visible is None else parse_gpus(visible)


def all_gpus() -> list[str]:
  """The GPUs of the machine, by their numbers."""
  folder = pathlib.Path('/proc/driver/nvidia/gpus')
  return [str(index) for index, _ in enumerate(folder.iterdir())] if folder.is_dir() else []


def parse_gpus(text: str) -> list[str]:
  """The names in a value of CUDA_VISIBLE_DEVICES."""
  return [name.strip() for name in text.split(',') if name.strip() and name.strip() != '-1']


_UNLIMITED = 2**60  # The first version of cgroups writes a number of this size for no limit.


@dataclasses.dataclass(frozen=True)
class MachineMemory:
  """The memory that a process may use.

  Attributes:
    total: bytes of the machine, or of the tightest limit of a cgroup below that.
    available: bytes of `total` that are free, or taken by caches that the kernel gives up.
    is_limited: whether a cgroup's limit, as of a container, is the tighter one.
  """

  total: int
  available: int
  is_limited: bool = False


def read_memory(root: str = '/') -> MachineMemory | None:
  """The memory that this process may use; None if the system does not report it.

  Args:
    root: the folder with `proc` and `sys`.
  """
  base = pathlib.Path(root)
  values = _fields(base / 'proc/meminfo', separator=':', unit=1024)
  total, available = values.get('MemTotal', 0), values.get('MemAvailable', 0)
  if not total:
    return None
  is_limited = False
  for limit, used in _memory_limits(base):
    if limit < total:
      total, is_limited = limit, True
    available = min(available, max(0, limit - used))
  return MachineMemory(total, available, is_limited)


def resident_memory(root: str = '/') -> int:
  """Bytes of this process in memory; 0 if the system does not report them."""
  return _fields(pathlib.Path(root, 'proc/self/status'), separator=':', unit=1024).get('VmRSS', 0)


def release_freed_memory() -> None:
  """Gives pages that were allocated and freed back to the system: `malloc_trim(3)`. Does nothing on systems without it.

  glibc returns by itself only what is freed at the end of the heap. Tracing and compiling leave holes everywhere.
  """
  with contextlib.suppress(OSError, AttributeError):
    ctypes.CDLL(None).malloc_trim(0)


def _memory_limits(base: pathlib.Path) -> Iterator[tuple[int, int]]:
  """(limit, bytes in use without file caches that are not in use) of each cgroup of this process that has a limit."""
  try:
    lines = (base / 'proc/self/cgroup').read_text().splitlines()
  except OSError:
    return
  for line in lines:
    _, controllers, path = line.split(':', 2)
    if not controllers:
      mount, names = base / 'sys/fs/cgroup', ('memory.max', 'memory.current', 'inactive_file')
    elif 'memory' in controllers.split(','):
      mount = base / 'sys/fs/cgroup/memory'
      names = ('memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_inactive_file')
    else:
      continue
    group = mount / path.lstrip('/')
    for folder in (group, *group.parents):
      limit, used = (_number(folder / name) for name in names[:2])
      if limit and used is not None and limit < _UNLIMITED:
        cached = _fields(folder / 'memory.stat', separator=' ', unit=1).get(names[2], 0)
        yield limit, max(0, used - cached)
      if folder == mount:
        break


def _number(path: pathlib.Path) -> int | None:
  """The number in a file; None if the file is missing, or for 'max'."""
  try:
    return int(path.read_text())
  except (OSError, ValueError):
    return None


def _fields(path: pathlib.Path, separator: str, unit: int) -> dict[str, int]:
  """Name -> bytes of the lines of a file; {} if it cannot be read."""
  found = {}
  try:
    for line in path.read_text().splitlines():
      name, _, value = line.partition(separator)
      if value.split() and value.split()[0].isdigit():
        found[name] = int(value.split()[0]) * unit
  except OSError:
    pass
  return found
