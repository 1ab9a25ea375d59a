"""The experiment contrastive: NT-Xent on any number of replicas, views, the linear probe, and resuming."""

import numpy as np
import pytest
from sklearn import linear_model
import tensorflow as tf

from experiments.contrastive import augmentation
from experiments.contrastive import configs
from experiments.contrastive import data
from experiments.contrastive import losses
from experiments.contrastive import probe
from tests.experiments import shrunk_run
from tests.training.loop import harness
from tests.training.loop import small_run

SMALL = {
  'task': {
    'model': {'encoder_sizes': [16], 'head_sizes': [8, 6]},
    'train_data': {'global_batch_size': 8},
    'validation_data': {'global_batch_size': 600},
  }
}
SGD = {
  'trainer': {
    'optimizer_config': {
      'optimizer': {'type': 'sgd', 'sgd': {'momentum': 0.0}},
      'warmup': {'type': None},
      'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 1.0}},
    }
  }
}


def nt_xent(z, temperature):
  """Equation 1 of the paper, in a loop: the mean over all views, and how often the nearest is the right one."""
  views, terms, found = z.reshape(-1, z.shape[-1]), [], []
  for i in range(len(views)):
    similarities = {k: views[i] @ views[k] / temperature for k in range(len(views)) if k != i}
    partner = i + 1 if i % 2 == 0 else i - 1
    terms.append(-np.log(np.exp(similarities[partner]) / sum(np.exp(value) for value in similarities.values())))
    found.append(max(similarities, key=similarities.get) == partner)
  return np.mean(terms), np.mean(found)


def unit_views(num_images, size=3):
  z = np.random.default_rng(0).normal(size=(num_images, 2, size))
  z[:, 1] += 0.7 * z[:, 0]
  return z / np.linalg.norm(z, axis=-1, keepdims=True)


def test_nt_xent_is_the_formula_of_the_paper():
  z = unit_views(6)
  found = losses.nt_xent(tf.constant(z), tf.constant(z), tf.constant(0), 0.3)
  np.testing.assert_allclose(found, nt_xent(z, 0.3), rtol=1e-6)
  # The shares of three replicas have the mean of the whole.
  parts = [losses.nt_xent(tf.constant(z[i : i + 2]), tf.constant(z), tf.constant(i), 0.3) for i in (0, 2, 4)]
  np.testing.assert_allclose(np.mean(parts, 0), nt_xent(z, 0.3), rtol=1e-6)


@pytest.mark.slow
def test_two_replicas_learn_what_one_does_from_the_whole_batch():
  """Same batches, same views, and the other replica's images among the negatives, with gradients through them."""
  params = shrunk_run.make_params('contrastive', SMALL, SGD)
  one, two = (shrunk_run.make_trainer(params, replicas) for replicas in ('one', 'two'))
  (batch,) = one.task.build_inputs(params.task.train_data).take(1)
  z = one.model(tf.reshape(batch['views'], [-1, 64]))['projection'].numpy().astype(np.float64)
  before, results = harness.weights_of(one), []
  for trainer in (one, two):
    logs = harness.train(trainer, 1)
    results.append([logs['training_loss'], logs['contrastive_accuracy'], *harness.weights_of(trainer)])
  np.testing.assert_allclose(results[0][:2], nt_xent(z.reshape(8, 2, -1), 0.2), rtol=1e-5)
  moved = [np.abs(a - b).max() for a, b in zip(results[0][2:], before)]
  assert min(moved) > 1e-3  # The comparison below would see a gradient that is wrong.
  harness.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


def test_views_without_change_are_the_image():
  pixels = tf.constant(data.examples()['pixels'][:3])
  still = configs.AugmentationConfig(rotation=0.0, zoom=0.0, shear=0.0, translation=0.0, contrast=0.0, erased=0.0)
  draws = tf.stack([augmentation.draw(tf.constant([1, i], tf.int64), 2) for i in range(3)])
  views = augmentation.views(pixels, draws, still)
  np.testing.assert_allclose(views, np.stack([pixels, pixels], axis=1), atol=1e-6)


@pytest.mark.parametrize(
  'field, draw, expected',
  [
    ('translation', 4, lambda image: np.roll(image, -1, axis=1)),
    ('translation', 5, lambda image: np.roll(image, -1, axis=0)),
    ('rotation', 0, np.rot90),
    ('contrast', 6, lambda image: image * 2),
  ],
)
def test_each_change_is_what_its_name_states(field, draw, expected):
  image = np.zeros((8, 8), np.float32)
  image[2:6, 3:5] = np.arange(8).reshape(4, 2) / 20
  amounts = dict(rotation=0.0, zoom=0.0, shear=0.0, translation=0.0, contrast=0.0, erased=0.0)
  amounts[field] = 90.0 if field == 'rotation' else 1.0
  draws = np.zeros((1, 1, 71), np.float32)
  draws[..., draw] = 1.0
  config = configs.AugmentationConfig(**amounts)
  views = augmentation.views(tf.constant(image.reshape(1, 64)), tf.constant(draws), config)
  np.testing.assert_allclose(np.reshape(views, [8, 8]), expected(image), atol=1e-5)


@pytest.mark.slow
def test_views_of_a_batch_are_a_function_of_its_positions():
  params = shrunk_run.make_params('contrastive', SMALL)
  task = shrunk_run.make_task(params)
  batches = [batch['views'].numpy() for batch in task.build_inputs(params.task.train_data).take(2)]
  again = [batch['views'].numpy() for batch in task.build_inputs(params.task.train_data).take(2)]
  np.testing.assert_array_equal(batches, again)
  first, second = batches[0][:, 0], batches[0][:, 1]
  assert np.abs(first - second).max(1).min() > 0.1  # Two views differ, for every image.
  assert np.abs(batches[0] - batches[1]).max() > 0.1


def test_the_probe_is_ridge_regression():
  examples = data.examples()
  pixels, is_training = examples['pixels'], examples['is_training']
  assert is_training.sum() == 1437
  found = probe.accuracy(pixels, examples['label'], is_training, l2=0.01)
  scaled = (pixels - pixels[is_training].mean(0)) / (pixels[is_training].std(0) + 1e-6)
  classifier = linear_model.RidgeClassifier(alpha=0.01 * is_training.sum(), solver='cholesky')
  classifier.fit(scaled[is_training].astype(np.float64), examples['label'][is_training])
  expected = classifier.score(scaled[~is_training], examples['label'][~is_training])
  assert found == pytest.approx(expected) and 0.9 < found < 0.97


@pytest.mark.slow
@pytest.mark.parametrize('replicas', [pytest.param('one', marks=pytest.mark.soak), 'two'])
def test_an_evaluation_probes_the_features_of_every_image(replicas, tmp_path):
  params = shrunk_run.make_params('contrastive', SMALL)
  logs = shrunk_run.run(tmp_path, params, replicas)
  trainer = shrunk_run.make_trainer(params)
  trainer.checkpoint.read(str(tmp_path / 'ckpt-4')).expect_partial()
  examples = data.examples()
  features = trainer.model(examples['pixels'])['features'].numpy()
  expected = probe.accuracy(features, examples['label'], examples['is_training'], params.task.probe_l2)
  (last,) = [event for event in small_run.events(tmp_path, 'eval') if event['step'] == 4]
  assert float(logs['probe_accuracy']) == last['probe_accuracy'] == pytest.approx(expected, abs=1.5 / 360)


@pytest.mark.slow
@pytest.mark.parametrize('replicas, enable_xla', shrunk_run.CONTINUATIONS)
def test_a_restored_run_resumes_bit_for_bit(replicas, enable_xla, tmp_path):
  shrunk_run.assert_resumes_bit_for_bit(
    shrunk_run.make_params('contrastive', SMALL, enable_xla=enable_xla), tmp_path, replicas
  )
