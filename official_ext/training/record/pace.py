"""Estimates the rest of a training's time from what its parts have taken: loops of steps, evaluations, saves."""

import collections
import statistics
import time

_LOOPS = 20  # The latest loops that count: a single one is noisy, and the first ones may be slower.
_OTHERS = 5  # The latest evaluations and saves that count.


class Pace:
  """The time that loops, evaluations and saves of this process have taken.

  The first evaluation compiles its program; its first batch therefore counts as the mean of its others. The estimate
  lacks evaluations and saves before the first of each.
  """

  def __init__(self) -> None:
    self._loops: collections.deque[tuple[int, float]] = collections.deque(maxlen=_LOOPS)
    self._others: dict[str, collections.deque[float]] = {
      kind: collections.deque(maxlen=_OTHERS) for kind in ('between', 'evaluation', 'save')
    }
    self._batches: list[float] = []  # When the first and the last batch of an evaluation ended.
    self._num_batches = 0

  def add_loop(self, steps: int, seconds: float) -> None:
    """Notes a loop: the steps that were timed, and their seconds."""
    if steps > 0:
      self._loops.append((steps, seconds))

  def add(self, kind: str, seconds: float) -> None:
    """Notes the seconds of an evaluation, of a save, or `between` the steps of two loops: logs and actions."""
    self._others[kind].append(max(0.0, seconds))

  def begin_evaluation(self) -> None:
    """Forgets the batches of the evaluation before."""
    self._batches, self._num_batches = [], 0

  def end_batch(self) -> None:
    """Notes that a batch of an evaluation has ended."""
    now = time.perf_counter()
    self._batches = [*self._batches[:1], now]
    self._num_batches += 1

  def add_evaluation(self, start: float, end: float) -> None:
    """Notes an evaluation, by `time.perf_counter` at its start and its end."""
    seconds = end - start
    if self._num_batches > 1:
      first, last = self._batches
      mean = (last - first) / (self._num_batches - 1)
      seconds -= max(0.0, first - start - mean)
    self.add('evaluation', seconds)

  def seconds_left(self, steps: int, evaluations: int, saves: int) -> float | None:
    """The time that is left; None before the first timed steps.

    Args:
      steps: the steps that are left.
      evaluations: the evaluations.
      saves: the saves.
    """
    done, seconds = (sum(values) for values in zip(*self._loops)) if self._loops else (0, 0.0)
    if not done or seconds <= 0:
      return None
    loops = steps * len(self._loops) / done
    others = {'between': loops, 'evaluation': evaluations, 'save': saves}
    return steps * seconds / done + sum(
      count * statistics.median_low(self._others[kind]) for kind, count in others.items() if self._others[kind]
    )
