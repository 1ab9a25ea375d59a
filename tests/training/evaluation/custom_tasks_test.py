"""The evaluation of custom tasks: figures by closed forms, kinds by labels and losses, and the worst examples."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import official_ext as ext
from official_ext.base import errors
from official_ext.training.evaluation import custom_tasks
from official_ext.training.trained import trained_model

RNG = np.random.default_rng(0)


class Through(ext.SupervisedTask):
  """The outputs are the features."""

  class_names = ()

  def __init__(self, outputs, labels, loss):
    super().__init__(ext.SupervisedConfig())
    self.config.validation_data.global_batch_size = 4
    self.given, self.loss_function = (outputs, labels), loss

  def examples(self, is_training):
    return self.given

  def build_model(self):
    return tf_keras.Sequential([tf_keras.layers.Activation('linear')])

  def build_loss(self):
    return self.loss_function


def evaluate(outputs, labels, loss, num_mistakes=3, cls=Through):
  task = cls(np.asarray(outputs, np.float32), np.asarray(labels), loss)
  params = ext.supervised_experiment(task.config)
  trained = trained_model.TrainedModel(task.build_model(), task, params, '', 'raw')
  return custom_tasks.evaluate(trained, custom_tasks.find_data(params), num_mistakes)


@pytest.mark.parametrize('shape', [(7,), (7, 1)])
def test_figures_of_a_regression(shape):
  labels = RNG.normal(size=7).astype(np.float32)
  outputs = labels + np.array([0.5, -1, 0, 0, 0, 0, 3], np.float32)
  result = evaluate(outputs[:, np.newaxis], labels.reshape(shape), tf_keras.losses.MeanSquaredError())
  spread = np.sum((labels - labels.mean()) ** 2)
  expected = {
    'examples': 7,
    'mae': 4.5 / 7,
    'rmse': np.sqrt((0.25 + 1 + 9) / 7),
    'r2': 1 - 10.25 / spread,
    'median_absolute_error': 0,
    'mean_error': 2.5 / 7,
    'max_error': 3,
  }
  assert result.figures == pytest.approx(expected, abs=2e-5)
  (table,) = result.tables
  assert table.header == ('example', 'label', 'predicted', 'error', 'features')
  assert [row[0] for row in table.rows] == [6, 1, 0] and [row[3] for row in table.rows] == ['3', '-1', '0.5']
  assert list(result.pictures) == ['predictions'] and result.pictures['predictions'].shape == (480, 480, 3)


def test_several_outputs_have_a_row_each():
  labels = np.zeros([5, 2], np.float32)
  result = evaluate(labels + [1, 3], labels, tf_keras.losses.MeanAbsoluteError())
  assert result.figures['mae'] == 2 and result.figures['r2'] is None
  assert [each['mae'] for each in result.figures['outputs']] == [1, 3]
  assert [table.title for table in result.tables] == ['Outputs', 'Mistakes']


LABELS = np.array([0, 1, 2, 2, 1, 0])
PROBABILITIES = np.array(
  [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.6, 0.2, 0.2], [0, 0.1, 0.9], [0.1, 0.05, 0.85], [1, 0, 0]]
)
LOGITS = np.log(np.maximum(PROBABILITIES, 1e-13))
SPARSE, ONE_HOT = tf_keras.losses.SparseCategoricalCrossentropy, tf_keras.losses.CategoricalCrossentropy


@pytest.mark.parametrize(
  ('outputs', 'labels', 'loss'),
  [
    (LOGITS, LABELS, SPARSE(from_logits=True)),
    (LOGITS, LABELS[:, np.newaxis], SPARSE(from_logits=True)),
    (np.exp(LOGITS), LABELS, SPARSE()),
    (LOGITS, LABELS.astype(np.float32), SPARSE(from_logits=True)),
    (LOGITS, np.eye(3, dtype=np.float32)[LABELS], ONE_HOT(from_logits=True)),
    (LOGITS, LABELS, lambda labels, logits: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)),
  ],
)
def test_figures_of_a_classification(outputs, labels, loss):
  result = evaluate(outputs, labels, loss)
  assert result.figures['accuracy'] == pytest.approx(4 / 6, abs=1e-6)
  assert result.figures['confusion_matrix'] == [[2, 0, 0], [0, 1, 1], [1, 0, 1]]
  assert result.figures['classes']['2'] == {'precision': 0.5, 'recall': 0.5, 'f1': 0.5, 'examples': 2}
  assert result.figures['log_loss'] == pytest.approx(-np.mean(np.log([0.7, 0.8, 0.2, 0.9, 0.05, 1])), abs=1e-5)
  classes, mistakes = result.tables
  assert [row[:4] for row in mistakes.rows] == [[4, '1', '2', 0.85], [2, '2', '0', 0.6]]
  assert list(result.pictures) == ['confusion_matrix', 'calibration']


@pytest.mark.parametrize('from_logits', [False, True])
def test_two_classes_from_one_output(from_logits):
  positive = np.array([0.9, 0.2, 0.7, 0.4])
  outputs = np.log(positive / (1 - positive)) if from_logits else positive
  loss = tf_keras.losses.BinaryCrossentropy(from_logits=from_logits)

  class Named(Through):
    class_names = ('no', 'yes')

  result = evaluate(outputs[:, np.newaxis], np.array([1, 0, 0, 1]), loss, cls=Named)
  assert result.figures['accuracy'] == 0.5 and list(result.figures['classes']) == ['no', 'yes']
  assert [row[1:3] for row in result.tables[1].rows] == [['no', 'yes'], ['yes', 'no']]


def test_the_same_integers_are_a_regression_with_its_loss():
  result = evaluate([[1.0], [2.0]], [1, 4], tf_keras.losses.MeanSquaredError())
  assert result.figures['mae'] == 1


def test_outputs_that_are_not_finite_are_the_worst():
  result = evaluate([[1.0], [np.nan], [3.0]], np.array([1, 2, 1], np.float32), tf_keras.losses.MeanSquaredError())
  assert result.figures['not_finite'] == 1 and result.figures['max_error'] == 2
  assert [row[0] for row in result.tables[0].rows] == [1, 2, 0]


def test_any_task_that_logs_labels_and_outputs():
  class Own(Through):
    """Its `forward` is its own."""

    def forward(self, inputs, model, training):
      logits = model(inputs['features'])
      loss = tf.nn.sparse_softmax_cross_entropy_with_logits(inputs['labels'], logits)
      return tf.reduce_mean(loss), {'margin': tf.reduce_max(logits), 'accuracy': (inputs['labels'], logits)}

  assert evaluate(LOGITS, LABELS, None, cls=Own).figures['accuracy'] == pytest.approx(4 / 6, abs=1e-6)


def test_refusals():
  class Silent(Through):
    def forward(self, inputs, model, training):
      return tf.reduce_mean(model(inputs['features'])), {}

  with pytest.raises(errors.UserError, match='^Silent.forward: logs no tuple .labels, outputs. for a metric'):
    evaluate(LOGITS, LABELS, None, cls=Silent)
  with pytest.raises(errors.UserError, match=r'^Through: labels \[6, 1, 3\] of float32 .* neither a regression nor'):
    evaluate(LOGITS[:, np.newaxis], LOGITS[:, np.newaxis].astype(np.float32), tf_keras.losses.MeanSquaredError())
  params = ext.supervised_experiment(ext.SupervisedConfig())
  with pytest.raises(errors.UserError, match='^--on: SupervisedConfig reads no prepared folder; leave the flag out$'):
    custom_tasks.find_data(params, on='folder')


def test_sigmoid_cross_entropies_are_classifications():
  positive = np.array([0.9, 0.2, 0.7, 0.4])
  logits = np.log(positive / (1 - positive))[:, np.newaxis]
  losses = (
    tf.nn.sigmoid_cross_entropy_with_logits,
    functools.partial(tf_keras.losses.binary_crossentropy, from_logits=True),
  )
  for loss in losses:
    result = evaluate(logits, np.array([1, 0, 0, 1], np.float32), loss)
    assert result.figures['log_loss'] == pytest.approx(-np.mean(np.log([0.9, 0.8, 0.3, 0.4])), abs=1e-5)


@pytest.mark.parametrize(
  ('outputs', 'labels', 'loss', 'message'),
  [
    # Several labels of an example. The second was a softmax over logits of sigmoids.
    (LOGITS, [[1, 1, 0]] * 6, tf_keras.losses.BinaryCrossentropy(from_logits=True), 'build_loss: BinaryCrossentropy'),
    (LOGITS, [[1, 0, 0]] * 6, tf_keras.losses.BinaryFocalCrossentropy(), 'build_loss: BinaryFocalCrossentropy'),
    (
      LOGITS,
      np.eye(3, dtype=np.float32)[LABELS],
      tf.nn.sigmoid_cross_entropy_with_logits,
      'build_loss: sigmoid_cross_entropy_with_logits',
    ),
    (LOGITS, [[1, 1, 0]] * 6, lambda labels, outputs: outputs[:, 0], 'labels are 0 and 1'),
    # A loss that is unknown.
    ([[1.0], [2.0]], [0, 1], lambda labels, outputs: outputs, 'labels are 0 and 1'),
    ([[1.0], [2.0]], [True, False], lambda labels, outputs: outputs, 'labels are 0 and 1'),
    ([[1.0], [2.0]], [0.0, 1.0], tf_keras.losses.Hinge(), 'build_loss: Hinge'),
    ([[1.0], [2.0]], [0, 3], SPARSE(), 'build_loss: SparseCategoricalCrossentropy'),
  ],
)
def test_classifications_are_never_regressions_of_logits(outputs, labels, loss, message):
  with pytest.raises(errors.UserError, match=f'^Through[.:] ?{message}'):
    evaluate(outputs, labels, loss)


class Plain(ext.Task):
  """One output, and a loss within `forward`."""

  class_names = ()

  def __init__(self, outputs, labels, loss):
    super().__init__(ext.SupervisedConfig())
    self.config.validation_data.global_batch_size = 4
    self.given = outputs, labels
    if loss is not None:
      self.build_loss = lambda: loss

  def build_model(self):
    return tf_keras.Sequential([tf_keras.layers.Activation('linear')])

  def build_inputs(self, params, input_context=None):
    return tf.data.Dataset.from_tensor_slices(self.given).batch(params.global_batch_size)

  def forward(self, inputs, model, training):
    x, y = inputs
    logits = model(x)
    loss = tf_keras.losses.binary_crossentropy(tf.cast(y, tf.float32)[:, tf.newaxis], logits, from_logits=True)
    return tf.reduce_mean(loss), {'accuracy': (y, logits)}


def test_a_plain_task_of_two_classes_states_its_loss():
  logits, labels = [[2.0], [-1.0], [-3.0]], [1, 0, 1]
  with pytest.raises(
    errors.UserError, match='^Plain: labels are 0 and 1, and the loss is unknown; let build_loss return'
  ):
    evaluate(logits, labels, None, cls=Plain)
  result = evaluate(logits, labels, tf_keras.losses.BinaryCrossentropy(from_logits=True), cls=Plain)
  assert result.figures['accuracy'] == pytest.approx(2 / 3, abs=1e-6)
  assert evaluate([[2.0], [-1.0]], [1, 0], tf_keras.losses.Huber(), cls=Plain).figures['mae'] == 1

  class Arguments(Plain):
    def build_loss(self, labels, outputs):
      raise AssertionError

  with pytest.raises(errors.UserError, match='^Arguments: labels are 0 and 1, and the loss is unknown'):
    evaluate(logits, labels, None, cls=Arguments)


@pytest.mark.parametrize('loss', [SPARSE(), lambda labels, outputs: outputs[:, 0]])
def test_probabilities_with_a_nan_row_stay_probabilities(loss):
  probabilities = np.exp(LOGITS)
  probabilities[5] = np.nan
  figures = evaluate(probabilities, LABELS, loss).figures
  assert figures['not_finite'] == 1 and figures['accuracy'] == 0.5
  confidences = np.array([0.7, 0.8, 0.6, 0.9, 0.85])
  bins = np.ceil(confidences * 15).astype(int) - 1
  found = {number: each['confidence'] for number, each in enumerate(figures['calibration']['bins']) if each['examples']}
  expected = {number: confidences[bins == number].mean() for number in set(bins)}
  assert found == pytest.approx(expected, abs=1e-5)


def test_a_softmax_in_bfloat16_has_probabilities():
  class Half(Through):
    def build_model(self):
      return tf_keras.Sequential([tf_keras.layers.Softmax(dtype='bfloat16')])

  def softmax(logits):
    return tf.cast(tf.nn.softmax(tf.cast(logits, tf.bfloat16)), tf.float32).numpy()

  logits = RNG.normal(size=[1000, 6]).astype(np.float32)
  logits = logits[np.argsort(-np.abs(softmax(logits).sum(-1) - 1))[:6]]
  rounded = softmax(logits)
  assert np.abs(rounded.sum(-1) - 1).max() > 1e-3
  labels = rounded.argmax(-1)
  found = evaluate(logits, labels, lambda labels, outputs: outputs[:, 0], cls=Half).figures['log_loss']
  assert found == pytest.approx(-np.log(rounded.max(-1) / rounded.sum(-1)).mean(), abs=1e-5)


@pytest.mark.parametrize('with_nan', [False, True])
def test_logits_of_two_classes_by_the_loss(with_nan):
  """All logits are in 0..1, but the loss has `from_logits`."""
  outputs = [[0.2], [0.9], [np.nan if with_nan else 0.4]]
  loss = tf_keras.losses.BinaryCrossentropy(from_logits=True)
  figures = evaluate(outputs, [1, 0, 1], loss).figures
  assert figures['accuracy'] == pytest.approx(1 / 3 if with_nan else 2 / 3, abs=1e-6)


def test_sums_of_probabilities_are_divided_by_as_in_keras():
  result = evaluate(np.exp(LOGITS) * [[0.5]], np.eye(3, dtype=np.float32)[LABELS], ONE_HOT())
  assert result.figures['log_loss'] == pytest.approx(-np.mean(np.log([0.7, 0.8, 0.2, 0.9, 0.05, 1])), abs=1e-5)


def test_logits_for_a_loss_of_probabilities_are_refused():
  for outputs, labels, loss in (
    (LOGITS, LABELS, SPARSE()),
    ([[1.5], [0.2]], [1, 0], tf_keras.losses.BinaryCrossentropy()),
  ):
    with pytest.raises(errors.UserError, match=r'^Through.build_loss: from_logits is False, .*; set from_logits=True$'):
      evaluate(outputs, labels, loss)


@pytest.mark.parametrize('shape', [(6,), (6, 1)])
def test_ignored_labels_do_not_count(shape):
  labels = np.where(np.arange(6) == 2, -1, LABELS)
  result = evaluate(LOGITS, labels.reshape(shape), SPARSE(from_logits=True, ignore_class=-1))
  assert result.figures['ignored'] == 1 and result.figures['examples'] == 5
  assert result.figures['accuracy'] == pytest.approx(4 / 5, abs=1e-6)
  assert result.figures['confusion_matrix'] == [[2, 0, 0], [0, 1, 1], [0, 0, 1]]
  assert [row[:3] for row in result.tables[1].rows] == [[4, '1', '2']]  # The number in the data.
  with pytest.raises(
    errors.UserError, match='^Through: all 6 labels are -1, the ignore_class of the loss: there is nothing'
  ):
    evaluate(LOGITS, np.full(6, -1), SPARSE(from_logits=True, ignore_class=-1))


def test_other_labels_are_refused():
  sparse, binary = SPARSE(from_logits=True, ignore_class=255), tf_keras.losses.BinaryCrossentropy(from_logits=True)
  wrong = np.where(np.arange(6) == 2, -1, LABELS)
  with pytest.raises(errors.UserError, match='^Through: label -1 is no class; remove the example, or set ignore_class'):
    evaluate(LOGITS, wrong, sparse)
  for labels, label in (([1, -1], '-1'), ([0, 2], '2')):
    with pytest.raises(
      errors.UserError, match=f'^Through: label {label} is no class; BinaryCrossentropy requires 0 and 1$'
    ):
      evaluate([[1.0], [2.0]], labels, binary)


def test_texts_as_labels_are_refused():
  class OfTexts(Plain):
    def forward(self, inputs, model, training):
      return tf.reduce_mean(model(inputs[0])), {'accuracy': (inputs[1], model(inputs[0]))}

  for outputs in ([[1.0], [2.0]], [[1.0, 0.0], [0.0, 1.0]]):
    with pytest.raises(errors.UserError, match=re.escape('OfTexts: labels [2')):
      evaluate(outputs, ['yes', 'no'], tf_keras.losses.BinaryCrossentropy(), cls=OfTexts)
