"""Runs of trackio: a SQLite database for each project, or the Parquet files that trackio writes from it. No TensorFlow.

Source: gradio-app/trackio, trackio/sqlite_storage.py. A row of the tables `metrics` and `configs` has the name of its
run, and values as JSON; in Parquet the values are columns. Earlier versions have no column run_id.
"""

from collections.abc import Iterator, Mapping
import contextlib
import functools
import json
import os
import sqlite3
from typing import Any
import urllib.parse

from official_ext.base import json_types
from official_ext.base.files import moments
from official_ext.base.files import regular_files
from official_ext.operations.imports import logged_values
from official_ext.operations.imports import source_runs

_DATABASE, _PARQUET = '.db', '.parquet'
_OTHER_TABLES = ('_system', '_configs', '_traces')
_ROWS = 10_000  # That are read together.
_COLUMNS = frozenset(('timestamp', 'run_name', 'step'))
_OWN_COLUMNS = _COLUMNS | {'id', 'run_id', 'log_id', 'space_id', 'created_at'}

_Row = tuple[Any, Any, json_types.JsonMapping]  # Timestamp, step, values.


def find(source: str, damage: list[str]) -> Iterator[source_runs.SourceRun]:
  """The runs of the projects in a folder. Databases and tables of other programs are left out.

  Args:
    source: the absolute path of the folder, or of a file in it.
    damage: gets a line for each file that cannot be read.
  """
  folder, names = os.path.split(source)[0], [os.path.basename(source)]
  if os.path.isdir(source):
    folder, names = source, sorted(os.listdir(source))
  databases = [name for name in names if name.endswith(_DATABASE)]
  stems = {name.removesuffix(_DATABASE) for name in databases}
  tables = [name for name in names if name.endswith(_PARQUET) and name.removesuffix(_PARQUET) not in stems]
  for name in (*databases, *(name for name in tables if not name.removesuffix(_PARQUET).endswith(_OTHER_TABLES))):
    path = os.path.join(folder, name)
    try:
      regular_files.check(path)
      yield from _of_database(path) if name.endswith(_DATABASE) else _of_parquet(path)
    except (sqlite3.Error, OSError, ValueError) as error:
      damage.append(f'{path}: cannot be read: {_line(error)}')


def _of_database(path: str) -> list[source_runs.SourceRun]:
  with _opened(path) as database:
    columns = _columns(database, 'metrics')
    if not _COLUMNS | {'id', 'metrics'} <= columns:
      return []
    key = 'run_id' if 'run_id' in columns else 'run_name'
    rows = database.execute(
      f'SELECT {key}, max(run_name), count(*), max(id) FROM metrics GROUP BY {key} ORDER BY min(id)'
    ).fetchall()
  return [
    source_runs.SourceRun(
      'trackio', f'{path}#{run}', [count, last], functools.partial(_read_from_database, path, key, run, name)
    )
    for run, name, count, last in rows
  ]


def _read_from_database(path: str, key: str, run: str, name: str) -> source_runs.Content:
  try:
    with _opened(path) as database:
      rows = database.execute(f'SELECT timestamp, step, metrics FROM metrics WHERE {key} = ? ORDER BY id', (run,))
      values = _values((moment, step, _json(text)) for moment, step, text in _fetched(rows))
      config: Any = {}
      if {key, 'config'} <= _columns(database, 'configs'):
        found = database.execute(f'SELECT config FROM configs WHERE {key} = ? ORDER BY id DESC', (run,)).fetchone()
        config = _json(found[0]) if found else {}
  except sqlite3.Error as error:
    raise source_runs.UnreadableRunError(f'{path}: cannot be read: {_line(error)}') from None
  return _content(path, name, values, config)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[sqlite3.Connection]:
  """A database, only read. SQLite makes files beside one in use; one that is not is opened without."""
  mode = 'mode=ro' if os.path.exists(f'{path}-wal') else 'mode=ro&immutable=1'
  with contextlib.closing(sqlite3.connect(f'file:{urllib.parse.quote(path)}?{mode}', uri=True)) as database:
    yield database


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
  return {row[1] for row in database.execute(f'PRAGMA table_info({table})')}


def _fetched(rows: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
  while part := rows.fetchmany(_ROWS):
    yield from part


def _of_parquet(path: str) -> list[source_runs.SourceRun]:
  from pyarrow import parquet  # pylint: disable=g-import-not-at-top

  if not _COLUMNS <= set(parquet.read_schema(path).names):
    return []
  key = 'run_id' if 'run_id' in parquet.read_schema(path).names else 'run_name'
  table = parquet.read_table(path, columns=[key, 'run_name'])
  names = dict(zip(*(table.column(name).to_pylist() for name in (key, 'run_name'))))
  stamp = source_runs.stamp_of([path])
  found = []
  for run, name in names.items():
    read = functools.partial(_read_from_parquet, path, key, run, name)
    found.append(source_runs.SourceRun('trackio', f'{path}#{run}', stamp, read))
  return found


def _read_from_parquet(path: str, key: str, run: str, name: str) -> source_runs.Content:
  try:
    rows = _rows(path, key, run)
    values = _values((row.get('timestamp'), row.get('step'), _without_own(row)) for row in rows)
    configs = f'{path.removesuffix(_PARQUET)}_configs{_PARQUET}'
    config = _without_own(next(_rows(configs, key, run), {})) if os.path.exists(configs) else {}
  except (OSError, ValueError) as error:  # PyArrow's errors are of these types.
    raise source_runs.UnreadableRunError(f'{path}: cannot be read: {_line(error)}') from None
  return _content(path, name, values, config)


def _without_own(row: json_types.JsonMapping) -> json_types.JsonObject:
  """The columns of a row that a run has logged."""
  return {name: value for name, value in row.items() if name not in _OWN_COLUMNS}


def _rows(path: str, key: str, run: str) -> Iterator[json_types.JsonObject]:
  """The rows of a run, without the columns of other rows, which are null."""
  from pyarrow import parquet  # pylint: disable=g-import-not-at-top

  table = parquet.read_table(path, filters=[(key, '==', run)])
  for batch in table.to_batches(_ROWS):
    for row in batch.to_pylist():
      yield {key: value for key, value in row.items() if value is not None}


def _values(rows: Iterator[_Row]) -> logged_values.LoggedValues:
  values = logged_values.LoggedValues()
  for moment, step, found in rows:
    seconds = moments.seconds(moment)
    for name, value in _numbers(found):
      if json_types.is_int(step):
        values.add(name, step, float('nan') if seconds is None else seconds, value)
  return values


def _numbers(values: json_types.JsonMapping, prefix: str = '') -> Iterator[tuple[str, float]]:
  for name, value in values.items():
    if json_types.is_number(value) or value in json_types.NOT_FINITE:
      yield prefix + name, json_types.as_float(value)
    elif isinstance(value, Mapping) and '_type' not in value:  # With it: an image, a table, ...
      yield from _numbers(value, f'{prefix}{name}/')


def _content(path: str, name: str, values: logged_values.LoggedValues, config: Any) -> source_runs.Content:
  project = os.path.splitext(os.path.basename(path))[0]
  config = config if isinstance(config, dict) else {}
  group = config.get('_Group')
  return source_runs.Content(
    f'{project}/{name}',
    values,
    experiment=project,
    config={key: value for key, value in config.items() if not key.startswith('_')},
    tags=(group,) if isinstance(group, str) and group else (),
    started=moments.seconds(config.get('_Created')),
  )


def _json(text: str | bytes) -> json_types.JsonObject:
  """An object of JSON; {} if it is invalid."""
  try:
    found = json.loads(text)
  except (ValueError, TypeError, RecursionError):
    return {}
  return found if isinstance(found, dict) else {}


def _line(error: Exception) -> str:
  return ' '.join(str(error).split())
