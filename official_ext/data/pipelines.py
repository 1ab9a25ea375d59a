"""Changes the tf.data pipelines of any task from outside: their first batch, their transforms, their options.

    with pipelines.starting_at(1000) as start:
      dataset = task.build_inputs(params)
    if not start.honoured:
      dataset = dataset.skip(1000)

An input honours the start if it calls `take_start`.
"""

from collections.abc import Callable, Iterator
import contextlib
import contextvars
import dataclasses
import inspect

import tensorflow as tf

from official_ext.base import tf_internals


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
