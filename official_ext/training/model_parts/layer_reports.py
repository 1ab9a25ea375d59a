"""What layers report beside their output, such as how a router spreads tokens: tensors, which may have gradients.

A layer deep inside calls `report`; who wants to know calls the layers within `collected`. What runs layers a second
time for their gradient, or in a loop, hands on what they report as outputs of its own.
"""

from collections.abc import Iterator
import contextlib
import threading

import tensorflow as tf


class _Local(threading.local):
  """Of one thread, as replicas are traced in threads of their own."""

  found: list[tf.Tensor] | None = None


_LOCAL = _Local()


def is_wanted() -> bool:
  """Whether somebody collects what is reported here."""
  return _LOCAL.found is not None


def report(value: tf.Tensor) -> None:
  """Reports a tensor; nothing happens if nobody wants to know."""
  if _LOCAL.found is not None:
    _LOCAL.found.append(value)


@contextlib.contextmanager
def collected(wanted: bool = True) -> Iterator[list[tf.Tensor]]:
  """Within, what is reported is added to the list that it yields; if it is not `wanted`, nothing is."""
  before = _LOCAL.found
  found: list[tf.Tensor] = []
  _LOCAL.found = found if wanted else None
  try:
    yield found
  finally:
    _LOCAL.found = before
