"""Records, in their order, the calls that change files, and lets syncs fail as those of a disk do."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import os
import shutil
from unittest import mock

import tensorflow as tf

from official_ext.base.files import paths

Call = tuple[str, ...]


def _path_of(descriptor: int) -> str:
  return os.path.realpath(f'/proc/self/fd/{descriptor}')


@contextlib.contextmanager
def recorded() -> Iterator[list[Call]]:
  """The calls of this process inside the context, all of which are made: see `_WATCHED`.

  Yields:
    ('sync', PATH), ('rename', FROM, TO), ('remove', PATH), in their order.
  """
  calls: list[Call] = []
  with contextlib.ExitStack() as stack:
    for owner, name, kind in _WATCHED:
      stack.enter_context(mock.patch.object(owner, name, _noting(calls, kind, getattr(owner, name))))
    yield calls


# gfile calls no function of Python's; shutil.rmtree is one removal.
_WATCHED = (
  (os, 'fsync', 'sync'),
  (os, 'replace', 'rename'),
  (os, 'rename', 'rename'),
  (paths, 'exchange', 'rename'),
  (os, 'remove', 'remove'),
  (shutil, 'rmtree', 'remove'),
  (tf.io.gfile, 'rename', 'rename'),
  (tf.io.gfile, 'remove', 'remove'),
)


def _noting(calls, kind, function):
  num_paths = 2 if kind == 'rename' else 1

  def note(*args, **kwargs):
    paths = [_path_of(arg) if isinstance(arg, int) else os.fspath(arg) for arg in args[:num_paths]]
    result = function(*args, **kwargs)
    calls.append((kind, *paths))
    return result

  return note


def synced(calls: Sequence[Call]) -> list[str]:
  """The paths that were synced."""
  return [call[1] for call in calls if call[0] == 'sync']


@contextlib.contextmanager
def failing_syncs(fails: Callable[[str], bool], number: int, times: int = 1 << 30) -> Iterator[list[str]]:
  """A context in which the disk reports an error for some files and folders when they are synced.

  Args:
    fails: whether the sync of a path fails.
    number: the error's.
    times: how many fail.

  Yields:
    The paths whose sync has failed.
  """
  sync, failed = os.fsync, []

  def fsync(descriptor):
    path = _path_of(descriptor)
    if len(failed) < times and fails(path):
      failed.append(path)
      raise OSError(number, os.strerror(number))
    sync(descriptor)

  with mock.patch.object(os, 'fsync', fsync):
    yield failed


class _Ended(BaseException):
  """Ends the work in progress as a kill does: no handler of exceptions changes a file any more."""


@contextlib.contextmanager
def ending_after(number: int) -> Iterator[Callable[[], bool]]:
  """A context whose code ends before it changes a file once more than `number` times; later changes do nothing.

  Yields:
    A function that returns whether it has ended so.
  """
  done = 0

  def ending(function, default=None):
    def call(*args, **kwargs):
      nonlocal done
      done += 1
      if done > number:
        raise _Ended
      return function(*args, **kwargs)

    return call

  with contextlib.ExitStack() as stack:
    for owner, name, kind in _WATCHED:
      if kind != 'sync':
        stack.enter_context(mock.patch.object(owner, name, ending(getattr(owner, name))))
    try:
      yield lambda: done > number
    except _Ended:
      pass
