"""SQL over runs: the tables hold what the files hold, and nothing else can be reached."""

import datetime
import json
import math
import sys

import pytest

from official_ext.base import errors
from official_ext.operations.curves import sql_tables
from official_ext.operations.runs import run_folders
from tests.operations.runs import folders
from tests.operations.runs.folders import event


@pytest.fixture(scope='module', autouse=True)
def root(tmp_path_factory):
  """Two runs, of which one was resumed from step 2; the second has an evaluation beside it, and a NaN."""
  root = tmp_path_factory.mktemp('runs')
  events = [event('train', step, training_loss=1.0 / step) for step in (1, 2, 3)]
  events += [event('restored', 2), event('train', 3, training_loss=7.0), event('eval', 3, accuracy=0.5)]
  ended = folders.ended_process()
  run = folders.make(
    root, 'sweep/one', events, rate=0.1, identity=ended, status='finished', started='2026-01-02T03:04:05Z'
  )
  run_folders.change_notes(run, add=['a', 'b'], note="it's")
  folders.make(root, 'two', [event('train', 1, training_loss='NaN')], identity=ended, status='failed', error='no disk')
  (root / 'two/events.continuous_eval.jsonl').write_text(json.dumps(event('eval', 1, accuracy=0.25)) + '\n')
  (root / 'two/run.continuous_eval.json').write_text(json.dumps(folders.record(ended, status='finished')))
  return root


def rows(root, sql):
  return list(sql_tables.query(str(root), sql).rows)


def test_runs_are_rows(root):
  found = sql_tables.query(str(root), 'SELECT name, status, reason, step, tags, note, started FROM runs ORDER BY name')
  assert list(found.columns) == ['name', 'status', 'reason', 'step', 'tags', 'note', 'started']
  one, two = found.rows
  assert one == ('sweep/one', 'finished', '', 3, ['a', 'b'], "it's", datetime.datetime(2026, 1, 2, 3, 4, 5))
  assert two[:4] == ('two', 'failed', 'no disk', 1)


def test_metrics_are_those_that_stand(root):
  found = rows(root, 'SELECT run, curve, name, step, value FROM metrics ORDER BY run, curve, step')
  assert found[:4] == [
    ('sweep/one', 'eval/accuracy', 'accuracy', 3, 0.5),
    ('sweep/one', 'train/training_loss', 'training_loss', 1, 1.0),
    ('sweep/one', 'train/training_loss', 'training_loss', 2, 0.5),
    ('sweep/one', 'train/training_loss', 'training_loss', 3, 7.0),  # Not that of the superseded step.
  ]
  assert found[4] == ('two', 'continuous_eval:eval/accuracy', 'accuracy', 1, 0.25)
  assert len(found) == 6 and found[5][:4] == ('two', 'train/training_loss', 'training_loss', 1)
  assert rows(root, "SELECT isnan(value) FROM metrics WHERE run = 'two' AND curve LIKE 'train/%'") == [(True,)]
  ((moment,),) = rows(root, 'SELECT max(time) FROM metrics')
  assert moment == datetime.datetime.fromtimestamp(1_700_000_003, datetime.UTC).replace(tzinfo=None)


def test_the_best_of_each_metric(root):
  assert rows(root, 'SELECT * FROM best_metrics') == [('sweep/one', 'accuracy', 3, 0.5)]


def test_seconds_are_those_of_the_last_attempt(root):
  ((seconds, expected),) = rows(
    root, "SELECT seconds, epoch(updated) - epoch(started) FROM runs WHERE name = 'sweep/one'"
  )
  assert seconds == pytest.approx(expected, abs=0.001) and seconds > 0


def test_configurations_join(root):
  sql = """
    SELECT p.number, m.value FROM metrics m JOIN params p ON p.run = m.run AND p.name = 'learning_rate'
    WHERE m.curve = 'eval/accuracy'"""
  assert rows(root, sql) == [(0.1, 0.5)]
  path = 'trainer.optimizer_config.learning_rate.type'
  assert rows(root, f"SELECT DISTINCT value, number FROM params WHERE name = '{path}'") == [('cosine', None)]


def test_a_whole_number_of_any_length_is_infinite(tmp_path):
  huge = 10**400
  folders.make(tmp_path, 'a', [event('eval', 1, accuracy=huge)], rate=-huge, identity=folders.ended_process())
  sql = "SELECT number FROM params WHERE name = 'learning_rate' UNION ALL SELECT value FROM best_metrics"
  assert rows(tmp_path, sql) == [(-math.inf,), (math.inf,)]


def test_a_folder_without_runs_has_empty_tables(tmp_path):
  sql = 'SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM params), (SELECT count(*) FROM METRICS)'
  assert rows(tmp_path, sql) == [(0, 0, 0)]


@pytest.mark.parametrize(
  'sql, message',
  [
    ('SELEC 1', 'SQL: Parser Error: syntax error at or near "SELEC"'),
    (
      'SELECT * FROM jobs',
      'SQL: Catalog Error: Table with name jobs .*; the tables are runs, params, metrics and best_metrics',
    ),
    ("SELECT * FROM read_csv('{root}/secret')", 'SQL: Permission Error: '),
    ("SELECT * FROM '{root}/secret'", 'SQL: Catalog Error: '),
    ("COPY runs TO '{root}/secret'", 'SQL: Permission Error: '),
    ("ATTACH '{root}/made'", 'SQL: Permission Error: '),
    ('SET enable_external_access=true', 'SQL: .*configuration has been locked'),
    ('SELECT * FROM rows', 'SQL: Catalog Error: Table with name rows'),  # A name of this process.
    ('', 'SQL: has no statement with a result'),
  ],
)
def test_what_is_refused_is_one_line(root, sql, message):
  (root / 'secret').write_text('a,b\n1,2\n')
  with pytest.raises(errors.UserError, match=message) as caught:
    rows(root, sql.format(root=root))
  assert '\n' not in str(caught.value)
  assert (root / 'secret').read_text() == 'a,b\n1,2\n' and not (root / 'made').exists()


def test_without_duckdb_the_extra_is_named(root, monkeypatch):
  monkeypatch.setitem(sys.modules, 'duckdb', None)
  with pytest.raises(
    errors.UserError, match=r"runs query: needs the package duckdb: pip install 'official-ext\[query\]'"
  ):
    rows(root, 'SELECT 1')
