"""A value ordered after another is unchanged."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.training.model_parts import clusters


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'uint8'])
@pytest.mark.parametrize('other', [0.0, -np.inf, np.inf, np.nan])
def test_whatever_it_waits_for_a_value_stays_as_it_is(dtype, other):
  value = tf.cast([0, 1, 200], dtype)
  waiting = tf.function(clusters.after, jit_compile=True)(value, tf.constant([[other, 1.0]]))
  assert waiting.dtype == dtype and (waiting.numpy() == value.numpy()).all()


@pytest.mark.parametrize('jit_compile', [False, True])
def test_there_may_be_nothing_to_wait_for(jit_compile):
  waiting = tf.function(clusters.after, jit_compile=jit_compile)(tf.constant([1.0, 2.0]), tf.zeros([0, 3]))
  assert waiting.numpy().tolist() == [1, 2]
