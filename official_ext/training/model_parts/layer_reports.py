"""Reports of layers beside their output, such as how a router spreads tokens: tensors, which may have gradients.

A layer deep inside calls `report`; a reader calls the layers within `collected`. Code that runs layers a
second time for their gradient, or in a loop, returns their reports as additional outputs.
"""

from collections.abc import Iterator
import contextlib
import threading

import tensorflow as tf


class _Local(threading.local):
  """Of one thread, as replicas are traced in separate threads."""

  found: list[tf.Tensor] | None = None


_LOCAL = _Local()


def is_wanted() -> bool:
  """Whether somebody collects reports here."""
  return _LOCAL.found is not None


def report(value: tf.Tensor) -> None:
  """Reports a tensor; ignored without a reader."""
  if _LOCAL.found is not None:
    _LOCAL.found.append(value)


@contextlib.contextmanager
def collected(wanted: bool = True) -> Iterator[list[tf.Tensor]]:
  """Within, reports are added to the list that it yields; unless not `wanted`."""
  before = _LOCAL.found
  found: list[tf.Tensor] = []
  _LOCAL.found = found if wanted else None
  try:
    yield found
  finally:
    _LOCAL.found = before
