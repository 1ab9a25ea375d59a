"""The worker's side of a tf.data service: answers requests for batches by the inputs that its process has built.

A run requests a batch by the input's key, the first of its positions, its size, and whether examples may end within it.
A worker builds the same inputs from the same command, and knows them by the same keys.

A request is an operation PyFunc in the graph that a run registers at the dispatcher: see client.py. TensorFlow finds
the function by its name in the process that runs the graph, which is this one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import contextvars
import dataclasses
import json
import os
import secrets
import socket
import threading
import time
from typing import Any

from absl import logging
import numpy as np
from official.modeling.hyperparams import base_config
import tensorflow as tf

from official_ext.base import tf_internals
from official_ext.data import bad_examples
from official_ext.data import batch_reader
from official_ext.data import config_fields
from official_ext.data import data_identity
from official_ext.data import input_faults

# Fields that do not change a batch: files are in the identity, by names and sizes.
_HOW = (
  'input_path',
  'tfds_data_dir',
  'cache_dir',
  'chat_template_path',  # So is its content, with the tokenizer.
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
  maker: batch_reader.BatchMaker
  indices: Callable[[tf.Tensor], tf.Tensor]
  log: bad_examples.ExampleLog
  _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
  _functions: dict[tuple[int, bool], object] = dataclasses.field(default_factory=dict)

  def function(self, size: int, is_partial: bool) -> Any:
    """The maker of batches of `size` positions: a concrete function of the first one, an int64 scalar.

    It makes them in a dataset, as a run without a service does: TensorFlow rewrites the arithmetic of functions that
    it calls by itself, and `x / 255` has another last bit there.
    """

    maker = dataclasses.replace(self.maker, is_partial=is_partial)

    def make(first):
      positions = first + tf.range(size, dtype=tf.int64)
      return maker(positions, self.indices(positions))

    def batch(first):
      options = tf.data.Options()
      options.autotune.enabled = False
      return tf.data.Dataset.from_tensors(first).map(make).with_options(options).get_single_element()

    with self._lock:
      if (size, is_partial) not in self._functions:
        with tf.device('CPU:0'):
          function = tf.function(batch, autograph=False)
          self._functions[size, is_partial] = function.get_concrete_function(tf.TensorSpec([], tf.int64))
      return self._functions[size, is_partial]

  def make(self, first: int, size: int, is_partial: bool) -> list[tf.Tensor]:
    """Makes the batch of the positions from `first` on, here: its tensors in the order of `tf.nest.flatten`.

    Args:
      first: a position of the run.
      size: the number of positions.
      is_partial: whether some may be beyond the last example: `BatchMaker.is_partial`.
    """
    function = self.function(size, is_partial)
    with tf.device('CPU:0'):
      return tf.nest.flatten(function(tf.constant(first, tf.int64)))


# Fields of a task that have nothing to do with its input, or are in the keys of inputs.
_NOT_OF_INPUT = ('init_checkpoint', 'init_checkpoint_may_miss', 'train_data', 'validation_data')
_TASK: contextvars.ContextVar[object] = contextvars.ContextVar('task_config', default=None)


@contextlib.contextmanager
def belonging_to(task_config: object) -> Iterator[None]:
  """A context: the keys of the inputs that are built in it identify this task's configuration."""
  token = _TASK.set(task_config)
  try:
    yield
  finally:
    _TASK.reset(token)


def key_of(params: base_config.Config, identity: data_identity.Identity, transforms: Sequence[object]) -> str:
  """The key of an input.

  Args:
    params: its data configuration.
    identity: of its examples.
    transforms: the functions that change batches and examples; None: no function.
  """
  fields = {name: value for name, value in params.as_dict().items() if name not in _HOW}
  fields['seed'] = fields.get('seed') or 0
  task = _TASK.get()
  of_task = task.as_dict() if isinstance(task, base_config.Config) else {}
  of_task = {name: value for name, value in of_task.items() if name not in _NOT_OF_INPUT}
  names = [getattr(function, '__qualname__', type(function).__qualname__) for function in transforms]
  return data_identity.digest([json.dumps([fields, of_task, identity, names], sort_keys=True, default=str)])


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
  return _COLLECTED.get() is not None or bool(config_fields.of_data(params).is_served)


def collect(served: ServedInput) -> bool:
  """Adds an input to the enclosing `collected`. Returns whether there is one."""
  found = _COLLECTED.get()
  if found is not None:
    found[served.key] = served
  return found is not None


FUNCTION = 'official_ext_batch'
# Why there is no batch, if not by an error of the worker.
UNKNOWN = 'it has other data'
SKIPPED = 'an example is skipped'
# The time of an answer without a batch: the service gives most numbers to the workers that answer first.
_PAUSE_SECONDS = 1.0


class Answers:
  """The answer of a worker. Called from several threads.

  Attributes:
    name: of the worker: host, process, and a part that distinguishes it from an earlier one with both.
    num_batches: how many batches it has made.
  """

  def __init__(self, inputs: Mapping[str, ServedInput]):
    """Initializes answers from the inputs that are known by their keys."""
    self.name = f'{socket.gethostname()}:{os.getpid()} ({secrets.token_hex(4)})'
    self.num_batches = 0
    self._inputs = inputs
    self._lock = threading.Lock()
    self._is_reported = False

  def __call__(
    self, key: bytes, first: np.ndarray, size: np.ndarray, is_partial: np.ndarray, dtypes: np.ndarray
  ) -> list[Any]:
    """Makes a batch.

    Args:
      key: of the input.
      first: its first position.
      size: the number of positions.
      is_partial: whether examples may end within it.
      dtypes: the names of the dtypes that its tensors must have, bytes.

    Returns:
      The name of the worker; why there is no batch, or b''; the tensors, empty ones without a batch. Bad or
      skipped examples are for the run to find: it makes such a batch itself, and reports it.
    """
    names = [name.decode() for name in dtypes.tolist()]
    problem, tensors = self._make(key.decode(), int(first), int(size), bool(is_partial))
    if not problem and [tf.as_dtype(tensor.dtype).name for tensor in tensors] != names:
      problem = UNKNOWN
    if problem:
      tensors = [np.zeros([0], tf.as_dtype(name).as_numpy_dtype) for name in names]
      if problem != SKIPPED:
        time.sleep(_PAUSE_SECONDS)
    else:
      with self._lock:
        self.num_batches += 1
    return [self.name.encode(), problem.encode(), *tensors]

  def _make(self, key, first, size, is_partial):
    served = self._inputs.get(key)
    if served is None:
      return UNKNOWN, []
    try:
      tensors = [tensor.numpy() for tensor in served.make(first, size, is_partial)]
    except Exception as error:  # pylint: disable=broad-except  # Anything may be in a source.
      problem = input_faults.named_example(error) or input_faults.reason_of(error)
      if not self._is_reported:
        self._is_reported = True
        logging.warning('%s: a batch could not be made: %s (further ones are not reported)', served.path, problem)
      return problem, []
    return (SKIPPED, []) if served.log.forget_skips(first, first + size) else ('', tensors)


def register(answers: Callable[..., list[object]]) -> None:
  """Lets the requests that reach this process be answered by a function, which the caller keeps."""
  tf_internals.register_py_function(FUNCTION, answers)
