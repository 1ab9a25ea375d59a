"""Steps on a mesh of four devices compute the same as one device; tensors that DTensor cannot split are reported."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
import registry_imports  # noqa: F401
from tests.experiments import shrunk_run
from tests.training.loop import harness

TWO_BY_TWO = {'data': 2, 'tensor': 2}
RULES = {
  'parameters': [
    {'pattern': '^dense/kernel', 'axes': ['', 'tensor']},
    {'pattern': '^dense_1/kernel', 'axes': ['tensor']},
    {'pattern': '^dense/bias', 'axes': ['tensor']},
    {'pattern': '^(dense_1/bias|logits)', 'axes': []},
  ],
  'activations': [{'pattern': '^dense$', 'axes': ['data', 'tensor']}],
}
SGD = {
  'optimizer': {'type': 'sgd_experimental', 'sgd_experimental': {'momentum': 0.9}},
  'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.05}},
}
CLOSE = dict(rtol=1e-5, atol=0)


def sgd():
  return tf_keras.optimizers.SGD(0.1, momentum=0.9)


def make_params(mesh=None, rules=RULES, **trainer):
  changes = {'task': {'model': {'hidden_sizes': [16, 8]}, 'train_data': {'global_batch_size': 8}}}
  if mesh:
    changes.update(runtime={'mesh': mesh}, trainer={'sharding': rules})
  return shrunk_run.make_params('digits_mlp', changes, **trainer)


def make_trainer(*args, **kwargs):
  tf_keras.backend.reset_uids()  # Layers are named as in a separate process.
  return shrunk_run.make_trainer(make_params(*args, **kwargs))


def losses(trainer, num_loops, steps=1):
  return [harness.train(trainer, steps)['training_loss'] for _ in range(num_loops)]


@pytest.mark.slow
def test_losses_are_those_of_one_device_and_slots_are_split_as_their_parameters(tmp_path, capsys):
  accumulation = dict(gradient_accumulation_steps=2, optimizer_config=SGD)
  alone = make_trainer(**accumulation)
  expected = losses(alone, 3, steps=2)
  trainer = make_trainer(TWO_BY_TWO, **accumulation)
  np.testing.assert_allclose(losses(trainer, 3, steps=2), expected, **CLOSE)
  assert trainer.plan.execution == 'mesh' and int(trainer.global_step.numpy()) == 6
  axes = trainer.training_step.on_mesh().axes_by_name()
  split = {name: value for name, value in axes.items() if any(value)}
  assert len(split) == 6, split  # Two kernels and a bias, each with its momentum.
  assert [value for name, value in split.items() if 'dense_1/kernel' in name] == [('tensor', '')] * 2
  assert 'warning' not in capsys.readouterr().err

  path = trainer.checkpoint.write(str(tmp_path / 'ckpt'))  # Another mesh resumes from it, and no mesh.
  expected = losses(alone, 2)
  for mesh in ({'tensor': 4}, None):
    rules = {'parameters': [{'pattern': '^dense/kernel', 'axes': ['', 'tensor']}]}
    other = make_trainer(mesh, rules, **accumulation)
    other.checkpoint.read(path).assert_existing_objects_matched()
    other.checkpoint_restored()
    np.testing.assert_allclose(losses(other, 2), expected, **CLOSE)
    assert ('warning: trainer.sharding.parameters: 5 of 6 trained parameters' in capsys.readouterr().err) == bool(mesh)


@pytest.mark.slow
def test_an_axis_of_size_1_splits_nothing():
  """DTensor by itself refuses a product along a dimension that is split over two axes, of any sizes."""
  rules = {'parameters': [{'pattern': 'kernel', 'axes': ['fsdp', 'tensor']}]}
  expected = losses(make_trainer(), 2)
  for mesh in ({'data': 1, 'fsdp': 1, 'tensor': 1}, {'data': 2, 'fsdp': 1, 'tensor': 2}):
    np.testing.assert_allclose(losses(make_trainer(mesh, rules), 2), expected, **CLOSE)


@pytest.mark.slow
def test_a_restored_run_resumes_bit_for_bit(tmp_path):
  rules = {'parameters': [{'pattern': '^dense(_[0-9]+)?/kernel', 'axes': ['', 'tensor']}]}
  shrunk_run.assert_resumes_bit_for_bit(make_params(TWO_BY_TWO, rules), tmp_path)


def test_a_step_that_is_not_finite_changes_nothing():
  x, y = harness.make_data(24)
  x[9] = np.nan  # In the second batch of 8.
  weights = []
  for mesh in (TWO_BY_TWO, None):
    trainer = harness.make_trainer(data=(x, y), enable_xla=False, optimizer=sgd, mesh=mesh)
    harness.train(trainer, 1)
    before = [value.numpy() for value in trainer.model.variables]
    harness.train(trainer, 1)
    assert trainer.num_skips == 1 and trainer.step_state.last_skips(1) == [2]
    for value, old in zip(trainer.model.variables, before):
      np.testing.assert_array_equal(value.numpy(), old)
    harness.train(trainer, 1)
    weights.append([value.numpy() for value in trainer.model.variables])
  for found, expected in zip(*weights):
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
  'mesh, rules, batch_size, message',
  [
    (
      {'tensor': 2},
      {'parameters': [{'pattern': 'dnse/kernel'}]},
      8,
      '.*0.pattern: .* matches no parameter; near are dense',
    ),
    (
      {'tensor': 2},
      {'activations': [{'pattern': 'dese', 'axes': ['tensor']}]},
      8,
      "trainer.sharding.activations.0.pattern: 'dese' matches no layer; near are dense",
    ),
    ({'data': 4}, {}, 6, r'task.train_data.global_batch_size: 6 examples cannot be split evenly over data=4'),
    ({'data': 3, 'tensor': 2}, {}, 6, 'runtime.mesh: data 3 x tensor 2 has 6 devices in this process'),
  ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(mesh, rules, batch_size, message):
  config = dict(trainer_config={'sharding': rules}, optimizer=sgd, mesh=mesh, batch_size=batch_size, enable_xla=False)
  with pytest.raises(errors.UserError, match=f'^{message}'):
    harness.train(harness.make_trainer(**config), 1)


class UnsplittableTask(harness.LinearTask):
  """Counts its labels by an operation that DTensor has no layout for."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss + 0.0 * tf.cast(tf.unique_with_counts(inputs[1])[2][0], tf.float32), logs


def test_an_operation_that_cannot_be_split_is_reported():
  trainer = harness.make_trainer(UnsplittableTask, enable_xla=False, optimizer=sgd, mesh=TWO_BY_TWO)
  with pytest.raises(
    errors.UserError, match=f'^runtime.mesh: DTensor of TensorFlow {tf.__version__} cannot .*UniqueWith'
  ):
    harness.train(trainer, 1)


class IndexingTask(harness.LinearTask):
  """Uses operations that take another form on a mesh: see mesh_execution.py."""

  def forward(self, inputs, model, training):
    x, y = inputs
    features = x[:, tf.newaxis, 1:3][..., tf.newaxis][:, 0]
    chosen = tf.where(tf.reduce_sum(features) > 0, features, -features)
    loss, logs = super().forward(inputs, model, training)
    return loss * tf.reduce_mean(1 + tf.abs(chosen)), logs


def test_new_axes_and_scalar_conditions_are_split_in_another_form():
  found = [
    losses(harness.make_trainer(IndexingTask, enable_xla=False, optimizer=sgd, mesh=mesh), 2)
    for mesh in (TWO_BY_TWO, None)
  ]
  np.testing.assert_allclose(found[0], found[1], **CLOSE)


def test_an_optimizer_that_writes_by_kernels_is_refused():
  trainer = harness.make_trainer(enable_xla=False, mesh=TWO_BY_TWO)
  with pytest.raises(
    errors.UserError, match='^runtime.mesh: the step writes variables by ResourceApply.*sgd_experimental'
  ):
    harness.train(trainer, 1)
