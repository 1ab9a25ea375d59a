"""The experiment gan: losses, alternating updates, replicas, metrics of an evaluation, and resuming."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from experiments.gan import data
from experiments.gan import judge
from experiments.gan import losses
from experiments.gan import task as task_lib
from official_ext.base import errors
from tests.experiments import shrunk_run
from tests.training.loop import harness
from tests.training.loop import small_run

BATCH_SIZE, NUM_SAMPLES, LATENT_SIZE = 8, 30, 5
SGD = {
  'optimizer': {'type': 'sgd', 'sgd': {'momentum': 0.0}},
  'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.5}},
}
SMALL = {
  'task': {
    'model': {'latent_size': LATENT_SIZE, 'generator_sizes': [12], 'discriminator_sizes': [16]},
    'num_samples': NUM_SAMPLES,
    'train_data': {'global_batch_size': BATCH_SIZE},
    'validation_data': {'global_batch_size': 20},
  }
}
PLAIN_SGD = {
  'task': {'model': {'dropout_rate': 0.0}, 'discriminator_optimizer': SGD},
  'trainer': {'optimizer_config': SGD},
}


def softplus(x):
  return np.logaddexp(0, x)


# By the papers: the losses of discriminator and generator.
FORMULAS = {
  'non_saturating': (lambda real, fake: softplus(-real).mean() + softplus(fake).mean(), lambda f: softplus(-f).mean()),
  'hinge': (lambda real, fake: np.maximum(0, 1 - real).mean() + np.maximum(0, 1 + fake).mean(), lambda f: -f.mean()),
  'wasserstein': (lambda real, fake: fake.mean() - real.mean(), lambda f: -f.mean()),
}


@pytest.mark.parametrize('name', sorted(losses.LOSSES))
def test_losses_are_those_of_the_papers(name):
  rng = np.random.default_rng(0)
  real, fake = rng.normal(0, 2, (6, 1)), rng.normal(0, 2, (6, 1))
  of_discriminator, of_generator = FORMULAS[name]
  loss = losses.LOSSES[name]
  assert float(loss.discriminator(tf.constant(real), tf.constant(fake))) == pytest.approx(of_discriminator(real, fake))
  assert float(loss.generator(tf.constant(fake))) == pytest.approx(of_generator(fake))


def test_gradient_penalty_measures_the_slope_in_between():
  rng = np.random.default_rng(0)
  real, fake, shares = rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), rng.uniform(size=(4, 1))
  critic = lambda x: tf.reduce_sum(x**3, 1, keepdims=True)
  found = losses.gradient_penalty(critic, *map(tf.constant, (real, fake, shares)))
  slopes = np.linalg.norm(3 * (shares * real + (1 - shares) * fake) ** 2, axis=1)
  assert float(found) == pytest.approx(np.mean((slopes - 1) ** 2))


def weights_by_network(model):
  return [[v.numpy() for v in network.trainable_variables] for network in (model.discriminator, model.generator)]


@pytest.mark.parametrize('loss', ['non_saturating', 'wasserstein'])
def test_each_update_changes_its_own_network_only(loss):
  params = shrunk_run.make_params('gan', SMALL, PLAIN_SGD, {'task': {'n_critic': 2, 'adversarial_loss': loss}})
  task = shrunk_run.make_task(params)
  task.make_seed = lambda: tf.constant([1, 2], tf.int64)  # Outside of a step there is none.
  model, optimizer = task.build_model(), tf_keras.optimizers.SGD(0.5)
  pixels = tf.constant(data.images(is_training=True)[:4])
  before = weights_by_network(model)
  task._update_discriminator(pixels, model)
  between = weights_by_network(model)
  task._update_generator(4, model, optimizer)
  after = weights_by_network(model)
  changed = lambda a, b: [any((x != y).any() for x, y in zip(p, q)) for p, q in zip(a, b)]
  assert changed(before, between) == [True, False] and changed(between, after) == [False, True]
  # A whole step: `n_critic` updates of the one, one of the other.
  task.train_step({'pixels': pixels}, model, optimizer)
  assert int(model.discriminator_optimizer.iterations) == 1 + 2 and int(optimizer.iterations) == 1 + 1


def descend(weights, loss):
  """One step of gradient descent on weights that `loss` is a function of."""
  with tf.GradientTape() as tape:
    tape.watch(weights)
    value = loss(weights)
  return [w - 0.5 * g for w, g in zip(weights, tape.gradient(value, weights))]


def perceptron(weights, x):
  kernel, bias, last_kernel, last_bias = weights
  return tf.nn.leaky_relu(x @ kernel + bias, 0.2) @ last_kernel + last_bias


@pytest.mark.slow
@pytest.mark.parametrize('replicas', [pytest.param('one', marks=pytest.mark.soak), 'two'])
def test_two_steps_are_those_of_the_formulas(replicas, monkeypatch):
  """With latent vectors that are equal on all replicas: both see the same, so that their mean is that of one."""
  latents = data.latents(BATCH_SIZE, LATENT_SIZE, seed=0)
  num_replicas = 2 if replicas == 'two' else 1
  monkeypatch.setattr(task_lib.GanTask, '_latents', lambda self, n: tf.constant(latents[:n]))
  params = shrunk_run.make_params('gan', SMALL, PLAIN_SGD)
  trainer = shrunk_run.make_trainer(params, replicas)
  d, g = ([tf.constant(w, tf.float64) for w in network] for network in weights_by_network(trainer.model))
  pixels = [batch['pixels'].numpy() for batch in trainer.task.build_inputs(params.task.train_data).take(2)]
  logs = harness.train(trainer, 2)
  z = tf.constant(np.tile(latents[: BATCH_SIZE // num_replicas], (num_replicas, 1)), tf.float64)
  losses_of_generator = []
  for real in pixels:
    fake = tf.sigmoid(perceptron(g, z))
    d = descend(
      d,
      lambda d, real=real, fake=fake: (
        tf.reduce_mean(tf.nn.softplus(-perceptron(d, tf.cast(real, tf.float64))))
        + tf.reduce_mean(tf.nn.softplus(perceptron(d, fake)))
      ),
    )
    of_generator = lambda g, d=d: tf.reduce_mean(tf.nn.softplus(-perceptron(d, tf.sigmoid(perceptron(g, z)))))
    losses_of_generator.append(float(of_generator(g)))
    g = descend(g, of_generator)
  found = weights_by_network(trainer.model)
  harness.assert_close(found[0], [w.numpy() for w in d], rtol=1e-4, atol=1e-5)
  harness.assert_close(found[1], [w.numpy() for w in g], rtol=1e-4, atol=1e-5)
  assert logs['generator_loss'] == pytest.approx(np.mean(losses_of_generator), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('replicas, enable_xla', shrunk_run.CONTINUATIONS)
def test_a_restored_run_resumes_bit_for_bit(replicas, enable_xla, tmp_path):
  params = shrunk_run.make_params('gan', SMALL, {'task': {'n_critic': 2}}, enable_xla=enable_xla)
  held = shrunk_run.assert_resumes_bit_for_bit(params, tmp_path, replicas)
  # Both networks, and Adam's slots of each of their variables.
  names = ' '.join(held)
  for name in ('model/generator/', 'model/discriminator/', 'model/discriminator_optimizer/_variables/8/', 'optimizer/'):
    assert name in names
  assert held['model/discriminator_optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE'] == 2 * 5


def test_the_judge_knows_digits_and_doubts_noise():
  images, labels = data.images(is_training=False), data.labels(is_training=False)
  probabilities = judge.class_probabilities(tf.constant(images)).numpy()
  np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
  assert np.mean(probabilities.argmax(1) == labels) > 0.97 and probabilities.max(1).mean() > 0.95
  noise = np.random.default_rng(0).random((500, 64), np.float32)
  assert judge.class_probabilities(tf.constant(noise)).numpy().max(1).mean() < 0.75


def test_class_coverage_counts_classes_with_their_hundredth():
  metric = judge.ClassCoverage()
  metric.update_state(tf.constant([3] * 98 + [4]))  # Of 200: 4 has too few.
  metric.update_state(tf.constant([5] * 2 + [6] * 99))
  assert float(metric.result()) == 3
  metric.reset_states()
  assert float(metric.result()) == 0


def test_image_grid_has_every_image_at_its_place():
  pixels = np.zeros((12, 64), np.float32)
  pixels[11, 10] = 1.0  # Row 1, column 2 of the image in the second row and the second column of the grid.
  (image,) = task_lib.image_grid(pixels)
  assert image.shape == (80, 400, 1) and image.dtype == np.uint8
  dark = np.argwhere(image[..., 0] == 0)
  corner = [4 * (10 + 1 + 1), 4 * (10 + 1 + 2)]  # A cell has a margin of 1.
  assert dark.min(0).tolist() == corner and dark.max(0).tolist() == [n + 3 for n in corner]


@pytest.mark.slow
@pytest.mark.parametrize('replicas', ['one', pytest.param('two', marks=pytest.mark.soak)])
def test_a_run_reports_quality_and_images(replicas, tmp_path):
  logs = shrunk_run.run(tmp_path, shrunk_run.make_params('gan', SMALL), replicas)
  (last,) = [event for event in small_run.events(tmp_path, 'eval') if event['step'] == 4]
  assert 0.1 < last['confidence'] <= 1 and 1 <= last['class_coverage'] <= 10
  assert logs['samples'].shape == (1, 3 * 40, 400, 1)  # All 30, from both replicas.
  tags = [
    value.tag
    for path in (tmp_path / 'validation').glob('*.tfevents.*')
    for event in tf.compat.v1.train.summary_iterator(str(path))
    for value in event.summary.value
  ]
  assert tags.count('samples') == 2 and 'confidence' in tags


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'adversarial_loss': 'hing'}, "task.adversarial_loss: 'hing' is not one of non_saturating, hinge, wasserstein"),
    ({'n_critic': 0}, 'task.n_critic: expected at least 1, got 0'),
    ({'n_critic': 3}, 'task.n_critic: 8 examples of a replica cannot be divided into 3 equal shares'),
  ],
)
def test_mistakes(changes, message):
  with pytest.raises(errors.UserError, match=message):
    harness.train(shrunk_run.make_trainer(shrunk_run.make_params('gan', SMALL, {'task': changes})), 1)
