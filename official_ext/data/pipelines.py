"""Changes the tf.data pipelines of any task from outside: their first batch, their transforms, their options.

    with pipelines.starting_at(1000) as start:
      dataset = task.build_inputs(params)
    if not start.honoured:
      dataset = dataset.skip(1000)

An input honours the start if it calls `take_start`.

The last part deletes iterators, and owns the files of `cache(filename)`. TensorFlow refuses a cache whose lock file
exists; its iterator deletes that file, and a process that is killed leaves it.
"""

from collections.abc import Callable, Iterator
import contextlib
import contextvars
import dataclasses
import gc
import inspect
import os
import re
import threading
import time
from typing import Any

import tensorflow as tf

from official_ext.base import tf_internals
from official_ext.base.files import local_files
from official_ext.base.files import paths


@dataclasses.dataclass
class Position:
  """The position at which an input starts.

  Attributes:
    num_batches: the number of global batches that have been used before.
    honoured: whether the input has taken the number, and so starts there by itself.
  """

  num_batches: int
  honoured: bool = False


_POSITION: contextvars.ContextVar[Position | None] = contextvars.ContextVar('position', default=None)


@contextlib.contextmanager
def starting_at(num_batches: int) -> Iterator[Position]:
  """A context: training inputs that are built in it start at this batch, if they can.

  Args:
    num_batches: the number of global batches to skip, >= 0.

  Yields:
    The position; `honoured` shows whether an input took it.
  """
  if num_batches < 0:
    raise ValueError(f'num_batches: {num_batches} is negative.')
  position = Position(int(num_batches))
  token = _POSITION.set(position)
  try:
    yield position
  finally:
    _POSITION.reset(token)


def take_start() -> int:
  """Returns the batch to start at, 0 outside of `starting_at`. The caller promises to start there.

  Example:

    >>> def build_inputs(params, input_context=None):  # Of a task without `build_dataset`.
    ...   dataset = tf.data.Dataset.range(1000).repeat().batch(params.global_batch_size)
    ...   return dataset.skip(ext.take_start())
    >>> batches = build_inputs(ext.InMemoryDataConfig(global_batch_size=4))
    >>> next(iter(batches)).numpy()  # A new run starts at batch 0. A run that resumes at step 50 starts at batch 50.
    array([0, 1, 2, 3])
  """
  position = _POSITION.get()
  if position is None:
    return 0
  position.honoured = True
  return position.num_batches


Transform = Callable[[tf.data.Dataset, tf.distribute.InputContext | None], tf.data.Dataset]


def transformed(build_inputs: Callable[..., tf.data.Dataset], transform: Transform) -> Callable[..., tf.data.Dataset]:
  """A task's `build_inputs` that applies `transform(dataset, input_context)` to every dataset that it returns."""
  takes_context = 'input_context' in inspect.signature(build_inputs).parameters

  def build(params, input_context=None):
    datasets = build_inputs(params, input_context) if takes_context else build_inputs(params)
    return tf.nest.map_structure(lambda dataset: transform(dataset, input_context), datasets)

  return build


def without_autotune(
  dataset: tf.data.Dataset, input_context: tf.distribute.InputContext | None = None
) -> tf.data.Dataset:
  """Turns off tf.data's tuning of parallelism in a dataset, unless its options turn it on.

  For datasets that are iterated again and again: when an iterator with tuning is deleted, TensorFlow may first sleep to
  the end of the tuning period, up to a minute (it wakes the tuning thread before it marks it as cancelled). Without
  tuning, AUTOTUNE means as many calls as there are threads, 16 at most. Anything but a dataset is returned unchanged.
  """
  del input_context
  if not isinstance(dataset, tf.data.Dataset) or dataset.options().autotune.enabled is not None:
    return dataset
  options = tf.data.Options()
  options.autotune.enabled = False
  return dataset.with_options(options)


def never_ends(dataset: tf.data.Dataset) -> bool:
  """Whether a dataset is known to have no end: it repeats, or all that it reads from does."""
  cardinality = int(dataset.cardinality())
  if cardinality == tf.data.INFINITE_CARDINALITY:
    return True
  if 'Take' in type(dataset).__name__ or cardinality >= 0:
    return False
  inputs = tf_internals.inputs_of(dataset)
  return bool(inputs) and all(map(never_ends, inputs))


_COMPLETE = '.index'  # TensorFlow writes it last.
_OWNER = '.owner'  # Next to a cache: locked by the process that uses it, and deleted by it if it ends by itself.
_OWNED: dict[str, int] = {}  # Descriptors of these files, by the path of the cache.
_DELETIONS: list[threading.Thread] = []


def file_caches(dataset: tf.data.Dataset) -> list[str]:
  """The local paths of `cache(filename)` in a pipeline, outside of functions of `map`, `interleave` and so on."""
  found, pending = [], [dataset]
  while pending:
    each = pending.pop()
    path = tf_internals.cache_file_of(each)
    found += [path] if path and not paths.is_remote(path) else []
    pending += tf_internals.inputs_of(each)
  return found


def own_caches(dataset: tf.data.Dataset) -> None:
  """Owns the caches of a pipeline, and deletes the lock files of processes that were killed while they wrote.

  A complete cache is reported: TensorFlow does not compare it with the pipeline before it.

  A lock file counts as left over if the cache had an owner, and no process has its lock any more. The lock file of a
  program without this library stays, and TensorFlow refuses it.

  Args:
    dataset: of which no iterator was made yet.
  """
  for path in file_caches(dataset):
    if path in _OWNED:
      continue
    if os.path.exists(path + _COMPLETE):
      print(f'{path}: its examples are those of an earlier run; delete it if data or code have changed', flush=True)
    had_owner = os.path.exists(path + _OWNER)
    try:
      file = local_files.open_descriptor(path + _OWNER, os.O_RDWR | os.O_CREAT)
    except OSError:  # TensorFlow reports it.
      continue
    if not local_files.try_lock(file) or not local_files.is_lock_at(file, path + _OWNER):
      os.close(file)
      continue
    _OWNED[path] = file
    folder, name = os.path.split(path)
    for lock in paths.matching(folder or '.', re.escape(name) + r'_\d+\.lockfile') if had_owner else ():
      paths.remove(lock)
      print(f'{lock}: deleted; the process that wrote this cache has ended', flush=True)


def delete_in_background(objects: list[Any], collects: bool = False) -> None:
  """Deletes iterators in a thread: TensorFlow may take a minute for one.

  The thread is no daemon: it must not run while the interpreter ends.

  Args:
    objects: is emptied. No other reference may be left.
    collects: whether cycles, such as of an exception and its frames, may hold them.
  """

  def delete():
    objects.clear()
    if collects:
      gc.collect()

  thread = threading.Thread(target=delete, name='delete_iterator')
  _DELETIONS[:] = [*(each for each in _DELETIONS if each.is_alive()), thread]
  thread.start()


def wait_for_caches() -> None:
  """Waits until deleted iterators have given up their caches, which another iterator could not write otherwise."""
  if _OWNED:
    finish_deletions()


def finish_deletions(seconds: float | None = None) -> bool:
  """Waits for `delete_in_background`.

  Args:
    seconds: the longest wait; None: without end.

  Returns:
    Whether all is deleted.
  """
  deadline = None if seconds is None else time.monotonic() + seconds
  for thread in list(_DELETIONS):
    thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
  return not any(thread.is_alive() for thread in _DELETIONS)


def release_caches() -> None:
  """Gives up the caches. Call it when their iterators are deleted."""
  for path, file in _OWNED.items():
    with contextlib.suppress(OSError):
      os.remove(path + _OWNER)
    os.close(file)
  _OWNED.clear()


def _leave_to_parent() -> None:
  """In a forked process, which would otherwise keep the locks after its parent's death."""
  for file in _OWNED.values():
    os.close(file)
  _OWNED.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
