"""From rows of tokens to texts that a person reads: special tokens are visible, learned tokens marked. No TensorFlow.

A batch has `input_ids` and `segment_ids`, and `labels` if tokens are learned: see text_sources.py. Pairs of answers
have these features twice, with names that begin with `chosen_` and `rejected_`. Single answers have `is_desirable`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import os

import numpy as np

from official_ext.language.text import text_rows
from official_ext.language.text import tokenizer as tokenizer_lib

_IDS = 'input_ids'


@dataclasses.dataclass(frozen=True)
class Run:
  """Adjacent tokens of one kind.

  Attributes:
    text: of these tokens.
    is_learned: whether a loss is on them.
    is_special: whether they are special tokens, such as that which ends a turn.
  """

  text: str
  is_learned: bool
  is_special: bool


@dataclasses.dataclass(frozen=True)
class ExampleText:
  """A text in a row.

  Attributes:
    name: 'chosen' or 'rejected' of a pair of answers, 'desirable' or 'undesirable' of single ones; otherwise ''.
    runs: its tokens as text.
    num_tokens: without padding.
    num_learned: those that a loss is on.
  """

  name: str
  runs: tuple[Run, ...]
  num_tokens: int
  num_learned: int


@dataclasses.dataclass(frozen=True)
class Example:
  """An example of a batch.

  Attributes:
    texts: one, or those that share a row, or two answers.
    num_places: tokens that its rows have room for.
  """

  texts: tuple[ExampleText, ...]
  num_places: int

  @property
  def num_tokens(self) -> int:
    """Of all texts, without padding."""
    return sum(text.num_tokens for text in self.texts)

  @property
  def num_learned(self) -> int:
    """Tokens that a loss is on."""
    return sum(text.num_learned for text in self.texts)


def has_texts(batch: object) -> bool:
  """Whether a batch has rows of tokens."""
  return isinstance(batch, Mapping) and any(_IDS in name and _segments(name) in batch for name in _names(batch))


def of_batch(
  batch: Mapping[str, np.ndarray], tokenizer: tokenizer_lib.Tokenizer, marks_learned: bool = True
) -> list[Example]:
  """The examples of a batch.

  Args:
    batch: the features, int32 `[b, t]` each; others are ignored.
    tokenizer: made the tokens.
    marks_learned: whether the loss is on the tokens with labels; otherwise none counts as learned.
  """
  names = _names(batch)
  special = tokenizer.special_token_ids
  found = []
  for row in range(len(batch[names[0]])):
    texts: list[ExampleText] = []
    for name in names:
      prefix = name.removesuffix(_IDS)
      kind = prefix.strip('_')
      if 'is_desirable' in batch:
        kind = 'desirable' if batch['is_desirable'][row] else 'undesirable'
      labels = batch.get(f'{prefix}labels') if marks_learned else None
      learned = np.zeros(batch[name].shape[1:], bool) if labels is None else labels[row] != text_rows.NO_LABEL
      segments = batch[_segments(name)][row]
      for segment in range(1, int(segments.max(initial=0)) + 1):
        here = segments == segment
        if here.any():
          texts.append(_text(kind, batch[name][row][here].tolist(), learned[here], tokenizer, special))
    found.append(Example(tuple(texts), len(names) * batch[names[0]].shape[1]))
  return found


def _names(batch: Mapping[str, object]) -> list[str]:
  """The features that are tokens."""
  return sorted(name for name in batch if name == _IDS or name.endswith(f'_{_IDS}'))


def _segments(name: str) -> str:
  return f'{name.removesuffix(_IDS)}segment_ids'


def _text(
  name: str, ids: list[int], learned: np.ndarray, tokenizer: tokenizer_lib.Tokenizer, special: frozenset[int]
) -> ExampleText:
  kinds = [(bool(is_learned), token in special) for token, is_learned in zip(ids, learned)]
  groups = [(kind, len(list(group))) for kind, group in itertools.groupby(kinds)]
  ends = list(itertools.accumulate(count for _, count in groups))
  runs = [Run(text, *kind) for text, (kind, _) in zip(_pieces(ids, ends, tokenizer), groups)]
  return ExampleText(name, tuple(runs), len(ids), int(learned.sum()))


def _pieces(ids: list[int], ends: Sequence[int], tokenizer: tokenizer_lib.Tokenizer) -> list[str]:
  """The text of the tokens up to each end, from the end before it.

  How a token is written depends on those before it: the first word of a text may have no blank in front. A character
  whose bytes are in two pieces is in the second.
  """
  whole = tokenizer.decode(ids)
  places = [0]
  for end in ends[:-1]:
    before = tokenizer.decode(ids[:end])
    places.append(max(places[-1], len(os.path.commonprefix([before, whole]))))
  return [whole[start:end] for start, end in zip(places, [*places[1:], len(whole)])]
