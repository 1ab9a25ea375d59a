"""SQL over the runs of a folder: tables of runs, configurations and metrics, which DuckDB reads in memory.

A query of `official-ext runs query` reaches these tables only. It can neither read nor write files.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.operations.curves import column_store
from official_ext.operations.curves import curves
from official_ext.operations.runs import run_comparison
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import run_index

TABLES = ('runs', 'params', 'metrics', 'best_metrics')
LISTED = f'{", ".join(TABLES[:-1])} and {TABLES[-1]}'


_ROWS = 10_000  # That are fetched together.
_MOMENT = pa.timestamp('us')
# The columns of `runs`, of the fields of a summary.
_RUN_COLUMNS = {
  'name': pa.string(),
  'status': pa.string(),
  'reason': pa.string(),
  'experiment': pa.string(),
  'mode': pa.string(),
  'step': pa.int64(),
  'train_steps': pa.int64(),
  'percent': pa.float64(),
  'steps_per_second': pa.float64(),
  'attempt': pa.int64(),
  'started': _MOMENT,
  'updated': _MOMENT,
  'seconds': pa.float64(),
  'tags': pa.list_(pa.string()),
  'note': pa.string(),
  'is_archived': pa.bool_(),
  'path': pa.string(),
}


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of a query.

  Attributes:
    columns: the names of its columns.
    rows: its rows of Python values, read while a caller iterates.
  """

  columns: Sequence[str]
  rows: Iterator[tuple[Any, ...]]


def query(root: str, sql: str, known: run_index.RunIndex | None = None) -> Result:
  """Runs SQL over the runs of a folder.

  Tables; a query reads only the ones that it names:
    runs: a row for each run: name, status, reason, experiment, mode, step, train_steps, percent, steps_per_second,
      attempt, started, updated, seconds (from the last start to the last step), tags (a list), note, is_archived, path.
    params: a row for each field of each configuration: run, name (the path, and the short name if there is one), value
      (text), number (null if it is none).
    metrics: a row for each value that stands: run, curve (such as train/training_loss), name (the metric's), step,
      time, value.
    best_metrics: a row for each metric of a run's evaluations, if it is known which values are better: run, name, step,
      value.
  Times are in UTC.

  Args:
    root: the folder with the runs.
    sql: statements of DuckDB; the result is the last one's.
    known: the index of these runs; None: a new one.

  Raises:
    UserError: the SQL is invalid, or DuckDB is not installed.
  """
  package_imports.require('duckdb', 'query', 'runs query')
  import duckdb  # pylint: disable=g-import-not-at-top

  made = dict(zip(TABLES, (_runs, _params, _metrics, _best_metrics), strict=True))
  connection = duckdb.connect(config={'enable_external_access': 'false', 'python_enable_replacements': 'false'})
  known = known or run_index.RunIndex(root)
  for name, table in made.items():
    if re.search(rf'\b{name}\b', sql, re.IGNORECASE):
      connection.register(name, table(known))
  connection.execute('SET lock_configuration=true')
  found = _explained(duckdb, connection.execute, sql)
  if found is None or found.description is None:
    raise errors.UserError('SQL: has no statement with a result; such as: SELECT name, status FROM runs')
  return Result([column[0] for column in found.description], _rows(duckdb, found))


def _rows(duckdb: Any, result: Any) -> Iterator[tuple[Any, ...]]:
  while rows := _explained(duckdb, result.fetchmany, _ROWS):
    yield from rows


def _explained(duckdb: Any, function: Any, argument: Any) -> Any:
  """The result of a function.

  Raises:
    UserError: DuckDB has refused it.
  """
  try:
    return function(argument)
  except duckdb.Error as error:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    hint = f'; the tables are {LISTED}' if lines[0].startswith('Catalog Error: Table') else ''
    raise errors.UserError(f'SQL: {" ".join(lines[:2])}{hint}') from None


def _runs(known: run_index.RunIndex) -> pa.Table:
  rows = known.summaries()
  return pa.table({name: pa.array(_values(rows, name, kind), kind) for name, kind in _RUN_COLUMNS.items()})


def _values(rows: Sequence[run_index.RunSummary], name: str, kind: pa.DataType) -> list[Any]:
  if name == 'seconds':
    return [None if row.started is None or row.updated is None else row.updated - row.started for row in rows]
  values = [getattr(row, name) for row in rows]
  if kind == _MOMENT:
    return [None if value is None else round(1e6 * value) for value in values]
  if kind == pa.int64():  # JSON's whole numbers have any length.
    return list(map(_int64, values))
  return values


def _int64(value: Any) -> int | None:
  return value if isinstance(value, int) and abs(value) < 2**63 else None


def _params(known: run_index.RunIndex) -> pa.Table:
  fields = [(run, name, value) for run, values in known.params().items() for name, value in values.items()]
  numbers = [json_values.as_float(value) if json_values.is_number(value) else None for _, _, value in fields]
  texts = [value if isinstance(value, str) else json.dumps(value) for _, _, value in fields]
  return pa.table(
    {
      'run': pa.array([run for run, _, _ in fields], pa.string()).dictionary_encode(),
      'name': pa.array([name for _, name, _ in fields], pa.string()).dictionary_encode(),
      'value': pa.array(texts, pa.string()),
      'number': pa.array(numbers, pa.float64()),
    }
  )


def _metrics(known: run_index.RunIndex) -> pa.Table:
  store = column_store.ColumnStore()
  found = [(run.name, curve) for run in run_folders.find_runs(known.root) for curve in curves.all_values(store, run)]
  lengths = [len(curve.values) for _, curve in found]
  times = _joined([curve.times for _, curve in found], np.float64)
  is_unknown = ~np.isfinite(times)
  micros = np.where(is_unknown, 0, 1e6 * times).astype(np.int64)
  repeated = lambda texts: _repeated(texts, lengths)
  return pa.table(
    {
      'run': repeated([run for run, _ in found]),
      'curve': repeated([curve.name for _, curve in found]),
      'name': repeated([curve.name.partition('/')[2] for _, curve in found]),
      'step': pa.array(_joined([curve.steps for _, curve in found], np.int64)),
      'time': pa.array(micros, pa.int64(), mask=is_unknown).cast(_MOMENT),
      'value': pa.array(_joined([curve.values for _, curve in found], np.float64)),
    }
  )


def _best_metrics(known: run_index.RunIndex) -> pa.Table:
  found = [
    (run.name, name, _int64(step), json_values.as_float(value))
    for run in run_folders.find_runs(known.root)
    for name, (value, step) in run_comparison.best_metrics(run).items()
  ]
  kinds = {'run': pa.string(), 'name': pa.string(), 'step': pa.int64(), 'value': pa.float64()}
  return pa.table(
    {name: pa.array([row[place] for row in found], kind) for place, (name, kind) in enumerate(kinds.items())}
  )


def _joined(arrays: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
  return np.concatenate([np.empty(0, dtype), *arrays])


def _repeated(texts: Sequence[str], lengths: Sequence[int]) -> pa.Array:
  """Each text as often as its length says, as numbers of a dictionary."""
  names = {text: number for number, text in enumerate(dict.fromkeys(texts))}
  codes = np.repeat(np.array([names[text] for text in texts], np.int32), lengths)
  return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(list(names), pa.string()))
