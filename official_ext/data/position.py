"""Gives an input pipeline its first batch.

with position.starting_at(1000) as start:
  dataset = task.build_inputs(params)   # calls position.take_start()
if not start.honoured:
  dataset = dataset.skip(1000)
"""

from collections.abc import Iterator
import contextlib
import contextvars
import dataclasses


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
  """Returns the batch to start at, 0 outside of `starting_at`. The caller promises to start there."""
  position = _POSITION.get()
  if position is None:
    return 0
  position.honoured = True
  return position.num_batches
