"""Updates of any optimizer are seen once, in the thread that makes them, and can be held back."""

import threading

import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals
from official_ext.training.step import gradient_tap
from official_ext.training.step import observers

legacy, new = tf_keras.optimizers.legacy, tf_keras.optimizers
OPTIMIZERS = [
  lambda: legacy.SGD(0.5),
  lambda: new.SGD(0.5),
  lambda: tf_keras.mixed_precision.LossScaleOptimizer(new.SGD(0.5)),
]


@pytest.mark.parametrize('make', OPTIMIZERS)
def test_every_update_is_seen_once_by_all_that_observe(make):
  optimizer, variable, seen = make(), tf.Variable(1.0), ([], [])
  methods = [cls.apply_gradients for cls in tf_internals.UPDATING_CLASSES]
  update = lambda: optimizer.apply_gradients([(tf.constant(1.0), variable)])
  with observers.observed(lambda *update: seen[0].append(update) or True):
    with observers.observed(lambda *update: seen[1].append(update) or True):
      update()
    other = threading.Thread(target=update)
    other.start()
    other.join()
  update()
  assert [len(updates) for updates in seen] == [1, 1]
  assert seen[0][0][0] is gradient_tap.inner_optimizer(optimizer) and seen[0][0][1][0][1] is variable
  assert [cls.apply_gradients for cls in tf_internals.UPDATING_CLASSES] == methods


@pytest.mark.parametrize('make', OPTIMIZERS)
def test_an_update_that_one_observer_does_not_allow_is_not_made(make):
  optimizer, variable = make(), tf.Variable(1.0)
  with observers.observed(lambda *_: False), observers.observed(lambda *_: True):
    optimizer.apply_gradients([(tf.constant(1.0), variable)])
  assert float(variable) == 1.0
  optimizer.apply_gradients([(tf.constant(1.0), variable)])
  assert float(variable) == 0.5


def test_calls_of_a_tapped_optimizer_are_seen_where_it_captures_them():
  optimizer, variable, calls, updates = legacy.SGD(0.5), tf.Variable(1.0), [], []
  tap = gradient_tap.GradientTap(optimizer)
  tapped = optimizer.apply_gradients
  watch = observers.CallsOf(optimizer)
  with tap.capture() as captured, observers.observed(lambda *update: updates.append(update) or True):
    with watch.observed(lambda *call: calls.append(call) or True):
      optimizer.apply_gradients([(tf.constant(1.0), variable)])
  assert len(calls) == len(captured) == 1 and not updates and optimizer.apply_gradients == tapped
