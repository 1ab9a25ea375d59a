"""Notices evaluations of all examples that run past their end: input that repeats would be evaluated for ever."""

from absl import logging

_MARGIN = 10  # An evaluation may be this many times as long as expected before its batches no longer count as progress.
_MANY = 10_000  # Batches after which an evaluation of unknown length is reported; again at each doubling.


class EvaluationLength:
  """The number of batches of the present evaluation, compared with the number that it should have.

  Attributes:
    is_exceeded: whether the present evaluation has taken more than 10 times the expected number of batches. Its
      further batches do not count as progress.
  """

  def __init__(self):
    self.is_exceeded = False
    self._expected: int | None = None
    self._before: int | None = None
    self._report_at: int | None = None
    self._takes_all = False

  def begin(self, expected: int | None, takes_all: bool) -> None:
    """Starts an evaluation.

    Args:
      expected: how many batches it has at most; None if that is not known.
      takes_all: whether it ends with its input, not after a number of steps.
    """
    self.is_exceeded = False
    self._expected = self._before if expected is None else expected
    self._report_at = None
    self._takes_all = takes_all
    if takes_all:
      self._report_at = _MANY if self._expected is None else self._expected + 1

  def count(self, batches: int) -> None:
    """Warns if an evaluation has taken more batches than it should have, and whenever that number doubles."""
    if self._takes_all and self._expected is not None:
      self.is_exceeded = batches > _MARGIN * max(self._expected, 1)
    if self._report_at is None or batches < self._report_at:
      return
    self._report_at = 2 * batches
    known = 'its number of examples is not known' if self._expected is None else f'expected {self._expected} at most'
    logging.warning(
      'task.validation_data: the evaluation has taken %d batches (%s), and continues; if the input repeats, set '
      'trainer.validation_steps.',
      batches,
      known,
    )

  def end(self, batches: int) -> None:
    """Ends an evaluation that has taken its input to the end: the next one has not much more batches."""
    if self._report_at is not None:
      self._before = 2 * batches  # An input without a known length may have another one each time.
    self.is_exceeded = False
