"""Defines the result of an evaluation, and writes its files.

The files are report.json, report.html, pictures as PNG, and an event file of TensorBoard.
"""

import base64
from collections.abc import Sequence
import dataclasses
import html
import io
import json
import os

import numpy as np
import tensorflow as tf

from official_ext.base import json_values
from official_ext.base.files import whole_folders


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

  figures: json_values.JsonObject
  tables: list[Table] = dataclasses.field(default_factory=list)
  pictures: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

  @property
  def summary(self) -> dict[str, float]:
    """The numbers at the top of the figures."""
    return {name: value for name, value in self.figures.items() if isinstance(value, (int, float))}


FOLDER = 'evaluations'  # In the folder of the run.
REPORT, PAGE = 'report.json', 'report.html'
_STYLE = (
  'body{font:14px sans-serif;margin:16px}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:3px 8px;'
  'text-align:left}img{max-width:100%}'
)


def write_report(folder: str, title: str, facts: json_values.JsonObject, result: Result, step: int) -> None:
  """Writes the folder of an evaluation, in place of an earlier one.

  Args:
    folder: its path.
    title: of the page.
    facts: of run, checkpoint and data, JSON values.
    result: the evaluation.
    step: of the weights.

  Raises:
    StorageError: it cannot be written.
  """

  def make(partial: str) -> None:
    report = {**facts, **result.figures}
    _write(os.path.join(partial, REPORT), (json.dumps(report, indent=2, ensure_ascii=False) + '\n').encode())
    pictures = {name: write_png(image) for name, image in result.pictures.items()}
    for name, content in pictures.items():
      _write(os.path.join(partial, f'{name}.png'), content)
    _write(os.path.join(partial, PAGE), _page(title, facts, result, pictures).encode())
    _write_summaries(partial, result, step)

  whole_folders.write(folder, make)


def write_png(image: np.ndarray) -> bytes:
  """An image as PNG: uint8 `[height, width, 3]`."""
  from PIL import Image  # pylint: disable=g-import-not-at-top

  stream = io.BytesIO()
  Image.fromarray(image).save(stream, 'PNG')
  return stream.getvalue()


def table_lines(table: Table) -> list[str]:
  """A table as lines of text in columns."""
  cells = [list(table.header), *([_text(value) for value in row] for row in table.rows)]
  widths = [max(len(row[column]) for row in cells) for column in range(len(table.header))]
  return ['  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]


def _write(path: str, content: bytes) -> None:
  with open(path, 'wb') as f:
    f.write(content)


def _text(value: object) -> str:
  return '-' if value is None else f'{value:.4g}' if isinstance(value, float) else str(value)


def _page(title: str, facts: json_values.JsonMapping, result: Result, pictures: dict[str, bytes]) -> str:
  parts = [
    f'<!DOCTYPE html><html><head><meta charset="utf-8"><title>{html.escape(title)}</title>',
    f'<style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>',
    _html_table(('', ''), [[name, value] for name, value in {**facts, **result.summary}.items()]),
  ]
  for table in result.tables:
    parts += [f'<h2>{html.escape(table.title)}</h2>', _html_table(table.header, table.rows)]
  for name, content in pictures.items():
    encoded = base64.b64encode(content).decode()
    heading = html.escape(name.replace('_', ' ').capitalize())
    parts.append(f'<h2>{heading}</h2><img alt="{heading}" src="data:image/png;base64,{encoded}">')
  return '\n'.join([*parts, '</body></html>', ''])


def _html_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
  head = ''.join(f'<th>{html.escape(name)}</th>' for name in header)
  body = ''.join(f'<tr>{"".join(f"<td>{html.escape(_text(value))}</td>" for value in row)}</tr>' for row in rows)
  return f'<table><tr>{head}</tr>{body}</table>'


def _write_summaries(folder: str, result: Result, step: int) -> None:
  """Writes summaries of TensorBoard: numbers, tables as text, pictures as images."""
  writer = tf.summary.create_file_writer(folder)
  with writer.as_default():
    for name, value in result.summary.items():
      tf.summary.scalar(name, value, step=step)
    for table in result.tables:
      lines = ['|'.join(table.header), '|'.join('---' for _ in table.header)]
      lines += ['|'.join(_text(value).replace('|', '\\|') for value in row) for row in table.rows]
      tf.summary.text(table.title.lower().replace(' ', '_'), '\n'.join(lines), step=step)
    for name, image in result.pictures.items():
      tf.summary.image(name, image[np.newaxis], step=step)
  writer.close()
