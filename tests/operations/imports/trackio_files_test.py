"""Runs from a database that trackio has written, and from Parquet files of the same form."""

import contextlib
import json
import math
import sqlite3

import pyarrow as pa
from pyarrow import parquet
import pytest

from official_ext.operations.imports import trackio_files
from tests.operations.imports import sources


def read(source):
  """The contents by name, and the lines about damage."""
  damage: list[str] = []
  found = [run.read() for run in trackio_files.find(str(source), damage)]
  return {each.name: each for each in found}, damage


def events(content):
  return [{key: value for key, value in each.items() if key != 'time'} for each in content.values.events(0.0)]


def as_parquet(path, folder):
  """What trackio's `export_to_parquet` makes of a database: the JSON as columns."""
  folder.mkdir()
  with contextlib.closing(sqlite3.connect(path)) as database:
    database.row_factory = sqlite3.Row
    for table, column, name in (('metrics', 'metrics', 'digits'), ('configs', 'config', 'digits_configs')):
      rows = [dict(row) for row in database.execute(f'SELECT * FROM {table}')]
      flat = [{**row, **json.loads(row.pop(column))} for row in rows]
      flat = [{k: float(v) if v in ('NaN', 'Infinity') else v for k, v in row.items() if k != column} for row in flat]
      names = dict.fromkeys(key for row in flat for key in row)
      rows = [{name: row.get(name) for name in names} for row in flat]
      parquet.write_table(pa.Table.from_pylist(rows), folder / f'{name}.parquet')
  return folder


@pytest.mark.parametrize('is_table', [False, True])
def test_the_runs_of_a_project(tmp_path, is_table):
  path = sources.write_trackio(tmp_path / 'trackio')
  found, damage = read(as_parquet(path, tmp_path / 'tables') if is_table else path.parent)
  assert set(found) == {'digits/mlp', 'digits/cnn'} and not damage
  mlp, cnn = found['digits/mlp'], found['digits/cnn']
  assert mlp.config == {'lr': 0.1, 'net': {'width': 3}} and cnn.config['lr'] == 0.01
  assert (mlp.tags, cnn.tags, mlp.experiment, mlp.is_end_known) == (('baselines',), (), 'digits', False)
  values = events(mlp)
  assert values[0] == {'event': 'train', 'step': 0, 'loss': 1.0, 'grad/norm': 2.0}
  assert values[1] == {'event': 'eval', 'step': 0, 'accuracy': 0.5} and math.isnan(values[2]['loss'])
  assert [each['loss'] for each in values if each['step'] == 2] == [0.25, 0.125]  # A step that occurs twice.
  assert [(each['step'], each.get('loss')) for each in events(cnn)] == [(0, math.inf), (10, None)]
  assert mlp.started == pytest.approx(1795726472.07, abs=0.01)


def test_databases_of_earlier_versions_have_names_only(tmp_path):
  path = sources.write_trackio(tmp_path)
  with contextlib.closing(sqlite3.connect(path)) as database:
    for table in ('metrics', 'configs'):
      rows = 'timestamp, run_name, step, metrics' if table == 'metrics' else 'run_name, config, created_at'
      database.execute(f'CREATE TABLE new AS SELECT id, {rows} FROM {table}')
      database.execute(f'DROP TABLE {table}')
      database.execute(f'ALTER TABLE new RENAME TO {table}')
    database.commit()
  found, _ = read(tmp_path)
  assert found['digits/mlp'].config['lr'] == 0.1 and len(found['digits/mlp'].values) == 7


def test_files_of_others_are_left_out_and_damaged_ones_named(tmp_path):
  sources.write_trackio(tmp_path)
  (tmp_path / 'broken.db').write_bytes(b'SQLite format 3\x00 and no more')
  (tmp_path / 'broken.parquet').write_bytes(b'PAR1')
  (tmp_path / 'pipe.db').symlink_to(tmp_path / 'missing')
  with contextlib.closing(sqlite3.connect(tmp_path / 'mlflow.db')) as database:
    database.execute('CREATE TABLE metrics (key TEXT, value REAL)')
  parquet.write_table(pa.table({'a': [1]}), tmp_path / 'table.parquet')
  found, damage = read(tmp_path)
  assert len(found) == 2
  assert [line.split(': ')[0] for line in damage] == [f'{tmp_path}/{name}' for name in ('broken.db', 'pipe.db')]
  (tmp_path / 'broken.db').unlink()
  _, damage = read(tmp_path)
  assert [line.split(': ')[0] for line in damage] == [f'{tmp_path}/{name}' for name in ('pipe.db', 'broken.parquet')]


def test_the_source_is_only_read(tmp_path):
  path = sources.write_trackio(tmp_path)
  before = path.read_bytes(), sorted(each.name for each in tmp_path.iterdir())
  read(tmp_path)
  assert (path.read_bytes(), sorted(each.name for each in tmp_path.iterdir())) == before
