"""The result of an evaluation, as evaluators return it. No TensorFlow."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from official_ext.base import json_types


@dataclasses.dataclass(frozen=True)
class Table:
  """A table.

  Attributes:
    title: its heading.
    header: of the columns.
    rows: texts, numbers, or None for no value.
  """

  title: str
  header: Sequence[str]
  rows: Sequence[Sequence[object]]


@dataclasses.dataclass
class Result:
  """An evaluation.

  Attributes:
    figures: JSON values for report.json; the numbers at the top are the summary.
    tables: for people.
    pictures: uint8 `[height, width, 3]` by name, in order; each becomes a PNG and an image of TensorBoard.
  """

  figures: json_types.JsonObject
  tables: list[Table] = dataclasses.field(default_factory=list)
  pictures: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @property
  def summary(self) -> dict[str, float]:
    """The numbers at the top of the figures."""
    return {name: value for name, value in self.figures.items() if isinstance(value, (int, float))}
