"""Records of data by number: from a list, of several files, or a selection of others."""

import abc
import bisect
from collections.abc import Mapping, Sequence
import functools
import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

Record = dict[str, Any]


class Records(abc.ABC):
  """Dictionaries by number. Safe to read from several threads.

  Attributes:
    files: the files that they are from.
    division: how records were divided into training records and held-out ones; empty if they were not: see
      `DividedRecords`.
  """

  files: Sequence[str] = ()
  division: Mapping[str, object] = {}

  @abc.abstractmethod
  def __len__(self) -> int:
    """The number of records."""

  @abc.abstractmethod
  def read(self, index: int) -> Record:
    """A record.

    Raises:
      BadExampleError: it is damaged; says which it is.
    """

  @abc.abstractmethod
  def place(self, index: int) -> str:
    """The place of a record, for messages: `FILE, line 12`. Lines count from 1, as editors do, rows from 0."""

  @property
  @abc.abstractmethod
  def digest(self) -> str:
    """A sum over the content."""


class ListRecords(Records):
  """Records in memory: dictionaries of JSON values. Number i is the i-th of the sequence.

  The digest of their content is computed once: records in use must not be changed.

  Example:

    >>> records = ext.TextRecords([{'text': 'one'}, {'text': 'two'}])
    >>> len(records)
    2
  """

  def __init__(self, records: Sequence[Record], name: str = 'record'):
    """Takes the records unchanged.

    Args:
      records: dictionaries of JSON values.
      name: of a record, in messages.
    """
    self._records = records
    self._name = name

  def __len__(self) -> int:
    return len(self._records)

  def read(self, index: int) -> Record:
    return self._records[index]

  def place(self, index: int) -> str:
    return f'{self._name} {index}'

  @functools.cached_property
  def digest(self) -> str:
    total = hashlib.sha256()
    for record in self._records:
      total.update(json.dumps(record, sort_keys=True).encode() + b'\n')
    return total.hexdigest()[:32]


class ConcatenatedRecords(Records):
  """Records of several files, one after the other, as far as requested."""

  def __init__(self, parts: Sequence[Records], at_most: int = -1):
    """Puts records together.

    Args:
      parts: records.
      at_most: the number of records to take; -1: all.
    """
    self._parts = list(parts)
    self._starts = np.concatenate([[0], np.cumsum([len(part) for part in self._parts])]).astype(np.int64)
    self._length = int(self._starts[-1]) if at_most < 0 else min(at_most, int(self._starts[-1]))
    self.files = [file for part in self._parts for file in part.files]
    if len(self._parts) == 1:
      self.division = self._parts[0].division

  def __len__(self) -> int:
    return self._length

  def read(self, index: int) -> Record:
    part, inside = self._find(index)
    return part.read(inside)

  def place(self, index: int) -> str:
    part, inside = self._find(index)
    return part.place(inside)

  @functools.cached_property
  def digest(self) -> str:
    lengths = ' '.join(str(len(part)) for part in self._parts)
    text = '\n'.join([str(self._length), lengths, *(part.digest for part in self._parts)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]

  def _find(self, index):
    number = bisect.bisect_right(self._starts, index) - 1
    return self._parts[number], index - int(self._starts[number])


class SelectedRecords(Records):
  """Some of the records of others.

  Attributes:
    numbers: the numbers of the records among the others, int64 `[n]`.
  """

  def __init__(self, records: Records, numbers: npt.ArrayLike):
    """Takes the records of these numbers, integers `[n]`, in this order."""
    self._records = records
    self.numbers = np.asarray(numbers, np.int64)
    self.files, self.division = records.files, records.division

  def __len__(self) -> int:
    return len(self.numbers)

  def read(self, index: int) -> Record:
    return self._records.read(int(self.numbers[index]))

  def place(self, index: int) -> str:
    return self._records.place(int(self.numbers[index]))

  @functools.cached_property
  def digest(self) -> str:
    return hashlib.sha256(self._records.digest.encode() + self.numbers.tobytes()).hexdigest()[:32]


class DividedRecords(SelectedRecords):
  """The records for training, or the ones held out for validation."""

  def __init__(self, records: Records, is_held_out: np.ndarray, takes_held_out: bool):
    """Divides records.

    Args:
      records: all of them.
      is_held_out: which are held out, bool `[n]`.
      takes_held_out: whether to take the held-out records; else the others.
    """
    super().__init__(records, np.flatnonzero(is_held_out if takes_held_out else ~is_held_out))
    held_out = np.flatnonzero(is_held_out).astype(np.int64)
    # A sum over all records, and one over the numbers of the held-out ones.
    self.division = {
      'divided': records.digest[:12],
      'held_out': hashlib.sha256(held_out.tobytes()).hexdigest()[:12],
      'num_held_out': len(held_out),
    }

  @functools.cached_property
  def digest(self) -> str:
    return self._records.digest if len(self.numbers) == len(self._records) else super().digest
