"""An export with outputs that have no row for each example: all of them are verified, and served as they are."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import official_ext as ext
from official_ext.cli import main
from official_ext.deployment.server import served_model
from tests import tiers
from tests.deployment import runs


@dataclasses.dataclass
class PointsConfig(ext.TaskConfig):
  train_data: ext.DataConfig = dataclasses.field(default_factory=lambda: ext.DataConfig(global_batch_size=4))
  validation_data: ext.DataConfig = dataclasses.field(
    default_factory=lambda: ext.DataConfig(global_batch_size=4, is_training=False)
  )


@ext.register_task(PointsConfig)
class Points(ext.Task):
  names = ('ant', 'bee', 'cat')

  def build_model(self):
    return tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(3)])

  def build_inputs(self, params, input_context=None):
    x = np.random.default_rng(0).normal(size=[12, 2]).astype(np.float32)
    return ext.build_dataset(ext.ArraySource({'x': x}), params, input_context)

  def serving_function(self, model):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, 'x')])
    def serve(x):
      scores = model(x, training=False)
      found = {'scores': scores, 'mean': tf.reduce_mean(scores, 0), 'count': tf.shape(x)[0] + 0}
      return {**found, 'positive': tf.boolean_mask(x[0], x[0] > 0), 'names': tf.constant(self.names)}

    return serve


@ext.register_experiment('points_without_batch')
def points():
  return ext.ExperimentConfig(task=PointsConfig())


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  return runs.make(tmp_path_factory.mktemp('points'), 'points_without_batch')


def export(run, folder, *flags):
  status = main.main(['export', run, f'--output_dir={folder}', *flags])
  return status, json.loads((folder / 'export.json').read_text())


@pytest.mark.slow
def test_all_outputs_are_verified(run, tmp_path, monkeypatch):
  status, note = export(run, tmp_path / 'out')
  assert status == 0 and note['verified'] is True and note['verification']['examples'] == 12
  relations = {each['name']: (each['has_batch'], each['is_joinable']) for each in note['signature']['outputs']}
  assert relations == {
    'scores': (True, True),
    'mean': (False, False),
    'count': (False, False),
    'positive': (None, False),
    'names': (False, True),
  }
  own = tf.saved_model.save

  def damaged(module, folder, signatures):
    monkeypatch.setattr(Points, 'names', ('ant', 'bee', 'dog'))
    module.other = Points(PointsConfig()).serving_function(module.model)
    own(module, folder, signatures={'serving_default': module.other})

  monkeypatch.setattr(tf.saved_model, 'save', damaged)
  status, note = export(run, tmp_path / 'damaged')
  assert status == 1 and note['verified'] is False and note['verification']['relative'] == 'Infinity'


@tiers.parametrize('export_format', ['onnx', 'litert'], fast=1)
def test_other_formats_know_which_outputs_have_rows(export_format, tmp_path, monkeypatch):
  monkeypatch.setattr(Points, 'serving_function', _serve_rows)
  run = runs.make(tmp_path / 'run', 'points_without_batch')
  status, note = export(run, tmp_path / 'out', f'--format={export_format}')
  assert status == 0 and note['verified'] is True
  model = served_model.load(str(tmp_path / 'out'))
  found = {name: (spec.has_batch, spec.is_joinable) for name, spec in model.outputs.items()}
  assert found == {'scores': (True, True), 'anchors': (False, True)} and not model.apart
  assert model.compute({'x': np.zeros([1, 2], np.float32)})['anchors'].tolist() == [[1, 2]]


def _serve_rows(self, model):
  @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, 'x')])
  def serve(x):
    return {'scores': model(x, training=False), 'anchors': tf.constant([[1.0, 2.0]])}

  return serve


def test_a_table_that_the_model_does_not_hold_is_refused(run, tmp_path, monkeypatch, capsys):
  def serve_words(self, model, is_held):
    words = tf.lookup.KeyValueTensorInitializer(['ant', 'bee'], tf.constant([1, 2], tf.int64))
    table = tf.lookup.StaticHashTable(words, 0)
    if is_held:
      model.table = table
    return tf.function(lambda x: {'y': table.lookup(x)}, input_signature=[tf.TensorSpec([None], tf.string, 'x')])

  monkeypatch.setattr(Points, 'serving_function', lambda self, model: serve_words(self, model, False))
  assert main.main(['export', run, f'--output_dir={tmp_path}/out', '--examples=0']) == 2
  assert (
    'error: serving_function: captures a table or a variable that the model does not hold' in capsys.readouterr().err
  )
  assert not (tmp_path / 'out').exists()
  monkeypatch.setattr(Points, 'serving_function', lambda self, model: serve_words(self, model, True))
  assert export(run, tmp_path / 'held', '--examples=0')[0] == 0
