"""Two processes in turns, A B A B, and the result: ratios of each round, and their spread.

A machine that grows slower slows both turns of a round. So the ratio within a round counts; its median and
range over the rounds are reported, and never the ratio of two medians. Only two processes live at a time: ours, and one
peer after the other beside it.
"""

from collections.abc import Sequence
import dataclasses
import statistics
import time
from typing import Protocol

from benchmarks.peers import process

_SETTLED = 0.8  # A turn that takes this part of the requested time is long enough.


class Runner(Protocol):
  """A participant of the turns: a `process.Process`."""

  ready: dict

  def run(self, amount: int) -> process.Turn:
    """Does an amount."""


@dataclasses.dataclass(frozen=True)
class Spread:
  """The middle and the ends of some numbers."""

  median: float
  low: float
  high: float

  @classmethod
  def of(cls, numbers: Sequence[float]) -> 'Spread':
    """Of numbers, one at least."""
    return cls(statistics.median(numbers), min(numbers), max(numbers))


@dataclasses.dataclass(frozen=True)
class Duel:
  """The turns of two, round by round.

  Attributes:
    ours: turns of this library.
    theirs: turns of a peer; as many.
  """

  ours: Sequence[process.Turn]
  theirs: Sequence[process.Turn]

  @property
  def ratio(self) -> Spread:
    """How many times as fast ours is: rate by rate, round by round."""
    return Spread.of([ours.rate / theirs.rate for ours, theirs in zip(self.ours, self.theirs)])


def rate(turns: Sequence[process.Turn]) -> Spread:
  """Of turns, in amounts a second."""
  return Spread.of([turn.rate for turn in turns])


def fitting_amount(runner: Runner, seconds: float, most: int = 0) -> int:
  """How much a process does in so many seconds: a multiple of its unit. It has compiled before.

  Args:
    runner: the process.
    seconds: that a turn shall take.
    most: no more than this; 0 for no limit.
  """
  multiple = runner.ready['multiple']
  limit = max(multiple, most // multiple * multiple) if most else 0
  amount = multiple
  while amount != limit:
    taken = runner.run(amount).seconds
    if taken >= _SETTLED * seconds:
      break
    # Not in one leap: the first turns after compiling are slower than those that follow.
    wanted = amount * min(10.0, seconds / max(taken, 1e-9))
    amount = max(amount + multiple, round(wanted / multiple) * multiple)
    amount = min(amount, limit) if limit else amount
  return amount


def duel(ours: Runner, theirs: Runner, amounts: tuple[int, int], num_rounds: int, pause: float = 0.3) -> Duel:
  """Lets both have their turns.

  Args:
    ours: this library's process.
    theirs: a peer's.
    amounts: of a turn of each.
    num_rounds: how often.
    pause: seconds before each turn, in which the threads of the other stop to spin.
  """
  turns: tuple[list[process.Turn], list[process.Turn]] = ([], [])
  for _ in range(num_rounds):
    for runner, amount, done in zip((ours, theirs), amounts, turns):
      time.sleep(pause)
      done.append(runner.run(amount))
  return Duel(*turns)
