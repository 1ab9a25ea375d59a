"""Objects other than a regular file at a path, and a limit for readers that would wait for it."""

from collections.abc import Iterator
import contextlib
import os
import shutil
import signal
import socket

KINDS = ('pipe', 'socket', 'device', 'folder', 'loop')


def put(kind: str, path: str) -> None:
  """Puts one of `KINDS` at a path, in place of the present object."""
  if os.path.isdir(path) and not os.path.islink(path):
    shutil.rmtree(path)
  elif os.path.lexists(path):
    os.remove(path)
  os.makedirs(os.path.dirname(path), exist_ok=True)
  if kind == 'pipe':
    os.mkfifo(path)
  elif kind == 'socket':
    with socket.socket(socket.AF_UNIX) as server, _inside(os.path.dirname(path)):  # Paths of sockets are short.
      server.bind(os.path.basename(path))
  elif kind == 'device':
    os.symlink('/dev/zero', path)
  elif kind == 'folder':
    os.mkdir(path)
  else:
    os.symlink(os.path.basename(path), path)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
  before = os.getcwd()
  os.chdir(folder)
  try:
    yield
  finally:
    os.chdir(before)


@contextlib.contextmanager
def seconds(number: int) -> Iterator[None]:
  """A context that fails, also inside of a system call, if it takes longer."""

  def fail(*_):
    raise AssertionError(f'still waiting after {number} s')

  before = signal.signal(signal.SIGALRM, fail)
  signal.alarm(number)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
