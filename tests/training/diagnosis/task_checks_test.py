"""The mistakes that `official-ext check` finds: a task for each, and sound tasks, where it finds none."""

import inspect
import os
import random
import re
import time
import types

import numpy as np
from official.core import task_factory
import pytest
import tensorflow as tf
import tf_keras

import official_ext
from official_ext.base import config_text
from official_ext.base import errors
from official_ext.base import tracebacks
from official_ext.training.config import parser
from official_ext.training.config import registries
from official_ext.training.diagnosis import dry_run
from official_ext.training.diagnosis import task_checks
import registry_imports  # noqa: F401
from tests import tiers
from tests.model_garden import train_test
from tests.training.loop import harness
from tests.training.loop import small_run

HERE = re.escape('tests/training/diagnosis/task_checks_test.py')
COUNTS = []
NUM_CALLS = 0


def line_of(task_cls, code):
  """The line of this file that holds `code`, inside of the class."""
  lines, first = inspect.getsourcelines(task_cls)
  (number,) = [number for number, line in enumerate(lines) if code in line]
  return first + number


@pytest.fixture
def find(monkeypatch):
  """find(task_cls, **trainer) -> the findings about it. `data` makes the examples of both splits."""

  def find(task_cls, num_examples=small_run.NUM_EXAMPLES, **trainer):
    params = small_run.make_params(**trainer)
    data = harness.make_data(num_examples), harness.make_data(24, seed=1)
    monkeypatch.setattr(task_factory, 'get_task', lambda config, logging_dir='': task_cls(config, *data))
    return task_checks.find_in_task(params)

  return find


class Sound(small_run.SmallTask):
  """Without a mistake. Its tf.data pipelines are built quickly."""

  def build_inputs(self, params, input_context=None):
    return pipeline(self, params, repeat=params.is_training)


class UsesWholeLogits(Sound):
  """Its loss has an element for each example."""

  def forward(self, inputs, model, training):
    x, y = inputs
    logits = model(x, training=training)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits), {'accuracy': (y, logits)}


class OwnStep(Sound):
  """The same, in a custom step."""

  def train_step(self, inputs, model, optimizer, metrics=None):
    with tf.GradientTape() as tape:
      losses = tf.nn.sparse_softmax_cross_entropy_with_logits(inputs[1], model(inputs[0], training=True))
    optimizer.apply_gradients(zip(tape.gradient(losses, model.trainable_variables), model.trainable_variables))
    metrics[0].update_state(inputs[1], model(inputs[0]))
    return {self.loss: losses}


class ForgetsMetric(Sound):
  """Nothing updates its second metric."""

  def build_metrics(self, training=True):
    return [*super().build_metrics(training), tf_keras.metrics.Mean('confidence')]


class HasUnusedLayer(Sound):
  """The outputs of one layer go nowhere."""

  @staticmethod
  def model_fn():
    inputs = tf_keras.Input((harness.NUM_FEATURES,))
    logits = tf_keras.layers.Dense(harness.NUM_CLASSES)(inputs)
    unused = tf_keras.layers.Dense(2, name='unused')(inputs)
    return tf_keras.Model(inputs, [logits, unused])

  def forward(self, inputs, model, training):
    logits, _ = model(inputs[0], training=training)
    return super().forward(inputs, lambda *args, **kwargs: logits, training)


class FloatLabels(Sound):
  """Its class numbers were scaled with the rest."""

  def build_inputs(self, params, input_context=None):
    return super().build_inputs(params, input_context).map(lambda x, y: (x, tf.cast(y, tf.float32) / 2))

  def forward(self, inputs, model, training):
    x, y = inputs
    logits = model(x, training=training)
    loss = tf.reduce_mean(tf_keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
    return loss, {'accuracy': (y, logits)}


class ByteLabels(Sound):
  """TensorFlow's own loss takes int32 and int64 alone."""

  def build_inputs(self, params, input_context=None):
    return super().build_inputs(params, input_context).map(lambda x, y: (x, tf.cast(y, tf.uint8)))


class IntegerTargets(Sound):
  """A difference of an integer and a float."""

  def forward(self, inputs, model, training):
    x, y = inputs
    logits = model(x, training=training)
    return tf.reduce_mean(tf.square(logits[:, 0] - y)), {'accuracy': (y, logits)}


class Prints(Sound):
  """Says its loss."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    print('loss', loss)
    return loss, logs


class Appends(Sound):
  """Keeps its losses in a list."""

  def __init__(self, *args):
    super().__init__(*args)
    self.history = []

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    self.history.append(loss)
    return loss, logs


class AppendsToGlobal(Sound):
  """Keeps its losses in a list of its module."""

  def forward(self, inputs, model, training):
    COUNTS.append(1)
    return super().forward(inputs, model, training)


class CountsGlobally(Sound):
  """Counts its steps in its module."""

  def forward(self, inputs, model, training):
    global NUM_CALLS
    NUM_CALLS += 1
    return super().forward(inputs, model, training)


class Counts(Sound):
  """Counts its steps in Python."""

  steps = 0

  def forward(self, inputs, model, training):
    self.steps += 1
    return super().forward(inputs, model, training)


class NumpyNoise(Sound):
  """Draws noise on the host."""

  def forward(self, inputs, model, training):
    noise = np.random.normal(size=harness.NUM_FEATURES).astype(np.float32)
    return super().forward((inputs[0] + noise, inputs[1]), model, training)


class GeneratorNoise(Sound):
  """The same with a custom generator."""

  def __init__(self, *args):
    super().__init__(*args)
    self.rng = np.random.default_rng(0)

  def forward(self, inputs, model, training):
    noise = self.rng.normal(size=harness.NUM_FEATURES).astype(np.float32)
    return super().forward((inputs[0] + noise, inputs[1]), model, training)


class PythonNoise(Sound):
  """The same with Python's random."""

  def forward(self, inputs, model, training):
    scale = random.uniform(0.9, 1.1)
    return super().forward((inputs[0] * scale, inputs[1]), model, training)


class ReadsClock(Sound):
  """Logs the time."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss, {**logs, 'time': tf.constant(time.time(), tf.float32)}


class CallsNumpy(Sound):
  """Needs a value on the host."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss, {**logs, 'rounded': tf.constant(round(loss.numpy(), 2))}


class GrowingBatches(Sound):
  """The number of features with which an example is padded varies."""

  def build_inputs(self, params, input_context=None):
    batches = super().build_inputs(params, input_context).enumerate()
    return batches.map(lambda i, batch: ((batch[0], tf.zeros([small_run.BATCH_SIZE, 1 + i % 2])), batch[1]))

  def forward(self, inputs, model, training):
    return super().forward((inputs[0][0], inputs[1]), model, training)


def pipeline(task, params, repeat):
  x, y = task.data if params.is_training else task.validation_data
  dataset = tf.data.Dataset.from_tensor_slices((x, y))
  return (dataset.repeat() if repeat else dataset).batch(params.global_batch_size, drop_remainder=True)


class TrainingEnds(Sound):
  """One epoch, and no more."""

  def build_inputs(self, params, input_context=None):
    return pipeline(self, params, repeat=False)


class FilteredTrainingEnds(TrainingEnds):
  """The same, and tf.data does not know how much there is."""

  def build_inputs(self, params, input_context=None):
    return super().build_inputs(params).filter(lambda x, y: True)


class EndlessValidation(Sound):
  """Repeats both splits."""

  def build_inputs(self, params, input_context=None):
    return pipeline(self, params, repeat=True)


class EndlessFilteredValidation(EndlessValidation):
  """The same, and tf.data does not know."""

  def build_inputs(self, params, input_context=None):
    return super().build_inputs(params).filter(lambda x, y: True)


class EndlessGeneratedValidation(Sound):
  """A generator that begins again."""

  def num_examples(self, params):
    return None

  def build_inputs(self, params, input_context=None):
    if params.is_training:
      return pipeline(self, params, repeat=True)
    batches = list(pipeline(self, params, repeat=False).as_numpy_iterator())

    def generate():
      while True:
        yield from batches

    return tf.data.Dataset.from_generator(
      generate, output_signature=tf.data.DatasetSpec.from_value(pipeline(self, params, repeat=False)).element_spec
    )


class AppliesNothing(Sound):
  """Computes gradients, and leaves it at that."""

  def train_step(self, inputs, model, optimizer, metrics=None):
    return self.validation_step(inputs, model, metrics)


class Frozen(Sound):
  """Has nothing to train."""

  @staticmethod
  def model_fn():
    model = harness.linear_model()
    model.trainable = False
    return model


class NothingToPrefer(Sound):
  """Its examples, which it draws itself, happen to teach nothing."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return 0.0 * loss, {**logs, 'differences': tf.constant(0.0)}

  def why_no_update(self, logs):
    return '' if logs['differences'] else 'all are alike'


class BeginsElsewhere(Sound):
  """Learns from where `initialize` has brought it, and nothing from where its model is made."""

  @staticmethod
  def model_fn():
    model = harness.linear_model()
    model.gate = tf.Variable(0.0, trainable=False)
    return model

  def initialize(self, model):
    model.gate.assign(1.0)

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return model.gate * loss, logs


class CannotBegin(Sound):
  """There are not weights to begin with."""

  def initialize(self, model):
    raise errors.UserError('task.init_checkpoint: is not there')


class LossOfPredictions(Sound):
  """No gradient goes through argmax."""

  def forward(self, inputs, model, training):
    logits = model(inputs[0], training=training)
    wrong = tf.not_equal(tf.argmax(logits, -1, tf.int32), inputs[1])
    return tf.reduce_mean(tf.cast(wrong, tf.float32)), {'accuracy': (inputs[1], logits)}


class ValidatesOnTraining(Sound):
  """Takes the same examples for both."""

  def build_inputs(self, params, input_context=None):
    self.validation_data = self.data
    return super().build_inputs(params, input_context)


class LabelsFromOne(Sound):
  """Classes are counted from 1, and the largest comes late."""

  def build_inputs(self, params, input_context=None):
    batches = super().build_inputs(params, input_context).enumerate()
    return batches.map(lambda i, batch: (batch[0], batch[1] + tf.cast(i >= 5, tf.int32)))


class NegativeLabels(Sound):
  """Some examples have no label, and nothing masks them."""

  def build_inputs(self, params, input_context=None):
    unlabelled = 0 if params.is_training else -1
    return super().build_inputs(params, input_context).map(lambda x, y: (x, tf.where(y == unlabelled, -1, y)))


class MasksNegativeLabels(NegativeLabels):
  """Here the loss leaves them out."""

  def forward(self, inputs, model, training):
    x, y = inputs
    logits, mask = model(x, training=training), tf.cast(y >= 0, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(y, 0), logits)
    return tf.math.divide_no_nan(tf.reduce_sum(mask * losses), tf.reduce_sum(mask)), {
      'accuracy': (tf.maximum(y, 0), logits, mask)
    }


class EncodesTooFew(Sound):
  """One-hot vectors of the largest class are zeros, without an error."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    weights = tf.reduce_sum(tf.one_hot(inputs[1], harness.NUM_CLASSES - 1), -1)
    return loss + tf.reduce_mean(weights), logs


class FailsOnTheLastBatch(Sound):
  """Takes the size of a batch from the configuration."""

  def build_inputs(self, params, input_context=None):
    dataset = tf.data.Dataset.from_tensor_slices(self.data if params.is_training else self.validation_data)
    return dataset.repeat().batch(8, drop_remainder=True) if params.is_training else dataset.skip(3).batch(8)

  def forward(self, inputs, model, training):
    x = tf.reshape(inputs[0], [8, harness.NUM_FEATURES])
    return super().forward((x, inputs[1]), model, training)


class FailsOnTheLastTrainingBatch(FailsOnTheLastBatch):
  """The same where each epoch of the training data ends with a smaller batch."""

  def build_inputs(self, params, input_context=None):
    dataset = tf.data.Dataset.from_tensor_slices(self.data if params.is_training else self.validation_data)
    return dataset.skip(3).batch(8).repeat() if params.is_training else dataset.batch(8)


def dropout_model():
  inputs = tf_keras.Input((harness.NUM_FEATURES,))
  hidden = tf_keras.layers.Dropout(0.5, name='drop')(tf_keras.layers.Dense(8)(inputs))
  outputs = tf_keras.layers.Dense(harness.NUM_CLASSES)(tf_keras.layers.BatchNormalization(name='norm')(hidden))
  return tf_keras.Model(inputs, outputs)


class UsesDropout(Sound):
  """As it should be."""

  model_fn = staticmethod(dropout_model)


class ForgetsTraining(UsesDropout):
  """Its layers think that they are in an evaluation."""

  def forward(self, inputs, model, training):
    logits = model(inputs[0])
    return super().forward(inputs, lambda *args, **kwargs: logits, training)


class NeverTrains(UsesDropout):
  """The same, said aloud."""

  def forward(self, inputs, model, training):
    logits = model(inputs[0], training=False)
    return super().forward(inputs, lambda *args, **kwargs: logits, training)


class AlwaysTrains(UsesDropout):
  """In evaluations too."""

  def forward(self, inputs, model, training):
    logits = model(inputs[0], training=True)
    return super().forward(inputs, lambda *args, **kwargs: logits, training)


class HasTeacher(UsesDropout):
  """A part that is not trained may be called as it likes."""

  def build_model(self):
    self.teacher = dropout_model()
    return super().build_model()

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss + tf.reduce_mean(tf.square(self.teacher(inputs[0]))), logs


class LogOfZero(Sound):
  """A probability that has become 0."""

  def forward(self, inputs, model, training):
    p = tf.nn.relu(tf.nn.softmax(1e4 * model(inputs[0], training=training)))
    return -tf.reduce_mean(tf.math.log(tf.gather(p, inputs[1], batch_dims=1))), {'accuracy': (inputs[1], p)}


class DividesByZero(Sound):
  """A mean over nothing."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    mask = tf.cast(inputs[1] > 100, tf.float32)
    return loss * tf.reduce_sum(mask) / tf.reduce_sum(mask), logs


class RootOfZero(Sound):
  """Finite, and its gradient is not."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    weights = model.trainable_variables[0]
    return loss + tf.sqrt(tf.reduce_sum(tf.square(weights - tf.stop_gradient(weights)))), logs


class LogOfSoftmax(Sound):
  """Goes well until a probability is 0."""

  def forward(self, inputs, model, training):
    p = tf.nn.softmax(model(inputs[0], training=training))
    logs = tf.math.log(p)
    return -tf.reduce_mean(tf.gather(logs, inputs[1], batch_dims=1)), {'accuracy': (inputs[1], p)}


class SumsTheLoss(Sound):
  """Forgets to divide."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss * tf.cast(tf.shape(inputs[1])[0], tf.float32), logs


class BrokenExamples(Sound):
  """A feature that is missing in some examples."""

  def build_inputs(self, params, input_context=None):
    limit = 1.5 if params.is_training else np.inf
    return super().build_inputs(params, input_context).map(lambda x, y: ((x, tf.where(x > limit, np.nan, x)), y))

  def forward(self, inputs, model, training):
    return super().forward((inputs[0][0], inputs[1]), model, training)


class SortedClasses(Sound):
  """One class after the other."""

  def build_inputs(self, params, input_context=None):
    if params.is_training:
      order = np.argsort(self.data[1], kind='stable')
      self.data = tuple(part[order] for part in self.data)
    return super().build_inputs(params, input_context)


# The task, its level, the message, and the code whose line is reported or another place.
BROKEN = [
  (UsesWholeLogits, 'error', r'the loss is not a scalar, its shape is \[8\]; return tf.reduce_mean', 'def forward'),
  (OwnStep, 'error', r'the loss is not a scalar, its shape is \[8\]', 'def train_step'),
  (
    ForgetsMetric,
    'error',
    "train_step never updates the metric confidence; let forward log 'confidence'",
    'def build_metrics',
  ),
  (HasUnusedLayer, 'warning', 'the gradient of unused/kernel:0, unused/bias:0 is None', None),
  (FloatLabels, 'error', 'class numbers come as float32, and not all of them are whole', 'sparse_categorical'),
  (ByteLabels, 'error', 'dtypes do not fit: .*uint8.*; cast the labels', None),
  (IntegerTargets, 'error', 'dtypes do not fit: .*; cast the labels', 'tf.square'),
  (Prints, 'warning', 'print is called in the step: a compiled step runs Python once', "print('loss'"),
  (Appends, 'warning', 'self.history is changed by the step', 'self.history.append'),
  (AppendsToGlobal, 'warning', r'\S+COUNTS.append is called in the step', 'COUNTS.append'),
  (CountsGlobally, 'warning', r'\S+NUM_CALLS is changed by the step', None),
  (Counts, 'warning', 'self.steps is changed by the step', 'self.steps += 1'),
  (NumpyNoise, 'warning', 'np.random.normal is called in the step.*make_seed', 'np.random.normal'),
  (GeneratorNoise, 'warning', 'self.rng is changed by the step.*make_seed', 'self.rng.normal'),
  (PythonNoise, 'warning', 'random.uniform is called in the step', 'random.uniform'),
  (ReadsClock, 'warning', 'the clock is read in the step', 'time.time()'),
  (CallsNumpy, 'error', 'numpy needs the value of a tensor, which a compiled step has not', 'loss.numpy()'),
  (GrowingBatches, 'warning', r'the shape of \S+ changes from batch to batch \(\[8, 1\], \[8, 2\]', 'task.train_data'),
  (TrainingEnds, 'error', 'the data end after 8 batches, and training takes 12; .*repeat', 'task.train_data'),
  (FilteredTrainingEnds, 'error', 'the data end after 8 batches, and training takes 12', 'task.train_data'),
  (EndlessValidation, 'error', 'the data never end, and trainer.validation_steps is -1', 'task.validation_data'),
  (EndlessFilteredValidation, 'error', 'the data never end', 'task.validation_data'),
  (EndlessGeneratedValidation, 'error', 'the data begin again and again', 'task.validation_data'),
  (AppliesNothing, 'error', 'a step does not change the weights: it hands no gradients', 'def train_step'),
  (Frozen, 'error', 'a step does not change the weights: the model has no trainable weights', None),
  (NothingToPrefer, 'warning', 'a step does not change the weights: all are alike; a run learns nothing until', None),
  (LossOfPredictions, 'error', 'a step does not change the weights: all gradients are None', None),
  (
    ValidatesOnTraining,
    'warning',
    '64 of the first 64 examples are among the first 64 of task.train_data',
    'task.validation_data',
  ),
  (
    LabelsFromOne,
    'error',
    r'1: 3 is outside of \[0, 3\) \(tests/training/loop/harness.py:\d+\); count from 0',
    'task.train_data',
  ),
  (NegativeLabels, 'error', r'1: -1 is outside of \[0, 3\)', 'task.train_data'),
  (EncodesTooFew, 'warning', 'class numbers up to 2 are one-hot encoded with 2 places', 'tf.one_hot'),
  (
    FailsOnTheLastBatch,
    'error',
    'the last batch of task.validation_data has 5 examples in place of 8, and the step '
    'fails on it: InvalidArgumentError: Input to reshape',
    'tf.reshape',
  ),
  (ForgetsTraining, 'warning', 'drop, norm are called without `training` in train_step', 'model(inputs[0])'),
  (NeverTrains, 'warning', 'drop, norm are called with training=False in train_step', 'training=False)'),
  (AlwaysTrains, 'warning', 'drop, norm are called with training=True in validation_step', 'training=True)'),
  (
    LogOfZero,
    'error',
    'the loss in train_step is not finite: the first operation .* is Log in no layer, forward; use tf.math.xlogy',
    'tf.math.log',
  ),
  (
    DividesByZero,
    'error',
    'the loss in train_step is not finite: .* RealDiv .*; use tf.math.divide_no_nan',
    'tf.reduce_sum(mask) /',
  ),
  (
    RootOfZero,
    'error',
    'the gradient of dense/kernel:0 in train_step is not finite: .*; add a small number under',
    'tf.sqrt',
  ),
  (LogOfSoftmax, 'warning', 'this is the logarithm of a softmax.*use tf.nn.log_softmax', 'tf.math.log'),
  (SumsTheLoss, 'warning', 'the loss is the sum over the examples of a batch', 'def forward'),
  (BrokenExamples, 'warning', r'0/1 is NaN or infinite in \d+ of the first \d+ examples', 'task.train_data'),
  (
    SortedClasses,
    'warning',
    r'the first \d+ examples are sorted by 1: first all with 0, then all with 1',
    'task.train_data',
  ),
]


@pytest.mark.parametrize('task_cls, level, what, place', BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_a_mistake_is_found(find, task_cls, level, what, place, capsys):
  (finding, *others) = find(task_cls, runtime={'enable_xla': 'auto'})
  assert finding.level == level and re.search(what, f'{finding.what}; {finding.remedy}'), finding
  assert '\n' not in str(finding)
  if place and place.startswith('task.'):
    assert finding.where == place
  elif place:
    assert re.fullmatch(rf'{HERE}:{line_of(task_cls, place)} \(\S+\)', finding.where), finding.where
  # The same mistake may show in the validation step too, and nothing else does.
  kinds = {re.sub('train_step|validation_step', '', other.what) for other in others}
  assert kinds <= {re.sub('train_step', '', finding.what)} and len(others) <= 1, others


def test_whose_code_is_looked_at():
  assert tracebacks.is_users(__file__) and tracebacks.is_users('/home/me/my_rings/src/my_rings/task.py')
  assert not any(
    map(
      tracebacks.is_users,
      (dry_run.__file__, np.__file__, random.__file__, '<string>', '/other/lib/site-packages/tensorflow/x.py'),
    )
  )
  # The shipped experiments are examples: their code is looked at as if it were the user's.
  assert tracebacks.is_users(os.path.join(os.path.dirname(official_ext.__file__), 'experiments/digits/task.py'))


def test_a_sound_task(find):
  assert find(small_run.SmallTask) == [] and find(Sound) == []
  assert find(Sound, validation_steps=2) == []


@tiers.parametrize('task_cls', [MasksNegativeLabels, UsesDropout, HasTeacher], fast=1)
def test_what_may_look_like_a_mistake_and_is_none(find, task_cls):
  assert find(task_cls) == []


def test_steps_begin_where_a_run_does(find, monkeypatch):
  assert find(BeginsElsewhere) == []
  assert find(CannotBegin) == []
  with pytest.raises(errors.UserError, match='^task.init_checkpoint: is not there$'):
    run_dry(monkeypatch, CannotBegin)


def test_a_training_batch_with_fewer_examples_is_tried_too(find):
  (finding,) = find(FailsOnTheLastTrainingBatch, runtime={'enable_xla': False})
  assert finding.level == 'error'
  assert 'the last batch of task.train_data has 5 examples in place of 8, and the step fails on it' in finding.what


def test_a_last_batch_that_is_never_evaluated_may_not_fit(find):
  assert find(FailsOnTheLastBatch, validation_steps=2) == []


def test_shapes_that_change_are_none_of_xlas_where_it_is_off(find):
  assert find(GrowingBatches, runtime={'enable_xla': False}) == []
  (finding,) = find(GrowingBatches, runtime={'enable_xla': True})
  assert 'XLA compiles the step anew for each' in finding.what
  (finding,) = find(GrowingBatches, runtime={'enable_xla': 'auto'})
  assert 'enable_xla=auto compiles the step for the first 16 on a GPU, and for none on a CPU' in finding.what


def test_a_validation_that_is_bounded_may_have_data_without_end(find):
  assert find(EndlessFilteredValidation, validation_steps=2) == []


def test_training_as_long_as_its_data(find):
  assert find(TrainingEnds, train_steps=8) == []
  (finding,) = find(TrainingEnds, train_steps=5, gradient_accumulation_steps=2)
  assert 'end after 8 batches, and training takes 10' in finding.what


def test_a_warm_up_from_zero_is_none(find):
  """The first step of a warm-up has the learning rate 0: it changes nothing."""
  schedule = {
    'optimizer': {'type': 'sgd'},
    'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.1}},
    'warmup': {'type': 'linear', 'linear': {'warmup_steps': 5, 'warmup_learning_rate': 0.0}},
  }
  assert find(Sound, optimizer_config=schedule) == []
  schedule['learning_rate']['constant']['learning_rate'] = 0.0
  (finding,) = find(Sound, optimizer_config=schedule)
  assert 'the learning rate is 0 at step 6; mend trainer.optimizer_config' in str(finding)


def test_an_error_that_is_none_of_these_is_left_to_the_dry_run(find):

  class Broken(Sound):
    def forward(self, inputs, model, training):
      raise RuntimeError('this forward is broken')

  assert find(Broken) == []


class MeanOfNumpy(Sound):
  """NumPy takes a value that runs eagerly, and none of a compiled step."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    return loss, {**logs, 'offset': tf.constant(np.float32(np.mean(logs['logit_mean'])))}


def run_dry(monkeypatch, task_cls):
  data = harness.make_data(small_run.NUM_EXAMPLES), harness.make_data(24, seed=1)
  monkeypatch.setattr(task_factory, 'get_task', lambda config, logging_dir='': task_cls(config, *data))
  dry_run.run(small_run.make_params())


def test_the_dry_run_names_what_only_a_trace_shows(monkeypatch):
  with pytest.raises(errors.UserError) as info:
    run_dry(monkeypatch, MeanOfNumpy)
  line = line_of(MeanOfNumpy, 'np.mean')
  assert re.match(rf'{HERE}:{line} \(\S*forward\): the value of a tensor is needed', str(info.value))
  assert '\n' not in str(info.value)


@pytest.mark.slow
def test_the_dry_run_prints_warnings_and_continues(monkeypatch, capsys):
  run_dry(monkeypatch, Counts)
  lines = capsys.readouterr().out.splitlines()
  (warning,) = [line for line in lines if line.startswith('warning')]
  assert 'self.steps is changed by the step' in warning
  assert [line for line in lines if line.startswith('checkpoint')]


def test_every_error_is_a_line(monkeypatch, capsys):

  class Both(ForgetsMetric, UsesWholeLogits):
    """Two errors."""

  with pytest.raises(errors.UserError) as info:
    run_dry(monkeypatch, Both)
  lines = [*capsys.readouterr().err.splitlines(), f'error: {info.value}']
  assert all(line.startswith('error: ') for line in lines)
  assert {'the loss is not a scalar', 'never updates the metric'} <= {
    words for words in ('the loss is not a scalar', 'never updates the metric') if any(words in line for line in lines)
  }


@tiers.parametrize(
  'experiment, settings',
  [
    ('digits_mlp', ()),
    ('digits', ('task.train_data.tfds_data_dir={0}', 'task.validation_data.tfds_data_dir={0}')),
    *(
      pytest.param(name, (), marks=pytest.mark.soak)
      for name in ('contrastive', 'distillation_teacher', 'gan', 'meta_learning', 'multi_task', 'reinforcement')
    ),
  ],
  fast=1,
)
def test_experiments_are_sound(experiment, settings, tmp_path):
  flags = types.SimpleNamespace(experiment=experiment, set=[setting.format(tmp_path) for setting in settings])
  assert task_checks.find_in_task(parser.parse_configuration(flags)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
  'experiment', ['resnet_imagenet', pytest.param('bert/sentence_prediction', marks=pytest.mark.soak)]
)
def test_model_gardens_experiments_are_sound(experiment, tmp_path):
  """On files of the kind that it reads. BERT's has a weight without a gradient, which is Model Garden's to know."""
  registries.import_experiments(experiment=experiment)
  overrides = train_test.OVERRIDES[experiment](tmp_path)
  params = parser.parse_configuration(
    types.SimpleNamespace(experiment=experiment, params_override=config_text.dump(overrides))
  )
  assert task_checks.find_in_task(params) == []
