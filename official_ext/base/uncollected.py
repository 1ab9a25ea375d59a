"""Imports without searches for garbage: TensorFlow's make a million objects, which live as long as the process.

Python's collector looks at all of them again and again while their number grows: a twelfth of a start.
"""

from collections.abc import Iterator
import contextlib
import gc
import sys


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
  """A context for imports. If TensorFlow is among them, the collector leaves all present objects alone afterwards."""
  was_enabled, had_tensorflow = gc.isenabled(), 'tensorflow' in sys.modules
  gc.disable()
  try:
    yield
  finally:
    if 'tensorflow' in sys.modules and not had_tensorflow:
      gc.freeze()
    if was_enabled:
      gc.enable()
