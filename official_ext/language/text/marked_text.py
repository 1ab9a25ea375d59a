"""Texts with their learned tokens marked: for terminals, for plain files, for a page. No TensorFlow."""

from collections.abc import Sequence
import html

from official_ext.base import harmless_text
from official_ext.language.text import example_texts

OPEN, CLOSE = '⟦', '⟧'  # Around learned tokens in plain text.
_LEARNED, _SPECIAL, _RESET = '\x1b[32m', '\x1b[2m', '\x1b[0m'
_STYLE = (
  'body{font:14px sans-serif;margin:16px}pre{white-space:pre-wrap;background:#f6f6f6;padding:8px;margin:4px 0}'
  'mark{background:#c8f0cc}i{font-style:normal;color:#8a2be2}h2{font-size:15px;margin:20px 0 4px}'
)


def plain(runs: Sequence[example_texts.Run], keep: str = '\n\t') -> str:
  """The text, with learned tokens between OPEN and CLOSE.

  Args:
    runs: of a text.
    keep: control characters that are kept; others are shown as escapes.
  """
  parts = []
  for number, run in enumerate(runs):
    begins = run.is_learned and (not number or not runs[number - 1].is_learned)
    ends = run.is_learned and (number + 1 == len(runs) or not runs[number + 1].is_learned)
    parts.append(f'{OPEN if begins else ""}{harmless_text.harmless(run.text, keep)}{CLOSE if ends else ""}')
  return ''.join(parts)


def for_terminal(runs: Sequence[example_texts.Run]) -> str:
  """The text, with learned tokens in green and special tokens dim, by ANSI's escapes."""
  parts = []
  for run in runs:
    style = (_LEARNED if run.is_learned else '') + (_SPECIAL if run.is_special else '')
    text = harmless_text.harmless(run.text, '\n\t')
    parts.append(f'{style}{text}{_RESET}' if style else text)
  return ''.join(parts)


def one_line(runs: Sequence[example_texts.Run], at_most: int) -> str:
  """The text in one line, with marks, shortened in its middle to about `at_most` characters."""
  text = plain(runs, keep='')
  if len(text) <= at_most:
    return text
  half = at_most // 2
  return f'{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}'


def page(title: str, lines: Sequence[str], examples: Sequence[tuple[str, example_texts.Example]]) -> str:
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


def _as_html(run: example_texts.Run) -> str:
  text = html.escape(harmless_text.harmless(run.text, '\n\t'))
  text = f'<i>{text}</i>' if run.is_special else text
  return f'<mark>{text}</mark>' if run.is_learned else text


def caption_of(example: example_texts.Example, number: int) -> str:
  """The line above a text of an example that has several; '' for a single one. `number` counts from 1."""
  text = example.texts[number - 1]
  if len(example.texts) == 1 and not text.name:
    return ''
  return f'{text.name or f"text {number}"}: {counts(text.num_tokens, text.num_learned)}'


def counts(num_tokens: int, num_learned: int) -> str:
  """The numbers of tokens, in words."""
  return f'{num_tokens} tokens, {num_learned} learned' if num_learned else f'{num_tokens} tokens'
