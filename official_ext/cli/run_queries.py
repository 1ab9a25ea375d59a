"""official-ext runs query: SQL over the runs of a folder. No TensorFlow."""

import argparse
from collections.abc import Callable, Iterator, Sequence
import csv
import datetime
import sys
from typing import TYPE_CHECKING, Any

from official_ext.cli import run_arguments
from official_ext.cli import run_tables
from official_ext.operations.curves import table_names

if TYPE_CHECKING:
  from official_ext.operations.curves import sql_tables  # PyArrow.


def _query(options: argparse.Namespace) -> None:
  from official_ext.operations.curves import sql_tables  # pylint: disable=g-import-not-at-top

  sql = sys.stdin.read() if options.sql == '-' else options.sql
  _FORMATS[options.format](sql_tables.query(run_arguments.root_of(options), sql))


def _text(result: 'sql_tables.Result') -> None:
  header = [run_tables.harmless(name) for name in result.columns]
  run_arguments.print_lines(run_tables.table([header, *_cells(result, run_tables.harmless)]))


def _markdown(result: 'sql_tables.Result') -> None:
  rows = [[run_tables.markdown_cell(name) for name in result.columns], *_cells(result, run_tables.markdown_cell)]
  run_arguments.print_lines(run_tables.markdown(rows, ['---'] * len(result.columns)))


def _cells(result: 'sql_tables.Result', escape: Callable[[object], str]) -> Iterator[list[str]]:
  for row in result.rows:
    plain = map(_plain, row)
    yield [run_tables.number(value) if isinstance(value, float | None) else escape(value) for value in plain]


def _csv(result: 'sql_tables.Result') -> None:
  writer = csv.writer(sys.stdout, lineterminator='\n')
  writer.writerow(map(run_tables.csv_cell, result.columns))
  for row in result.rows:
    writer.writerow([run_tables.csv_cell(_plain(value)) for value in row])


def _json(result: 'sql_tables.Result') -> None:
  run_arguments.print_json([dict(zip(result.columns, map(_plain, row))) for row in result.rows])


def _plain(value: Any) -> Any:
  """A value of JSON: moments by ISO 8601, lists with commas, other types as their text."""
  if value is None or isinstance(value, str | bool | int | float):
    return value
  if isinstance(value, datetime.datetime):
    return value.isoformat(sep=' ', timespec='seconds')
  if isinstance(value, Sequence) and not isinstance(value, bytes):
    return ','.join(map(str, value))
  return str(value)


_FORMATS = {'text': _text, 'markdown': _markdown, 'csv': _csv, 'json': _json}


def add_commands(commands: Any) -> None:
  """Adds this command to `official-ext runs`."""
  text = f'run SQL (of DuckDB) over the tables {table_names.LISTED}: docs/how_to/query_runs.md'
  found = run_arguments.add_command(commands, 'query', _query, text, runs='')
  found.add_argument('sql', metavar='SQL', help='the statement; - reads it from stdin')
  found.add_argument('--format', choices=tuple(_FORMATS), default='text', help='default: text')
