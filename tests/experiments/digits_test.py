"""The experiments digits and digits_mlp: data set, task, one step."""

import numpy as np
from official.core import exp_factory
from official.core import task_factory
import pytest
from sklearn import datasets
import tensorflow as tf

from experiments import digits
from experiments import digits_mlp
from experiments.digits import digits_dataset
from official_ext.base import errors
from official_ext.data import handwritten_digits
from official_ext.data import sources
from official_ext.training.config import overrides

EXPERIMENTS = {'digits': digits, 'digits_mlp': digits_mlp}
NUM_TRAIN, NUM_VALIDATION = 1437, 360


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory):
  return str(tmp_path_factory.mktemp('tfds'))


@pytest.fixture(params=sorted(EXPERIMENTS))
def params(request, data_dir):
  params = exp_factory.get_exp_config(request.param)
  params.task.train_data.tfds_data_dir = params.task.validation_data.tfds_data_dir = data_dir
  return params


def test_the_digits_are_those_that_scikit_learn_loads():
  bundled = datasets.load_digits()
  for found, expected in zip(handwritten_digits.load(), (bundled.data, bundled.target), strict=True):
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_builder_holds_every_image_once(data_dir):
  splits = {name: sources.cached(sources.TfdsSource('digits', name, data_dir)) for name in ('train', 'validation')}
  assert {name: len(split) for name, split in splits.items()} == {'train': NUM_TRAIN, 'validation': NUM_VALIDATION}
  images = np.concatenate([split.arrays['image'] for split in splits.values()])
  labels = np.concatenate([split.arrays['label'] for split in splits.values()])
  assert images.shape == (1797, 8, 8, 1) and images.dtype == np.uint8
  bundled = datasets.load_digits()
  expected = sorted((image.astype(np.uint8).tobytes(), label) for image, label in zip(bundled.images, bundled.target))
  assert sorted((image.tobytes(), label) for image, label in zip(images, labels)) == expected
  # A fifth of each class, give or take one.
  share = np.bincount(splits['validation'].arrays['label']) / np.bincount(bundled.target)
  assert abs(share - NUM_VALIDATION / 1797).max() < 1 / np.bincount(bundled.target).min()


def test_stratified_sample_is_seeded():
  labels = np.arange(100) % 4
  first = digits_dataset.stratified_sample(labels, 20, seed=0)
  assert sorted(labels[first]) == sorted(np.arange(20) % 4) and len(set(first)) == 20
  np.testing.assert_array_equal(first, digits_dataset.stratified_sample(labels, 20, seed=0))
  assert set(first) != set(digits_dataset.stratified_sample(labels, 20, seed=1))


@pytest.mark.parametrize(
  'name, field',
  [
    ('digits', 'input_path'),
    ('digits_mlp', 'input_path'),
    ('digits_mlp', 'tfds_name'),
    ('digits_mlp', 'tfds_split'),
    ('digits_mlp', 'tfds_data_dir'),
  ],
)
@pytest.mark.parametrize('data', ['train_data', 'validation_data'])
def test_what_nothing_reads_cannot_be_set(name, field, data):
  with pytest.raises(errors.UserError, match=f'task.{data}.{field}: nothing reads this field'):
    overrides.override(exp_factory.get_exp_config(name), {'task': {data: {field: 'elsewhere'}}})


def test_sizes(params):
  task = task_factory.get_task(params.task)
  assert task.num_examples(params.task.train_data) == NUM_TRAIN
  assert task.num_examples(params.task.validation_data) == NUM_VALIDATION


def test_inputs_model_and_forward_fit(params):
  task = task_factory.get_task(params.task)
  model = task.build_model()
  (batch,) = task.build_inputs(params.task.train_data).take(1)
  pixels = next(value for name, value in batch.items() if name != 'label')
  assert pixels.dtype == tf.float32 and (float(tf.reduce_min(pixels)), float(tf.reduce_max(pixels))) == (0.0, 1.0)
  (accuracy,) = task.build_metrics()
  loss, logs = task.forward(batch, model, training=False)
  # Before training every class has about the same chance.
  assert float(loss) == pytest.approx(np.log(10), abs=0.3)
  labels, logits = logs['accuracy']
  accuracy.update_state(labels, logits)
  assert float(accuracy.result()) == np.mean(np.argmax(logits, -1) == labels.numpy())


def test_derived_steps_train(params):
  task = task_factory.get_task(params.task)
  model, metrics = task.build_model(), task.build_metrics()
  optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
  (batch,) = task.build_inputs(params.task.train_data).take(1)
  step = tf.function(lambda: task.train_step(batch, model, optimizer, metrics)[task.loss])
  losses = [float(step()) for _ in range(60)]
  assert losses[-1] < 0.7 * losses[0]
  logs = task.validation_step(batch, model, metrics)
  assert float(logs[task.loss]) < losses[0]


def test_validation_is_complete(params):
  task = task_factory.get_task(params.task)
  for batch_size, num_batches in ((120, 3), (100, 4)):
    params.task.validation_data.global_batch_size = batch_size
    batches = list(task.build_inputs(params.task.validation_data))
    assert len(batches) == num_batches
    assert sum(len(batch['label']) for batch in batches) == NUM_VALIDATION
