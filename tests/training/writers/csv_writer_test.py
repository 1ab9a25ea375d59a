"""Tables of metrics: as pandas reads them, after restarts and rollbacks too."""

import math

import numpy as np
import pandas as pd

from official_ext.training.writers import trackers


def _read(path):
  return pd.read_csv(path).replace({np.nan: None}).to_dict('list')


def _train(writer, steps, scale=1.0):
  for step in steps:
    writer.write('train', step, {'loss': scale / step, 'name': 'text', 'image': np.zeros([2, 2, 3])})
    if step % 2 == 0:
      writer.write('eval', step, {'accuracy': scale * step})


def test_rows_and_columns(tmp_path):
  writer = trackers.CsvWriter(str(tmp_path))
  writer.write('start', 0, {'seed': 3})
  _train(writer, [1, 2])
  writer.write('train', 3, {'loss': math.nan, 'set': {'a, "b"': np.float32(0.5)}, 'count': np.int64(7)})
  writer.close()
  assert (tmp_path / 'train.csv').read_text().splitlines() == [
    'step,loss,"set/a, ""b""",count',
    '1,1.0,,',
    '2,0.5,,',
    '3,nan,0.5,7',
  ]
  assert (tmp_path / 'validation.csv').read_text() == 'step,accuracy\n2,2.0\n'


def test_what_a_killed_process_wrote_stays(tmp_path):
  _train(trackers.CsvWriter(str(tmp_path)), [1, 2, 3])
  with open(tmp_path / 'train.csv', 'a') as f:
    f.write('4,0.2')
  writer = trackers.CsvWriter(str(tmp_path))
  assert _read(tmp_path / 'train.csv') == {'step': [1, 2, 3], 'loss': [1.0, 0.5, 1 / 3]}
  _train(writer, [4])
  assert _read(tmp_path / 'train.csv')['loss'] == [1.0, 0.5, 1 / 3, 0.25]


def test_steps_that_are_done_again_replace_their_rows(tmp_path):
  """Killed after 6, restored at 2; rolled back from 5 to 3."""
  _train(trackers.CsvWriter(str(tmp_path)), range(1, 7))
  writer = trackers.CsvWriter(str(tmp_path))
  writer.write('restored', 2, {})
  assert _read(tmp_path / 'train.csv')['step'] == [1, 2]
  assert _read(tmp_path / 'validation.csv')['step'] == [2]
  _train(writer, [3, 4, 5], scale=2.0)
  writer.write('rollback', 3, {})
  _train(writer, [4, 5], scale=3.0)
  assert _read(tmp_path / 'train.csv') == {'step': [1, 2, 3, 4, 5], 'loss': [1.0, 0.5, 2 / 3, 3 / 4, 3 / 5]}
  assert _read(tmp_path / 'validation.csv') == {'step': [2, 4], 'accuracy': [2.0, 12.0]}


def test_a_run_that_was_killed_before_its_first_checkpoint(tmp_path):
  """It starts again, and reports no restore."""
  _train(trackers.CsvWriter(str(tmp_path)), range(1, 6))
  _train(trackers.CsvWriter(str(tmp_path)), [1, 2], scale=2.0)
  assert _read(tmp_path / 'train.csv') == {'step': [1, 2], 'loss': [2.0, 1.0]}
  assert _read(tmp_path / 'validation.csv') == {'step': [2], 'accuracy': [4.0]}


def test_an_evaluation_may_be_repeated_or_come_late(tmp_path):
  writer = trackers.CsvWriter(str(tmp_path), trains=False, suffix='.eval')
  for step, value in ((4, 0.1), (8, 0.2), (2, 0.3), (8, 0.4)):
    writer.write('restored', step, {})
    writer.write('eval', step, {'accuracy': value})
  assert _read(tmp_path / 'validation.eval.csv') == {'step': [2, 4, 8], 'accuracy': [0.3, 0.1, 0.4]}
