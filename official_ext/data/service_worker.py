"""The worker's side of a tf.data service: answers requests for batches by the inputs that its process has built.

A request is an operation PyFunc in the graph that a run registers at the dispatcher, see service_client.py. TensorFlow
finds the function by its name in the process that runs the graph, which is how it comes to be this one.
"""

from collections.abc import Callable, Mapping
import os
import secrets
import socket
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext import tf_internals
from official_ext.data import bad_examples
from official_ext.data import served_inputs

# The name of the function, with a version: raise it when requests or answers change.
FUNCTION = 'official_ext_batch_1'
UNKNOWN = 'unknown input'


class Answers:
  """What a worker answers. Called from several threads.

  Attributes:
    name: of the worker: host, process, and what tells it from an earlier one with both.
    num_batches: how many batches it has made.
  """

  def __init__(self, inputs: Mapping[str, served_inputs.ServedInput]):
    """Initializes answers from the inputs that are known by their keys."""
    self.name = f'{socket.gethostname()}:{os.getpid()} ({secrets.token_hex(4)})'
    self.num_batches = 0
    self._inputs = inputs

  def __call__(self, key: bytes, first: np.ndarray, size: np.ndarray, empty: np.ndarray) -> list[Any]:
    """Makes a batch.

    Args:
      key: of the input, bytes.
      first: its first position.
      size: the number of positions.
      empty: the names of the dtypes of its tensors, bytes.

    Returns:
      The name of the worker; why there is no batch, or b''; the tensors, empty ones where there is no batch. What is
      wrong with an example, or was skipped, is for the run to find: it makes such a batch itself, and tells of it.
    """
    problem, tensors = self._make(key.decode(), int(first), int(size))
    if problem:
      tensors = [np.zeros([0], tf.as_dtype(name.decode()).as_numpy_dtype) for name in empty.tolist()]
    return [self.name.encode(), problem.encode(), *tensors]

  def _make(self, key, first, size):
    served = self._inputs.get(key)
    if served is None:
      return UNKNOWN, []
    try:
      tensors = [tensor.numpy() for tensor in served.make(first, size)]
    except Exception as error:  # pylint: disable=broad-except  # Anything may be in a source.
      return bad_examples.one_line(error), []
    if served.log.has_skips(first, first + size):
      return 'an example was skipped', []
    self.num_batches += 1
    return '', tensors


def register(answers: Callable[..., list[Any]]) -> None:
  """Lets the requests that reach this process be answered by a function, which the caller keeps."""
  tf_internals.register_py_function(FUNCTION, answers)
