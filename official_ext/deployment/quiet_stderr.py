"""Hides the remarks of converters on stderr, which C++ code writes past Python. No TensorFlow."""

from collections.abc import Iterator
import contextlib
import logging
import os
import sys


@contextlib.contextmanager
def hidden() -> Iterator[None]:
  """A context without output on the process's stderr, and without log records below errors."""
  sys.stderr.flush()
  kept = os.dup(2)
  nowhere = os.open(os.devnull, os.O_WRONLY)
  level = logging.root.manager.disable
  try:
    os.dup2(nowhere, 2)
    logging.disable(logging.CRITICAL)
    yield
  finally:
    logging.disable(level)
    sys.stderr.flush()
    os.dup2(kept, 2)
    os.close(kept)
    os.close(nowhere)
