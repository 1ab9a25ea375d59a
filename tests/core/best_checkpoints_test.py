"""The best checkpoints: which are kept, and that the file says so only once they are there."""

import json
import os

import pytest
import tensorflow as tf

from official_ext.core import best_checkpoints
from official_ext.core import manifests


def _exporter(folder, keep=2, comp='higher'):
  return best_checkpoints.BestCheckpointExporter(str(folder), 'accuracy', comp, keep)


def _evaluate(exporter, values):
  weight = tf.Variable(0.0)
  for step, value in values.items():
    weight.assign(step)
    exporter.maybe_export_checkpoint(tf.train.Checkpoint(weight=weight), {'accuracy': tf.constant(value)}, step)
  return exporter


def _kept(folder):
  return [manifests.step_of(path) for path in manifests.prefixes(str(folder), 'best_ckpt')]


@pytest.mark.parametrize(('comp', 'kept'), [('higher', [20, 40]), ('lower', [10, 30])])
def test_defect_07_keeps_as_many_of_the_best_as_are_wanted(tmp_path, comp, kept):
  # Stock: keeps one.
  (tmp_path / 'best_ckpt-5_temp').mkdir()  # What a kill in the middle of a save leaves.
  exporter = _evaluate(_exporter(tmp_path, comp=comp), {10: 0.1, 20: 0.8, 30: 0.3, 40: 0.9})
  assert not (tmp_path / 'best_ckpt-5_temp').exists()
  assert _kept(tmp_path) == kept
  best = {'higher': 40, 'lower': 10}[comp]
  assert exporter.best_ckpt_path == f'{tmp_path}/best_ckpt-{best}' == tf.train.latest_checkpoint(str(tmp_path))
  info = json.loads((tmp_path / 'info.json').read_text())
  assert info['best_ckpt_global_step'] == best
  weight = tf.Variable(0.0)
  tf.train.Checkpoint(weight=weight).read(exporter.best_ckpt_path)
  assert weight.numpy() == best


def test_defect_07_a_nan_metric_never_wins(tmp_path):
  # Stock: a first metric that is NaN stays the best for ever.
  exporter = _evaluate(_exporter(tmp_path, keep=1), {10: float('nan'), 20: 0.5, 30: float('inf'), 40: 0.4})
  assert _kept(tmp_path) == [20]
  assert exporter.best_ckpt_logs['accuracy'] == pytest.approx(0.5)


def test_the_first_of_equals_wins(tmp_path):
  _evaluate(_exporter(tmp_path, keep=1), {10: 0.5, 20: 0.5})
  assert _kept(tmp_path) == [10]


def test_writes_nothing_before_the_first_evaluation(tmp_path):
  _exporter(tmp_path / 'best')
  assert not os.path.exists(tmp_path / 'best')


def test_a_run_that_goes_on_from_earlier_judges_as_it_did_then(tmp_path):
  values = {10: 0.5, 20: 0.4, 30: 0.9}
  straight = _evaluate(_exporter(tmp_path / 'straight', keep=1), values)
  _evaluate(_exporter(tmp_path / 'killed', keep=1), values)
  resumed = _exporter(tmp_path / 'killed', keep=1)  # From the checkpoint of step 10.
  _evaluate(resumed, {20: 0.4})
  assert resumed.best_ckpt_logs['accuracy'] == pytest.approx(0.5)  # Not 0.9, of a step still to come.
  _evaluate(resumed, {30: 0.9})
  assert _kept(tmp_path / 'killed') == _kept(tmp_path / 'straight') == [30]
  assert resumed.best_ckpt_logs == straight.best_ckpt_logs


@pytest.mark.parametrize('name', ['info.json', 'history.json'])
def test_defect_04_a_truncated_record_of_the_best_does_not_stop_the_run(tmp_path, name):
  # Stock: JSONDecodeError at every restart.
  _evaluate(_exporter(tmp_path), {10: 0.5})
  (tmp_path / name).write_text('{"accu')
  _evaluate(_exporter(tmp_path), {20: 0.6})
  assert 20 in _kept(tmp_path)
  assert json.loads((tmp_path / 'info.json').read_text())['best_ckpt_global_step'] == 20


def test_nested_metrics(tmp_path):
  exporter = best_checkpoints.BestCheckpointExporter(str(tmp_path), 'box|ap', 'higher')
  assert exporter.maybe_export_checkpoint(tf.train.Checkpoint(), {'box': {'ap': 0.3}, 'image': tf.zeros([2, 2])}, 5)
