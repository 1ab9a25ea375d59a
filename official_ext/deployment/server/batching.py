"""Joins requests that arrive together into one computation."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
import concurrent.futures
import dataclasses

import numpy as np

from official_ext.base import errors

Arrays = Mapping[str, np.ndarray]

_CHECKED = 4  # Examples that are computed together and alone.


class OverloadedError(RuntimeError):
  """Too many requests wait."""


@dataclasses.dataclass(eq=False)  # Arrays have no truth value.
class _Waiting:
  """A request that waits.

  Attributes:
    inputs: arrays by name.
    answer: gets its outputs.
  """

  inputs: Arrays
  answer: 'asyncio.Future[dict[str, np.ndarray]]'

  @property
  def size(self) -> int:
    """The number of examples."""
    return _size(self.inputs)

  @property
  def shapes(self) -> tuple[tuple[int, ...], ...] | None:
    """The shapes of an example; only equal ones fit into one batch. None: its inputs have no common batch."""
    return tuple(array.shape[1:] for array in self.inputs.values()) if _has_batch(self.inputs) else None


class Batcher:
  """Computes requests in batches, one batch at a time.

  A batch begins with the oldest request. It ends when it has `max_batch_size` examples, or `max_latency` seconds after
  its first request has arrived. While a batch is computed, the next one fills.

  Before requests share a computation, a few of their examples are computed together and each alone. If the rows differ,
  as they do if a model normalizes by the statistics of its batch, each request is computed by itself from then on.
  """

  def __init__(
    self,
    compute: Callable[[Arrays], Arrays],
    rows: Collection[str] | None,
    max_batch_size: int,
    max_latency: float,
    max_waiting: int,
    observe: Callable[[int], None] = lambda size: None,
    report: Callable[[str], None] = lambda reason: None,
    is_checked: bool = False,
    rounding: float = 1e-3,
  ):
    """Makes a batcher; `run` does its work.

    Args:
      compute: from arrays by name to arrays by name; called in a thread.
      rows: the names of the outputs with a row for each example; other outputs do not depend on the inputs. None:
        each request is computed by itself, as a whole.
      max_batch_size: of a computation. A request with more examples is computed in parts, if `rows` is given.
      max_latency: seconds for which a request waits for others.
      max_waiting: requests that may wait; further ones are refused.
      observe: is called with the number of examples of each computation.
      report: is called with the reason if requests stop sharing computations.
      is_checked: whether rows are known to be independent of each other.
      rounding: the difference of rows that counts as rounding, relative to the largest value of an output.
    """
    self._compute, self._observe, self._report = compute, observe, report
    self._rounding = rounding
    self._rows, self._is_checked = rows, is_checked or max_batch_size == 1
    self._max_batch_size, self._max_latency, self._max_waiting = max_batch_size, max_latency, max_waiting
    self._waiting: list[_Waiting] = []
    self._arrived = asyncio.Event()
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'model')

  async def predict(self, inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs of a request.

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
        answers = await loop.run_in_executor(self._thread, self._answers, [one.inputs for one in batch])
      except Exception as error:  # pylint: disable=broad-except  # The model may raise anything.
        await self._answer_alone(batch, error)
        continue
      for one, answer in zip(batch, answers):
        _set_result(one, answer)

  async def _fill(self) -> None:
    """Waits until the first batch is full, or its time is over."""
    end = asyncio.get_running_loop().time() + self._max_latency
    while self._rows is not None and sum(one.size for one in self._waiting) < self._max_batch_size:
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
      if batch and not (
        self._rows is not None
        and one.shapes is not None
        and one.shapes == batch[0].shapes
        and size + one.size <= self._max_batch_size
      ):
        continue
      batch.append(one)
      size += one.size
      self._waiting.remove(one)
    if self._waiting:
      self._arrived.set()
    else:
      self._arrived.clear()
    return batch

  def _answers(self, parts: list[Arrays]) -> list[dict[str, np.ndarray]]:
    """The outputs of some requests; several ones have examples of one shape."""
    is_split = len(parts) > 1 or _size(parts[0]) > self._max_batch_size
    if is_split and self._rows is not None and _has_batch(parts[0]):
      joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
      if self._is_checked or self._check(joined, self._rows):
        return self._split(self._in_pieces(joined, self._rows), self._rows, [_size(part) for part in parts])
    return [self._observed(part) for part in parts]

  def _in_pieces(self, joined: Arrays, rows: Collection[str]) -> dict[str, np.ndarray]:
    """The outputs for many examples, computed in parts of the largest size.

    Raises:
      RuntimeError: an output has another number of rows, against its declaration.
    """
    outputs = []
    for start in range(0, _size(joined), self._max_batch_size):
      piece = {name: array[start : start + self._max_batch_size] for name, array in joined.items()}
      found = self._observed(piece)
      for name in rows:
        if not found[name].ndim or len(found[name]) != _size(piece):
          raise RuntimeError(f'{name} has the shape {found[name].shape} for {_size(piece)} examples')
      outputs.append(found)
    return {
      name: np.concatenate([part[name] for part in outputs]) if name in rows else array
      for name, array in outputs[0].items()
    }

  @staticmethod
  def _split(outputs: Arrays, rows: Collection[str], sizes: list[int]) -> list[dict[str, np.ndarray]]:
    answers, start = [], 0
    for size in sizes:
      answers.append({name: array[start : start + size] if name in rows else array for name, array in outputs.items()})
      start += size
    return answers

  def _observed(self, inputs: Arrays) -> dict[str, np.ndarray]:
    self._observe(_size(inputs))
    return {name: np.asarray(array) for name, array in self._compute(inputs).items()}

  def _check(self, inputs: Arrays, rows: Collection[str]) -> bool:
    """Whether examples that are computed together get the rows that each gets alone.

    If they do not, requests are computed one by one from now on. Equal examples prove nothing, and are checked again.
    """
    examples = _different(inputs)
    alone = [self._compute(one) for one in examples]
    repeated = examples if len(examples) > 1 else examples * 2
    try:
      together = self._compute({name: np.concatenate([one[name] for one in repeated]) for name in inputs})
      reason = _difference(together, alone, rows, self._rounding)
    except Exception as error:  # pylint: disable=broad-except  # The model may raise anything.
      reason = f'the model fails on examples together that it computes alone: {" ".join(str(error).split())[:200]}'
    if reason:
      self._rows = None
      self._report(reason)
    self._is_checked = not reason and len(examples) > 1
    return not reason

  async def _answer_alone(self, batch: list[_Waiting], error: Exception) -> None:
    """Computes the requests of a failed batch one by one: a bad one must not spoil the others."""
    loop = asyncio.get_running_loop()
    for one in batch:
      try:
        if len(batch) == 1:
          raise error
        (outputs,) = await loop.run_in_executor(self._thread, self._answers, [one.inputs])
        _set_result(one, outputs)
      except Exception as own:  # pylint: disable=broad-except  # The model may raise anything.
        if not one.answer.done():
          one.answer.set_exception(
            errors.UserError(f'inputs: the model fails on these inputs: {errors.message_of_model(own)}')
          )


def _size(inputs: Arrays) -> int:
  """The number of examples: the length of the first input that has one."""
  return next((len(array) for array in inputs.values() if array.ndim), 1)


def _has_batch(inputs: Arrays) -> bool:
  """Whether all inputs have as many examples."""
  return all(array.ndim and len(array) == _size(inputs) for array in inputs.values())


def _different(inputs: Arrays) -> list[dict[str, np.ndarray]]:
  """The first examples that differ from each other, at most `_CHECKED`: arrays `[1, ...]` by name."""
  found: dict[object, dict[str, np.ndarray]] = {}
  for row in range(_size(inputs)):
    example = {name: array[row : row + 1] for name, array in inputs.items()}
    key = tuple(tuple(array.ravel()) if array.dtype == object else array.tobytes() for array in example.values())
    found.setdefault(key, example)
    if len(found) == _CHECKED:
      break
  return list(found.values())


def _difference(together: Arrays, alone: Sequence[Arrays], rows: Collection[str], rounding: float) -> str:
  """The output of examples that are computed together that differs from theirs alone, in words; '' if none does."""
  for name, output in together.items():
    for number, one in enumerate(alone):
      found = np.asarray(output)[number : number + 1] if name in rows else np.asarray(output)
      if not _is_close(found, np.asarray(one[name]), rounding):
        return f'{name} depends on the other examples of a computation'
  return ''


def _is_close(found: np.ndarray, expected: np.ndarray, rounding: float) -> bool:
  """Whether numbers agree up to rounding, relative to the largest, and other values in full."""
  if found.shape != expected.shape or expected.dtype.kind not in 'fc':
    return np.array_equal(found, expected)
  scale = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
  return bool(np.allclose(found, expected, rtol=0.0, atol=rounding * scale, equal_nan=True))


def _set_result(waiting: _Waiting, outputs: dict[str, np.ndarray]) -> None:
  if not waiting.answer.done():
    waiting.answer.set_result(outputs)


def one_by_one(compute: Callable[[Arrays], Arrays], rows: Collection[str] | None) -> Callable[[Arrays], Arrays]:
  """Lets a model that takes single examples compute several.

  Args:
    compute: from arrays `[1, ...]` by name to arrays by name.
    rows: the names of the outputs `[1, ...]` with the row of an example. Other outputs are the same for all examples.
      None: unknown; then only single examples are computed.

  Returns:
    From arrays `[n, ...]` to arrays.
  """

  def computed(inputs: Arrays) -> Arrays:
    count = _size(inputs)
    if count == 1:
      return compute(inputs)
    if rows is None:
      raise ValueError('the model takes one example')
    parts = [compute({name: array[row : row + 1] for name, array in inputs.items()}) for row in range(count)]
    return {
      name: np.concatenate([part[name] for part in parts]) if name in rows else array
      for name, array in parts[0].items()
    }

  return computed
