"""Inputs whose batches another process can make: what a run and the workers of its tf.data service agree on.

A run asks for a batch by the input's key, the first of its positions and its size. A worker builds the same inputs from
the same command, and knows them by the same keys.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import contextvars
import dataclasses
import json
import threading
from typing import Any

from official.modeling.hyperparams import base_config
import tensorflow as tf

from official_ext.data import bad_examples
from official_ext.data import batch_maker
from official_ext.data import identity as identity_lib

# Fields that do not change what is in a batch: files are in the identity, by names and sizes.
_HOW = (
  'input_path',
  'tfds_data_dir',
  'cache_dir',
  'enable_tf_data_service',
  'tf_data_service_address',
  'global_batch_size',
  'deterministic',
  'num_parallel_calls',
  'prefetch_buffer_size',
)


@dataclasses.dataclass
class ServedInput:
  """An input, as a function from positions to batches.

  Attributes:
    key: distinguishes it from other inputs: of its data configuration and the identity of its examples.
    path: the dotted path of its data configuration, for messages.
    maker: makes batches.
    indices: the examples at positions: from int64 tensors of shape [b] to ones of the same shape.
    log: of the examples that are skipped.
  """

  key: str
  path: str
  maker: batch_maker.BatchMaker
  indices: Callable[[tf.Tensor], tf.Tensor]
  log: bad_examples.ExampleLog
  _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
  _functions: dict[int, Any] = dataclasses.field(default_factory=dict)

  def function(self, size: int) -> Any:
    """What makes batches of `size` positions: a concrete function of the first one, an int64 scalar."""

    def make(first):
      positions = first + tf.range(size, dtype=tf.int64)
      return self.maker(positions, self.indices(positions))

    with self._lock:
      if size not in self._functions:
        with tf.device('CPU:0'):
          self._functions[size] = tf.function(make).get_concrete_function(tf.TensorSpec([], tf.int64))
      return self._functions[size]

  def make(self, first: int, size: int) -> list[tf.Tensor]:
    """Makes the batch of the positions from `first` on, here: its tensors in the order of `tf.nest.flatten`."""
    function = self.function(size)
    with tf.device('CPU:0'):
      return tf.nest.flatten(function(tf.constant(first, tf.int64)))


def key_of(params: base_config.Config, identity: identity_lib.Identity) -> str:
  """The key of an input.

  Args:
    params: its data configuration.
    identity: of its examples.
  """
  fields = {name: value for name, value in params.as_dict().items() if name not in _HOW}
  return identity_lib.digest([json.dumps([fields, identity], sort_keys=True, default=str)])


_COLLECTED: contextvars.ContextVar[dict[str, ServedInput] | None] = contextvars.ContextVar('collected', default=None)


@contextlib.contextmanager
def collected() -> Iterator[Mapping[str, ServedInput]]:
  """A context: the inputs that are built in it by `build_dataset` are collected, by their keys."""
  found: dict[str, ServedInput] = {}
  token = _COLLECTED.set(found)
  try:
    yield found
  finally:
    _COLLECTED.reset(token)


def is_wanted(params: base_config.Config) -> bool:
  """Whether an input is to be collected, or a data configuration takes its batches from a tf.data service."""
  return _COLLECTED.get() is not None or bool(
    getattr(params, 'enable_tf_data_service', False) and params.tf_data_service_address
  )


def collect(served: ServedInput) -> bool:
  """Adds an input to those of the enclosing `collected`. Returns whether there is one."""
  found = _COLLECTED.get()
  if found is not None:
    found[served.key] = served
  return found is not None
