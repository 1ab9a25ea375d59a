"""A table of completions in Markdown, for TensorBoard's text."""

from collections.abc import Iterable, Mapping, Sequence
import html

EVENT = 'completions'
_MAX_TEXT = 500


def markdown(values: Mapping[str, object]) -> str:
  """A table with a row for each completion.

  Args:
    values: of the event: lists of one length by column.
  """
  columns = {
    name: value for name, value in values.items() if isinstance(value, Sequence) and not isinstance(value, str)
  }
  lines = [_row(columns), _row(['---'] * len(columns))]
  return '\n'.join([*lines, *(_row(map(_cell, row)) for row in zip(*columns.values()))])


def _row(cells: Iterable[str]) -> str:
  return f'| {" | ".join(cells)} |'


def _cell(value: object) -> str:
  """A value in one line, without Markdown's or HTML's characters."""
  text = f'{value:.4g}' if isinstance(value, float) else str(value)
  text = html.escape(text if len(text) <= _MAX_TEXT else f'{text[:_MAX_TEXT]}...')
  for letter in '\\`*_{}[]#|':
    text = text.replace(letter, f'\\{letter}')
  return text.replace('\n', '<br>')
