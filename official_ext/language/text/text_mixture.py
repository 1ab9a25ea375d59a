"""Several sources of rows as one, with a fixed share of the rows from each, independent of their sizes."""

from collections.abc import Sequence
import fractions
import math
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.data import collators
from official_ext.data import data_identity
from official_ext.data import record_report
from official_ext.data import sources

_MAX_REPEATS = 1000


class TextMixture(sources.Source):
  """A mixture of sources.

  An epoch is as short as it can be with every row of every source in it: a source whose share is above its size is
  repeated as a whole, and the rest of its rows are spread evenly over it. Row n of the mixture is a row of one source
  by arithmetic alone, so that the batch at step s stays a function of (seed, s).

  Attributes:
    parts: the sources.
    counts: how many rows of an epoch are from each.
    tokenizer: of the first one.
  """

  reads_in_blocks = True

  def __init__(self, parts: Sequence[Any], weights: Sequence[float], path: str, names: Sequence[str]):
    """Mixes sources.

    Args:
      parts: sources of rows of the same features: see `text_sources`.
      weights: the share of each, above 0; they need not sum up to 1.
      path: the dotted path of the data configuration, for messages.
      names: those of the sources, such as their files, for messages.

    Raises:
      UserError: the rows have different features; an epoch would repeat a source more than 1,000 times.
    """
    self.parts = list(parts)
    self._weights = [float(weight) for weight in weights]
    self.counts = rows_of([len(part) for part in self.parts], self._weights)
    for part, count, name in zip(self.parts, self.counts, names, strict=True):
      if count > _MAX_REPEATS * len(part):
        raise errors.UserError(
          f'{path}.weights: {name} would be repeated {math.ceil(count / len(part)):,} times in an epoch, at most '
          f'{_MAX_REPEATS:,} are possible; lower its weight, or raise those of the others'
        )
    self._ends = np.cumsum(self.counts)
    self._first_records = np.cumsum([0, *(part.report.records for part in self.parts)])
    self.tokenizer = self.parts[0].tokenizer
    features = [sorted(part[0]) for part in self.parts]
    if any(names != features[0] for names in features):
      raise errors.UserError(
        f'{path}.weights: the sources have rows of different kinds: {", ".join(features[0])} and '
        f'{", ".join(next(names for names in features if names != features[0]))}; mix records of one example_format'
      )

  def __len__(self) -> int:
    return int(self._ends[-1])

  @property
  def bytes_per_example(self) -> int:
    """See base class: those of the largest source's."""
    return max(part.bytes_per_example for part in self.parts)

  @property
  def report(self) -> record_report.RecordReport:
    """The sum of the reports of all sources, each once."""
    return record_report.RecordReport.total(part.report for part in self.parts)

  def place(self, index: int) -> tuple[int, int]:
    """(which source, the number of the row in it) of a row of the mixture."""
    part = int(np.searchsorted(self._ends, index, side='right'))
    number, size = index - int(self._ends[part]) + self.counts[part], len(self.parts[part])
    rest = self.counts[part] % size
    whole = self.counts[part] - rest
    return part, number % size if number < whole else (number - whole) * size // rest

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    places = [self.place(int(index)) for index in indices]
    found: list[Any] = [None] * len(places)
    for number, part in enumerate(self.parts):
      here = [position for position, (of, _) in enumerate(places) if of == number]
      rows = part.fetch([places[position][1] for position in here]) if here else []
      for position, row in zip(here, rows):
        if 'record' in row:
          row = {**row, 'record': row['record'] + self._first_records[number]}
        found[position] = row
    return found

  def record(self, number: int) -> json_types.JsonObject:
    """A record, located by a row's `record`."""
    part = int(np.searchsorted(self._first_records, number, side='right')) - 1
    return self.parts[part].record(number - int(self._first_records[part]))

  def describe(self, index: int) -> str:
    part, row = self.place(index)
    return self.parts[part].describe(row)

  def identity(self) -> data_identity.Identity:
    """See base class: an entry that is the same for all sources, such as their division, or a list of all."""
    found: dict[str, list[Any]] = {}
    for part in self.parts:
      for name, value in part.identity().items():
        found.setdefault(name, []).append(value)
    common = {
      name: values[0] if all(value == values[0] for value in values) else values for name, values in found.items()
    }
    return {**common, **super().identity(), 'weights': self._weights}

  def summary(self) -> str:
    lines = [
      f'{count} rows of {len(part)} ({100 * count / len(self):.1f} %): {part.summary()}'
      for part, count in zip(self.parts, self.counts)
    ]
    return f'{len(self)} rows in an epoch, a mixture: {"; ".join(lines)}'


def rows_of(lengths: Sequence[int], weights: Sequence[float]) -> list[int]:
  """How many rows of an epoch are from each source: as few as have every row of every source, in the given shares.

  Args:
    lengths: the rows of each source, above 0.
    weights: see `TextMixture`.

  Returns:
    A number at least as large as the length, for each source; the shares are met up to one row.
  """
  exact = [fractions.Fraction(repr(float(weight))) for weight in weights]  # 0.1 is a tenth.
  shares = [weight / sum(exact) for weight in exact]
  total = max(math.ceil(length / share) for length, share in zip(lengths, shares))
  counts = [math.floor(total * share) for share in shares]
  lost = sorted(range(len(shares)), key=lambda number: counts[number] - total * shares[number])
  for number in lost[: total - sum(counts)]:
    counts[number] += 1
  return counts
