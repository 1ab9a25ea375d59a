"""The experiment diabetes: its split, its metric, and a whole run that beats linear regression."""

import numpy as np
import pytest
from sklearn import datasets
from sklearn import linear_model
import tensorflow as tf

from experiments import diabetes
from experiments.diabetes import task as task_lib
import official_ext as ext
from tests.experiments import shrunk_run

TRAIN, VALIDATION = (task_lib.examples(is_training) for is_training in (True, False))


def columns(split):
  """The table of a split, with the category last."""
  features, _ = split
  return np.concatenate([features['numbers'], features['sex']], axis=1)


def test_every_patient_is_in_one_split():
  table, labels = datasets.load_diabetes(return_X_y=True, scaled=False)
  expected = np.concatenate([np.delete(table, 1, 1), table[:, 1:2] - 1, labels[:, np.newaxis]], axis=1)
  found = np.concatenate([np.column_stack([columns(split), split[1]]) for split in (TRAIN, VALIDATION)])
  order = lambda rows: rows[np.lexsort(rows.T)]
  np.testing.assert_allclose(order(found.astype(np.float64)), order(expected), rtol=1e-6)
  assert [len(split[1]) for split in (TRAIN, VALIDATION)] == [342, 100]
  assert set(np.unique(TRAIN[0]['sex'])) == {0, 1}


def test_the_model_scales_by_the_training_data():
  """With a hidden layer of zeros the prediction is the mean label."""
  task = shrunk_run.make_task(shrunk_run.make_params('diabetes'))
  model = task.build_model()
  model.get_layer('output').kernel.assign(tf.zeros([32, 1]))
  features = {name: tf.constant(value) for name, value in VALIDATION[0].items()}
  np.testing.assert_allclose(model(features), np.full([100, 1], TRAIN[1].mean()), rtol=1e-6)
  scaled = model.get_layer('scale')(TRAIN[0]['numbers']).numpy()
  np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-4)
  np.testing.assert_allclose(scaled.std(0), 1, atol=1e-4)


def test_the_share_within_50():
  predictions = tf.constant([[100.0], [151.0], [49.0], [150.0]])
  found = task_lib.within_50(tf.fill([4, 1], 100.0), predictions)
  assert found.numpy().tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(('replicas', 'enable_xla'), shrunk_run.CONTINUATIONS)
def test_a_restored_run_resumes_bit_for_bit(replicas, enable_xla, tmp_path):
  params = shrunk_run.make_params('diabetes', enable_xla=enable_xla)
  shrunk_run.assert_resumes_bit_for_bit(params, tmp_path, replicas)


@pytest.mark.slow
def test_a_run_stops_early_and_its_best_checkpoint_beats_linear_regression(tmp_path):
  folder = str(tmp_path / 'run')
  logs = ext.train('diabetes', folder)
  linear = linear_model.LinearRegression().fit(columns(TRAIN), TRAIN[1])
  reference = np.abs(linear.predict(columns(VALIDATION)) - VALIDATION[1]).mean()
  predictions = ext.load(folder).predict(VALIDATION[0], verbose=0)[:, 0]
  assert np.abs(predictions - VALIDATION[1]).mean() == pytest.approx(logs['best_mae'], rel=1e-4)
  assert logs['best_mae'] < reference - 1
  assert ext.runs.get(folder).summary().step < diabetes.diabetes().trainer.train_epochs * 342 // 32
