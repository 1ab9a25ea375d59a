"""The worker's side of a tf.data service: answers requests for batches by the inputs that its process has built.

A request is an operation PyFunc in the graph that a run registers at the dispatcher, see client.py. TensorFlow
finds the function by its name in the process that runs the graph, so that it is this one.
"""

from collections.abc import Callable, Mapping
import os
import secrets
import socket
import threading
import time
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from official_ext.base import tf_internals
from official_ext.data import input_faults
from official_ext.data.service import served_inputs

FUNCTION = 'official_ext_batch'
# Why there is no batch, where it is not an error of the worker's.
UNKNOWN = 'it has other data'
SKIPPED = 'an example is skipped'
# An answer without a batch takes so long: the service gives most numbers to those who answer first.
_PAUSE_SECONDS = 1.0


class Answers:
  """The answer of a worker. Called from several threads.

  Attributes:
    name: of the worker: host, process, and a part that distinguishes it from an earlier one with both.
    num_batches: how many batches it has made.
  """

  def __init__(self, inputs: Mapping[str, served_inputs.ServedInput]):
    """Initializes answers from the inputs that are known by their keys."""
    self.name = f'{socket.gethostname()}:{os.getpid()} ({secrets.token_hex(4)})'
    self.num_batches = 0
    self._inputs = inputs
    self._lock = threading.Lock()
    self._is_told = False

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
      The name of the worker; why there is no batch, or b''; the tensors, empty ones where there is no batch. Bad or
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
      if not self._is_told:
        self._is_told = True
        logging.warning('%s: a batch could not be made: %s (further ones are not reported)', served.path, problem)
      return problem, []
    return (SKIPPED, []) if served.log.forget_skips(first, first + size) else ('', tensors)


def register(answers: Callable[..., list[object]]) -> None:
  """Lets the requests that reach this process be answered by a function, which the caller keeps."""
  tf_internals.register_py_function(FUNCTION, answers)
