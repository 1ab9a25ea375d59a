"""Small file systems that can be full, or turn read-only, in the middle of a test."""

from collections.abc import Iterator
import contextlib
import pathlib
import subprocess

import pytest


class Disk:
  """A separate file system, mounted at `folder`."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._filler = folder / 'filler'

  def fill(self) -> None:
    """Leaves no room, to the last byte."""
    with open(self._filler, 'ab', buffering=0) as f:
      for size in (1 << 16, 4096, 1):
        try:
          while True:
            f.write(bytes(size))
        except OSError:
          pass

  def use_up_inodes(self) -> None:
    """Leaves room, but for no further file."""
    try:
      for number in range(100_000):
        self._filler.with_name(f'{self._filler.name}-{number}').touch()
    except OSError:
      pass

  def free(self) -> None:
    """Gives room again."""
    for path in self.folder.glob(f'{self._filler.name}*'):
      path.unlink()

  def turn_read_only(self) -> None:
    """Files opened from now on cannot be written; open ones can, as on a disk whose errors the kernel saw."""
    subprocess.run(['mount', '--bind', str(self.folder), str(self.folder)], check=True)
    subprocess.run(['mount', '-o', 'remount,ro,bind', str(self.folder)], check=True)


@contextlib.contextmanager
def small(folder: pathlib.Path, kibibytes: int = 2048, inodes: int = 1000) -> Iterator[Disk]:
  """A `Disk` of some size at `folder`, which is made. Skips the test where mounting is not permitted."""
  folder.mkdir()
  mounted = subprocess.run(
    ['mount', '-t', 'tmpfs', '-o', f'size={kibibytes}k,nr_inodes={inodes}', 'tmpfs', str(folder)],
    capture_output=True,
    text=True,
    check=False,
  )
  if mounted.returncode:
    pytest.skip(f'no right to mount a tmpfs: {mounted.stderr.strip()}')
  try:
    yield Disk(folder)
  finally:
    while not subprocess.run(['umount', '-l', str(folder)], capture_output=True, check=False).returncode:
      pass
