"""The texts of `text_classifier`, and their labels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import official_ext as ext

from . import configs
from . import topics


class LabelledTexts(ext.Source):
  """Rows of tokens, and the number of each row's class, int32 [].

  A row ends with the last token of its text; padding comes first.
  """

  def __init__(self, texts: Any, column: str, class_names: Sequence[str]):
    """Takes rows, and finds their classes.

    Args:
      texts: the result of `ext.text_source`, of the format `prompt`.
      column: of the label in the records.
      class_names: the labels, in the order of their numbers.
    """
    self._texts = texts
    self._column = column
    self._numbers = {name: number for number, name in enumerate(class_names)}

  def __len__(self) -> int:
    return len(self._texts)

  def fetch(self, indices: Sequence[int]) -> list[Mapping[str, object]]:
    """See base class."""
    rows = self._texts.fetch(indices)
    return [{**row, 'label': self._number(row['record'], index)} for row, index in zip(rows, indices)]

  def describe(self, index: int) -> str:
    """See base class."""
    return self._texts.describe(index)

  def summary(self) -> str:
    """The number of examples, and of the records that were left out, in words."""
    return self._texts.summary()

  def identity(self) -> dict[str, object]:
    """See base class."""
    return {**self._texts.identity(), 'label_column': self._column, 'class_names': list(self._numbers)}

  def _number(self, record, index):
    label = self._texts.record(int(record)).get(self._column)
    if str(label) not in self._numbers:
      raise ext.UserError(
        f'task.class_names: {self.describe(index)} has {label!r} in the column {self._column!r}; there are '
        f'{", ".join(self._numbers)}'
      )
    return np.int32(self._numbers[str(label)])


def source(
  params: configs.TextClassifierDataConfig, tokens: ext.Tokenizer, class_names: Sequence[str]
) -> LabelledTexts:
  """The rows of a data configuration.

  Args:
    params: `task.train_data` or `task.validation_data`.
    tokens: the tokenizer.
    class_names: `task.class_names`.
  """
  split = 'train' if params.is_training else 'validation'
  texts = ext.text_source(params, tokens, None if params.input_path else topics.records(split))
  return LabelledTexts(texts, params.label_column, class_names)
