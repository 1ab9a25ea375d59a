"""The experiment distillation: losses by the formulas, where the teacher comes from, replicas, and resuming."""

import numpy as np
import pytest
from scipy import ndimage
import tensorflow as tf

from experiments.distillation import data
from experiments.distillation import losses
from official_ext.base import errors
from tests.experiments import shrunk_run
from tests.training.loop import harness
from tests.training.loop import small_run

SMALL = {
  'task': {'teacher': {'hidden_sizes': [16, 9]}, 'model': {'hidden_sizes': [5]}, 'train_data': {'global_batch_size': 8}}
}
TEACHER = {'task': {**SMALL['task'], 'model': {'hidden_sizes': [16, 9]}}}


@pytest.fixture(scope='module')
def teacher_folder(tmp_path_factory):
  """The part of a small teacher in a trainer's checkpoint."""
  folder = tmp_path_factory.mktemp('teacher')
  model = shrunk_run.make_task(shrunk_run.make_params('distillation_teacher', TEACHER)).build_model()
  tf.train.Checkpoint(model=model).save(str(folder / 'ckpt'))
  return folder


def student_params(teacher_folder, *changes, **kwargs):
  override = {'task': {'teacher_checkpoint': str(teacher_folder)}}
  return shrunk_run.make_params('distillation', SMALL, override, *changes, **kwargs)


def softmax(logits):
  e = np.exp(logits - logits.max(1, keepdims=True))
  return e / e.sum(1, keepdims=True)


def test_losses_are_those_of_the_papers():
  rng = np.random.default_rng(0)
  student, teacher, hint, features = (rng.normal(0, 3, (6, n)) for n in (10, 10, 4, 4))
  labels = rng.integers(0, 10, 6)
  tensors = (
    {'logits': tf.constant(student), 'hint': tf.constant(hint, tf.float32)},
    {'logits': tf.constant(teacher), 'features': tf.constant(features, tf.float32)},
    tf.constant(labels),
    4.0,
  )
  p, q = softmax(teacher / 4), softmax(student / 4)
  expected = {
    'label': -np.log(softmax(student)[np.arange(6), labels]).mean(),
    'soft_label': 16 * (p * np.log(p / q)).sum(1).mean(),
    'feature': np.mean((hint - features) ** 2),
  }
  for name, loss in losses.LOSSES.items():
    assert float(loss(*tensors)) == pytest.approx(expected[name], rel=1e-5), name


def test_images_are_shifted_by_fractions_of_a_pixel():
  images = np.random.default_rng(0).uniform(size=(3, 64)).astype(np.float32)
  shifts = np.array([[0.0, 0.0], [1.0, -1.0], [0.25, 0.7]], np.float32)
  found = data.shifted(tf.constant(images), tf.constant(shifts)).numpy().reshape(-1, 8, 8)
  for image, shift, result in zip(images.reshape(-1, 8, 8), shifts, found):
    expected = ndimage.shift(np.pad(image, 2), shift, order=1, mode='constant')[2:-2, 2:-2]
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_the_loss_is_the_weighed_sum_of_the_named(teacher_folder):
  weights = {'label': 0.5, 'soft_label': 2.0, 'feature': 3.0}
  task = shrunk_run.make_task(student_params(teacher_folder, {'task': {'losses': weights}}))
  model = task.build_model()
  (batch,) = task.build_inputs(task.config.validation_data).take(1)
  loss, logs = task.forward(batch, model, training=False)
  assert float(loss) == pytest.approx(sum(weight * float(logs[f'{name}_loss']) for name, weight in weights.items()))
  # The teacher is that of the checkpoint, and does not learn.
  reader = tf.train.load_checkpoint(str(teacher_folder / 'ckpt-1'))
  name = 'model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE'
  np.testing.assert_array_equal(task.teacher.weights[0].numpy(), reader.get_tensor(name))
  assert not task.teacher.trainable_variables and model.output['hint'].shape[-1] == 9
  classes = [np.argmax(network(batch['pixels'])['logits'], 1) for network in (task.teacher, model)]
  agreement = np.mean(classes[0] == classes[1])
  assert float(logs['teacher_agreement']) == pytest.approx(agreement)


@pytest.mark.slow
def test_a_student_alone_needs_no_teacher():
  alone = {'task': {'losses': {'label': 1.0, 'soft_label': 0.0}}}
  trainer = shrunk_run.make_trainer(shrunk_run.make_params('distillation', SMALL, alone))
  logs = harness.train(trainer, 1)
  assert trainer.task.teacher is None and logs['label_loss'] == logs['training_loss']


def test_a_missing_teacher_is_reported(tmp_path, teacher_folder):
  with pytest.raises(
    errors.UserError,
    match='task.teacher_checkpoint: the loss soft_label needs a teacher; train '
    'one with python train.py --experiment=distillation_teacher.*, or set task.losses.soft_label=0',
  ):
    shrunk_run.make_task(shrunk_run.make_params('distillation'))
  with pytest.raises(errors.UserError, match=f'task.teacher_checkpoint: {tmp_path}: no checkpoint in this folder'):
    shrunk_run.make_task(student_params(tmp_path)).build_model()
  other = {'task': {'teacher': {'hidden_sizes': [16, 8]}}}
  with pytest.raises(errors.UserError, match=r'^task.teacher_checkpoint: .* has shape \(16, 9\) in it, \(16, 8\) here'):
    shrunk_run.make_task(student_params(teacher_folder, other)).build_model()


@pytest.mark.soak
def test_two_replicas_learn_what_one_does(teacher_folder):
  results = []
  for replicas in ('one', 'two'):
    params = student_params(teacher_folder)
    trainer = shrunk_run.make_trainer(params, replicas)
    logs = harness.train(trainer, 2)
    results.append([logs['soft_label_loss'], logs['label_loss'], *harness.weights_of(trainer)])
  harness.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('replicas, enable_xla', shrunk_run.CONTINUATIONS)
def test_a_restored_run_resumes_bit_for_bit(replicas, enable_xla, teacher_folder, tmp_path):
  changes = {'task': {'max_shift': 1.0, 'losses': {'feature': 1.0}}}
  params = student_params(teacher_folder, changes, enable_xla=enable_xla)
  held = shrunk_run.assert_resumes_bit_for_bit(params, tmp_path, replicas)
  assert not any(value.shape == (64, 16) for value in held.values())  # The teacher is not in it.


@pytest.mark.soak
def test_a_run_with_the_teacher_of_another_reports_losses_and_agreement(tmp_path):
  shrunk_run.run(tmp_path / 'teacher', shrunk_run.make_params('distillation_teacher', TEACHER), mode='train')
  shrunk_run.run(tmp_path, student_params(tmp_path / 'teacher'))
  for event in ('train', 'eval'):
    (last,) = [line for line in small_run.events(tmp_path, event) if line['step'] == 4]
    assert {'label_loss', 'soft_label_loss', 'teacher_agreement', 'accuracy'} <= last.keys()
