"""Joins requests that arrive together into one computation."""

import asyncio
from collections.abc import Callable, Mapping
import concurrent.futures
import dataclasses

import numpy as np

from official_ext.base import errors

Arrays = Mapping[str, np.ndarray]


class OverloadedError(RuntimeError):
  """Too many requests wait."""


@dataclasses.dataclass(eq=False)  # Arrays have no truth value.
class _Waiting:
  """A request that waits.

  Attributes:
    inputs: arrays `[n, ...]` by name.
    answer: gets its outputs.
  """

  inputs: Arrays
  answer: 'asyncio.Future[dict[str, np.ndarray]]'

  @property
  def size(self) -> int:
    """The number of examples."""
    return len(next(iter(self.inputs.values())))

  @property
  def shapes(self) -> tuple[tuple[int, ...], ...]:
    """The shapes of an example; only equal ones fit into one batch."""
    return tuple(array.shape[1:] for array in self.inputs.values())


class Batcher:
  """Computes requests in batches, one batch at a time.

  A batch begins with the oldest request. It ends when it has `max_batch_size` examples, or `max_latency` seconds after
  its first request has arrived. While a batch is computed, the next one fills.
  """

  def __init__(
    self,
    compute: Callable[[Arrays], Arrays],
    max_batch_size: int,
    max_latency: float,
    max_waiting: int,
    observe: Callable[[int], None] = lambda size: None,
  ):
    """Makes a batcher; `run` does its work.

    Args:
      compute: from arrays `[n, ...]` to arrays `[n, ...]`; called in a thread.
      max_batch_size: of a computation. A request with more examples is computed in parts.
      max_latency: seconds for which a request waits for others.
      max_waiting: requests that may wait; further ones are refused.
      observe: is called with the number of examples of each computation.
    """
    self._compute, self._observe = compute, observe
    self._max_batch_size, self._max_latency, self._max_waiting = max_batch_size, max_latency, max_waiting
    self._waiting: list[_Waiting] = []
    self._arrived = asyncio.Event()
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'model')

  async def predict(self, inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs for some examples.

    Raises:
      OverloadedError: too many requests wait.
      UserError: the model fails on these inputs.
    """
    if len(self._waiting) >= self._max_waiting:
      raise OverloadedError(f'{len(self._waiting)} requests wait already; retry later')
    waiting = _Waiting(inputs, asyncio.get_running_loop().create_future())
    self._waiting.append(waiting)
    self._arrived.set()
    return await waiting.answer

  async def run(self) -> None:
    """Computes batches until it is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
      await self._arrived.wait()
      await self._fill()
      batch = self._take()
      if not batch:
        continue
      try:
        outputs = await loop.run_in_executor(self._thread, self._compute_batch, [one.inputs for one in batch])
      except Exception as error:  # pylint: disable=broad-except  # The model may raise anything.
        await self._answer_alone(batch, error)
        continue
      start = 0
      for one in batch:
        _set_result(one, {name: array[start : start + one.size] for name, array in outputs.items()})
        start += one.size

  async def _fill(self) -> None:
    """Waits until the first batch is full, or its time is over."""
    end = asyncio.get_running_loop().time() + self._max_latency
    while sum(one.size for one in self._waiting) < self._max_batch_size:
      self._arrived.clear()
      try:
        await asyncio.wait_for(self._arrived.wait(), end - asyncio.get_running_loop().time())
      except TimeoutError:
        return

  def _take(self) -> list[_Waiting]:
    """The oldest requests of one shape that fit into a batch; a large one is alone."""
    self._waiting = [one for one in self._waiting if not one.answer.cancelled()]
    batch: list[_Waiting] = []
    size = 0
    for one in list(self._waiting):
      if batch and (one.shapes != batch[0].shapes or size + one.size > self._max_batch_size):
        continue
      batch.append(one)
      size += one.size
      self._waiting.remove(one)
    if self._waiting:
      self._arrived.set()
    else:
      self._arrived.clear()
    return batch

  def _compute_batch(self, parts: list[Arrays]) -> dict[str, np.ndarray]:
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    count = len(next(iter(joined.values())))
    outputs = []
    for start in range(0, count, self._max_batch_size):
      piece = {name: array[start : start + self._max_batch_size] for name, array in joined.items()}
      size = len(next(iter(piece.values())))
      found = self._compute(piece)
      outputs.append({name: _for_each(array, size) for name, array in found.items()})
      self._observe(size)
    return {name: np.concatenate([part[name] for part in outputs]) for name in outputs[0]}

  async def _answer_alone(self, batch: list[_Waiting], error: Exception) -> None:
    """Computes the requests of a failed batch one by one: a bad one must not spoil the others."""
    loop = asyncio.get_running_loop()
    for one in batch:
      try:
        if len(batch) == 1:
          raise error
        outputs = await loop.run_in_executor(self._thread, self._compute_batch, [one.inputs])
        _set_result(one, outputs)
      except Exception as own:  # pylint: disable=broad-except  # The model may raise anything.
        reason = ' '.join(str(getattr(own, 'message', own)).split())[:300]
        if not one.answer.done():
          one.answer.set_exception(errors.UserError(f'inputs: the model fails on these inputs: {reason}'))


def _set_result(waiting: _Waiting, outputs: dict[str, np.ndarray]) -> None:
  if not waiting.answer.done():
    waiting.answer.set_result(outputs)


def _for_each(array: np.ndarray, size: int) -> np.ndarray:
  """An output with a value for each example: one that has none is repeated."""
  return array if array.ndim and len(array) == size else np.repeat(np.asarray(array)[np.newaxis], size, 0)


def one_by_one(compute: Callable[[Arrays], Arrays]) -> Callable[[Arrays], Arrays]:
  """Lets a model that takes single examples compute a batch."""

  def computed(inputs: Arrays) -> dict[str, np.ndarray]:
    count = len(next(iter(inputs.values())))
    parts = [compute({name: array[row : row + 1] for name, array in inputs.items()}) for row in range(count)]
    return {name: np.concatenate([_for_each(part[name], 1) for part in parts]) for name in parts[0]}

  return computed
