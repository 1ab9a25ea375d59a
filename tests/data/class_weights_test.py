"""Class weights: the loss and the gradients of Keras' `class_weight`."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.data import class_weights
from tests import tiers

CLASS_WEIGHT = {0: 1.0, 1: 4.0, 2: 0.25}


@tiers.parametrize('one_hot', [False, True], fast=1)
def test_loss_and_update_are_those_of_keras(one_hot):
  rng = np.random.default_rng(0)
  x, labels = rng.normal(size=(12, 4)).astype(np.float32), rng.integers(0, 3, 12)
  y = np.eye(3, dtype=np.float32)[labels] if one_hot else labels
  model = tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Dense(3)])
  loss_cls = tf_keras.losses.CategoricalCrossentropy if one_hot else tf_keras.losses.SparseCategoricalCrossentropy
  with tf.GradientTape() as tape:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(x))
    weights = class_weights.of_examples(y, CLASS_WEIGHT)
    loss = tf.reduce_mean(weights * losses)
  gradients = tape.gradient(loss, model.trainable_variables)
  expected = [v.numpy() - 0.1 * g.numpy() for v, g in zip(model.trainable_variables, gradients)]
  model.compile(tf_keras.optimizers.SGD(0.1), loss_cls(from_logits=True))
  history = model.fit(x, y, batch_size=12, class_weight=CLASS_WEIGHT, shuffle=False, verbose=0)
  assert history.history['loss'][0] == pytest.approx(float(loss), rel=1e-6)
  for variable, value in zip(model.trainable_variables, expected):
    np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5, atol=1e-7)


def test_what_a_class_weight_may_be():
  np.testing.assert_array_equal(class_weights.of_examples([[2], [0]], (1.0, 2.0, 3.0)), [3.0, 1.0])
  np.testing.assert_array_equal(class_weights.of_examples([2, 0], ()), [1.0, 1.0])
  assert np.isnan(class_weights.of_examples([2, 0], (1.0, 2.0))).tolist() == [True, False]
  assert class_weights.of_examples(tf.constant([1], tf.uint8), (1.0, 2.0)).dtype == tf.float32
  with pytest.raises(ValueError, match=r'expected the keys 0 to 1, got \[0, 2\]'):
    class_weights.of_examples([0], {0: 1.0, 2: 2.0})


def test_integers_that_may_be_class_numbers_of_sequences_are_refused():
  weights = [1.0, 10.0]
  assert class_weights.of_examples(np.array([[0], [1]]), weights).numpy().tolist() == weights
  with pytest.raises(ValueError, match=r'^class_weight: integers of shape \[2, 3\] may be class numbers or one-hot'):
    class_weights.of_examples(np.array([[0, 1, 0], [1, 1, 0]]), weights)
  sequences = np.eye(2, dtype=np.float32)[[[0, 1, 0], [1, 1, 0]]]
  assert class_weights.of_examples(sequences, weights).numpy().tolist() == [[1, 10, 1], [10, 10, 1]]


def test_balanced_classes_count_alike():
  labels = np.repeat([0, 1, 2], [6, 3, 1])
  weights = class_weights.balanced(labels, 3)
  np.testing.assert_allclose(np.bincount(labels) * weights, [10 / 3] * 3)
  with pytest.raises(ValueError, match='expected examples of the classes 0 to 3'):
    class_weights.balanced(labels, 4)
