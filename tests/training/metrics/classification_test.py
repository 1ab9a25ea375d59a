"""Metrics by name against scikit-learn: eagerly, and over evaluations of a trainer on one and two replicas."""

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training import metrics
from tests import tiers
from tests.training.loop import harness

NAMES = ('accuracy', 'auc', 'confusion_matrix', 'f1', 'precision', 'recall')
CLASSES = harness.NUM_CLASSES


def softmax(logits):
  exponentials = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
  return exponentials / exponentials.sum(-1, keepdims=True)


def expected(labels, logits, average='macro', sample_weight=None):
  """scikit-learn's values of all metrics, by name."""
  num_classes = logits.shape[-1]
  predicted, probabilities = logits.argmax(-1), softmax(logits)
  if num_classes == 2:
    auc = sklearn_metrics.roc_auc_score(labels, probabilities[:, 1], sample_weight=sample_weight)
  else:
    auc = sklearn_metrics.roc_auc_score(
      labels, probabilities, multi_class='ovr', labels=range(num_classes), sample_weight=sample_weight
    )
  precision, recall, f1, _ = sklearn_metrics.precision_recall_fscore_support(
    labels, predicted, average=average, labels=range(num_classes), sample_weight=sample_weight, zero_division=0
  )
  return {
    'accuracy': sklearn_metrics.accuracy_score(labels, predicted, sample_weight=sample_weight),
    'auc': auc,
    'confusion_matrix': sklearn_metrics.confusion_matrix(
      labels, predicted, labels=range(num_classes), sample_weight=sample_weight
    ),
    'f1': f1,
    'precision': precision,
    'recall': recall,
  }


def assert_agree(values, references):
  for name, reference in references.items():
    # The AUC is a sum over 500 thresholds, scikit-learn's one over all pairs.
    np.testing.assert_allclose(values[name], reference, rtol=1e-6, atol=2e-3 if name == 'auc' else 1e-6, err_msg=name)


def make_examples(num_examples, num_classes, seed=0):
  """Labels, and logits that say more often than not the same; class 0 is rare."""
  rng = np.random.default_rng(seed)
  shares = np.arange(1, num_classes + 1)
  labels = rng.choice(num_classes, num_examples, p=shares / shares.sum())
  logits = rng.normal(size=(num_examples, num_classes)) + 1.5 * np.eye(num_classes)[labels]
  return labels, logits.astype(np.float32)


def update(built, labels, logits, *sample_weight, batch=150):
  by_name = {metric.name: metric for metric in built}
  for start in range(0, len(labels), batch):  # The last batch is a partial one.
    part = slice(start, start + batch)
    for name, arguments in metrics.updates(
      list(by_name), labels[part], logits[part], *(weight[part] for weight in sample_weight)
    ).items():
      by_name[name].update_state(*arguments)
  return {name: metric.result().numpy() for name, metric in by_name.items()}


@tiers.parametrize(
  'num_classes, average', [(5, 'macro'), (5, 'weighted'), (5, 'micro'), (5, None), (2, 'macro')], fast=1
)
def test_agrees_with_scikit_learn(num_classes, average):
  labels, logits = make_examples(1000, num_classes)
  values = update(metrics.build(NAMES, num_classes, average), labels, logits)
  assert_agree(values, expected(labels, logits, average))
  if average is None:
    assert values['f1'].shape == (num_classes,)


def test_sample_weights():
  labels, logits = make_examples(500, 4)
  weights = np.random.default_rng(1).choice([0.0, 1.0, 2.5], 500).astype(np.float32)
  values = update(metrics.build(NAMES, 4), labels, logits, weights)
  assert_agree(values, expected(labels, logits, sample_weight=weights))


@pytest.mark.parametrize('shape', [(-1,), (-1, 1)])
def test_a_single_logit(shape):
  """As two logits, of which the first is 0; precision, recall and F1 are those of class 1."""
  labels, logits = make_examples(500, 2)
  logit = logits[:, 1] - logits[:, 0]
  values = update(metrics.build(NAMES, 1), labels.reshape(shape), logit.reshape(shape))
  references = expected(labels, logits)
  precision, recall, f1, _ = sklearn_metrics.precision_recall_fscore_support(labels, logit > 0, average='binary')
  assert_agree(values, {**references, 'precision': precision, 'recall': recall, 'f1': f1})


def test_classes_that_never_come_and_equal_logits():
  """Nobody is taken for class 3, nobody belongs to it; of equal logits, also if all are 0, the first counts."""
  labels, logits = np.array([0, 1, 2, 1]), np.zeros((4, 4), np.float32)
  logits[1] = [0.0, 2.0, 2.0, 0.0]
  values = update([metric for metric in metrics.build(NAMES, 4) if metric.name != 'auc'], labels, logits)
  references = {
    'confusion_matrix': [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
    'accuracy': 2 / 4,
    'precision': (1 / 3 + 1 + 0 + 0) / 4,
    'recall': (1 + 1 / 2 + 0 + 0) / 4,
    'f1': (2 * (1 / 3) / (4 / 3) + 2 * (1 / 2) / (3 / 2)) / 4,
  }
  assert_agree(values, references)


class MetricsTask(harness.LinearTask):
  """Softmax regression that reports all metrics."""

  def build_metrics(self, training=True):
    return metrics.build(NAMES, CLASSES)

  def forward(self, inputs, model, training):
    logits = model(inputs[0], training=training)
    losses = tf_keras.losses.sparse_categorical_crossentropy(inputs[1], logits, from_logits=True)
    return tf.reduce_mean(losses), metrics.updates(NAMES, inputs[1], logits)


@pytest.mark.slow
@tiers.parametrize('replicas, enable_xla', [('one', True), ('two', False)], fast=[('two', False)])
def test_exact_over_replicas_with_a_partial_last_batch(replicas, enable_xla):
  """77 examples in batches of 32: the last one, of 13, is not the same on both replicas. Training, in XLA, too."""
  x, y = harness.make_data(77, seed=3)
  trainer = harness.make_trainer(
    MetricsTask,
    replicas=replicas,
    enable_xla=enable_xla,
    validation_data=(x, y),
    validation_batch_size=32,
    evaluate=True,
  )
  kernel, bias = harness.initial_weights()
  assert_agree(harness.evaluate(trainer), expected(y, x @ kernel + bias))
  assert_agree(harness.evaluate(trainer), expected(y, x @ kernel + bias))  # And from zero again.
  if replicas == 'two':
    return
  x, y = harness.global_batch(harness.make_data(64), 0, 8)
  kernel, bias = harness.weights_of(trainer)
  logs = harness.train(trainer, 1)
  assert_agree(logs, expected(y, x @ kernel + bias))


def test_mixed_precision_logits():
  labels, logits = make_examples(200, 3)
  half = tf.cast(logits, tf.bfloat16)
  values = update(metrics.build(NAMES, 3), labels, half)
  assert_agree(values, expected(labels, half.numpy().astype(np.float32)))


def test_a_name_that_does_not_exist():
  with pytest.raises(errors.UserError, match="metrics: no metric 'recal'; did you mean recall"):
    metrics.build(['accuracy', 'recal'], 3)


def test_configuration_makes_the_same_metric():
  for metric in metrics.build(NAMES[1:], 3, 'weighted'):
    again = type(metric).from_config(metric.get_config())
    assert again.get_config() == metric.get_config() and again.name == metric.name


@pytest.mark.parametrize('num_classes', [1, 3])
@pytest.mark.parametrize('bad', [-1, 5])
@pytest.mark.parametrize('name', NAMES)
def test_a_label_that_is_no_class_makes_the_result_nan_unless_its_weight_is_0(name, bad, num_classes):
  labels, logits = np.array([0, 1, bad, 1]), np.array([[-1.0, 0.5, 0.2], [1.0, 2.0, 0.1]] * 2, np.float32)
  logits = logits[:, :1] if num_classes == 1 else logits
  (ignoring, good, wrong) = (metrics.build([name], num_classes)[0] for _ in range(3))
  ignoring.update_state(labels, logits, np.array([1, 1, 0, 1]))
  good.update_state(labels[[0, 1, 3]], logits[[0, 1, 3]])
  np.testing.assert_allclose(ignoring.result(), good.result())
  wrong.update_state(labels, logits)
  assert np.isnan(wrong.result().numpy()).any()
