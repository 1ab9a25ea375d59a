"""Memory, disk and ports."""

from collections.abc import Iterator
import os
import pathlib
import shutil
import socket
import tempfile

from official_ext.base.files import cache
from official_ext.base.processes import machine_memory
from official_ext.operations.doctor import check_results

_GB = 1e9
MIN_MEMORY, MIN_DISK = 3 * _GB, 2 * _GB  # TensorFlow and a small model take about 1 GB of memory.
CONSOLE_PORT = 8420


def memory(least: float = MIN_MEMORY) -> check_results.Result:
  """Checks the available memory.

  Args:
    least: bytes.
  """
  found = machine_memory.read()
  if found is None:
    return check_results.note('memory', 'unknown: there is no /proc/meminfo')
  limit = ' (the limit of its cgroup)' if found.is_limited else ''
  text = f'{found.available / _GB:.1f} of {found.total / _GB:.1f} GB available{limit}'
  if found.available < least:
    return check_results.problem('memory', text, f'end other programs: {least / _GB:g} GB are needed')
  return check_results.ok('memory', text)


def disk(folder: str = '', least: float = MIN_DISK) -> Iterator[check_results.Result]:
  """Checks that the folders in which runs write have space and can be written.

  Args:
    folder: of the runs; '' for the current one. Temporary files and caches are checked too.
    least: bytes.
  """
  for place in dict.fromkeys(map(_existing, (folder or os.getcwd(), tempfile.gettempdir(), cache.root()))):
    free = shutil.disk_usage(place).free
    text = f'{place}: {free / _GB:.1f} GB free'
    if not os.access(place, os.W_OK | os.X_OK):
      yield check_results.problem('disk', f'{place}: cannot be written', f'chmod u+rwx {place}, or another folder')
    elif free < least:
      fix = f'free {least / _GB:g} GB, or use a folder of another disk'
      yield check_results.problem('disk', text, fix)
    else:
      yield check_results.ok('disk', text)


def ports(console: int = CONSOLE_PORT) -> check_results.Result:
  """Checks that loopback ports can be opened, which workers and the console need.

  Args:
    console: the port of the console.
  """
  try:
    _listen(0)
  except OSError as error:
    fix = 'allow loopback connections in this container or sandbox'
    return check_results.problem('ports', f'127.0.0.1: cannot listen: {error.strerror}', fix)
  try:
    _listen(console)
  except OSError as error:
    text = f"{console}, the console's default, cannot be used: {error.strerror}"
    return check_results.note('ports', text, 'official-ext console runs --port=0')
  return check_results.ok('ports', f'127.0.0.1 can listen; {console} is free')


def _listen(port: int) -> None:
  with socket.socket() as found:
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(('127.0.0.1', port))
    found.listen()


def _existing(folder: str) -> str:
  """A folder, or the nearest above it that exists."""
  path = pathlib.Path(folder).absolute()
  return str(next(each for each in (path, *path.parents) if each.is_dir()))
