"""Shows rows of tokens as texts for people: on terminals, in plain files, on a page.

Special tokens are visible, learned tokens are marked. A batch has `input_ids` and `segment_ids`, and `labels` if tokens
are learned: see text_sources.py. Pairs of answers have these features twice, with names that begin with `chosen_` and
`rejected_`. Single answers have `is_desirable`. No TensorFlow.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import html
import itertools
import os

import numpy as np

from official_ext.base import safe_text
from official_ext.language.text import token_rows
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
    num_learned: tokens that a loss is on.
  """

  name: str
  runs: tuple[Run, ...]
  num_tokens: int
  num_learned: int


@dataclasses.dataclass(frozen=True)
class Example:
  """An example of a batch.

  Attributes:
    texts: one, or all that share a row, or two answers.
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


def examples_of_batch(
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
      learned = np.zeros(batch[name].shape[1:], bool) if labels is None else labels[row] != token_rows.NO_LABEL
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

  How a token is written depends on earlier ones: the first word of a text may have no blank in front. A character
  whose bytes are in two pieces is in the second.
  """
  whole = tokenizer.decode(ids)
  places = [0]
  for end in ends[:-1]:
    before = tokenizer.decode(ids[:end])
    places.append(max(places[-1], len(os.path.commonprefix([before, whole]))))
  return [whole[start:end] for start, end in zip(places, [*places[1:], len(whole)])]


OPEN, CLOSE = '⟦', '⟧'  # Around learned tokens in plain text.
_LEARNED, _SPECIAL, _RESET = '\x1b[32m', '\x1b[2m', '\x1b[0m'
_STYLE = (
  'body{font:14px sans-serif;margin:16px}pre{white-space:pre-wrap;background:#f6f6f6;padding:8px;margin:4px 0}'
  'mark{background:#c8f0cc}i{font-style:normal;color:#8a2be2}h2{font-size:15px;margin:20px 0 4px}'
)


def marked_plain(runs: Sequence[Run], keep: str = '\n\t') -> str:
  """The text, with learned tokens between OPEN and CLOSE.

  Args:
    runs: of a text.
    keep: control characters that are kept; others are shown as escapes.
  """
  parts = []
  for number, run in enumerate(runs):
    begins = run.is_learned and (not number or not runs[number - 1].is_learned)
    ends = run.is_learned and (number + 1 == len(runs) or not runs[number + 1].is_learned)
    parts.append(f'{OPEN if begins else ""}{safe_text.printable(run.text, keep)}{CLOSE if ends else ""}')
  return ''.join(parts)


def marked_for_terminal(runs: Sequence[Run]) -> str:
  """The text, with learned tokens in green and special tokens dim, by ANSI's escapes."""
  parts = []
  for run in runs:
    style = (_LEARNED if run.is_learned else '') + (_SPECIAL if run.is_special else '')
    text = safe_text.printable(run.text, '\n\t')
    parts.append(f'{style}{text}{_RESET}' if style else text)
  return ''.join(parts)


def marked_line(runs: Sequence[Run], at_most: int) -> str:
  """The text in one line, with marks, shortened in its middle to about `at_most` characters."""
  text = marked_plain(runs, keep='')
  if len(text) <= at_most:
    return text
  half = at_most // 2
  return f'{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}'


def marked_page(title: str, lines: Sequence[str], examples: Sequence[tuple[str, Example]]) -> str:
  """An HTML page of examples, each with its heading, below some lines."""
  parts = [
    f'<!DOCTYPE html><html><head><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>',
    f'</head><body><h1>{html.escape(title)}</h1>',
    *(f'<p>{html.escape(line)}</p>' for line in lines),
    '<p><mark>Learned tokens</mark> and <i>special tokens</i></p>',
  ]
  for heading, example in examples:
    parts.append(f'<h2>{html.escape(heading)}</h2>')
    for number, text in enumerate(example.texts, 1):
      caption = caption_of(example, number)
      parts.append(f'<p>{html.escape(caption)}</p>' if caption else '')
      parts.append(f'<pre>{"".join(map(_as_html, text.runs))}</pre>')
  return '\n'.join([*filter(None, parts), '</body></html>\n'])


def _as_html(run: Run) -> str:
  text = html.escape(safe_text.printable(run.text, '\n\t'))
  text = f'<i>{text}</i>' if run.is_special else text
  return f'<mark>{text}</mark>' if run.is_learned else text


def caption_of(example: Example, number: int) -> str:
  """The line above a text of an example that has several; '' for a single one. `number` counts from 1."""
  text = example.texts[number - 1]
  if len(example.texts) == 1 and not text.name:
    return ''
  return f'{text.name or f"text {number}"}: {token_counts(text.num_tokens, text.num_learned)}'


def token_counts(num_tokens: int, num_learned: int) -> str:
  """The numbers of tokens, in words."""
  return f'{num_tokens} tokens, {num_learned} learned' if num_learned else f'{num_tokens} tokens'
