"""Faults that are planted into programs are found, each by its name."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.gpu import hlo_checks
from benchmarks.gpu import programs

TOKENS = 32768


def found(function, *specs, **options):
  return hlo_checks.complaints(programs.lower(function, list(specs)).text, **options)


def test_a_clean_program():
  weight = tf.Variable(tf.zeros([512, 512]))

  def step(x):
    product = tf.matmul(x, tf.cast(weight, tf.bfloat16))
    weight.assign_sub(0.1 * tf.cast(tf.matmul(x, product, transpose_a=True), tf.float32))

  assert found(step, tf.TensorSpec([64, 512], tf.bfloat16)) == []


def test_unique_tokens_are_sorted_or_looped_over():
  """XLA computes tf.unique by a sort and a loop over all tokens."""

  def step(tokens, gradients):
    unique, positions = tf.unique(tokens)
    del unique
    return tf.reduce_sum(tf.math.unsorted_segment_sum(gradients, positions, TOKENS))

  complaints = found(step, tf.TensorSpec([TOKENS], tf.int32), tf.TensorSpec([TOKENS, 8]))
  assert any(line.startswith('while') for line in complaints), complaints


def test_products_in_float32():
  complaints = found(lambda x: tf.reduce_sum(tf.matmul(x, x)), tf.TensorSpec([512, 512]))
  assert [line.partition(': ')[2] for line in complaints] == [
    'f32[512,512]{1,0} in float32; cast its operands to bfloat16'
  ]
  assert found(lambda x: tf.reduce_sum(tf.matmul(x, x)), tf.TensorSpec([512, 512]), is_bfloat16=False) == []


def test_python_in_a_program_is_not_compiled():
  step = lambda x: tf.py_function(lambda value: value, [x], tf.float32)
  with pytest.raises(ValueError, match='EagerPyFunc'):
    found(step, tf.TensorSpec([4]))


def test_a_result_beside_its_weight():
  weight = tf.Variable(tf.zeros([512, 512]))
  (complaint,) = found(lambda: weight * 0.9)
  assert complaint == 'result 0: f32[512,512] aliases no argument; assign it to its variable'


def test_a_large_constant():
  """4096 x 4096 numbers of 4 bytes, which differ."""
  mask = np.arange(4096 * 4096, dtype=np.float32).reshape(4096, 4096)
  (complaint,) = found(lambda x: tf.reduce_sum(x + mask), tf.TensorSpec([4096, 4096]))
  assert 'f32[4096,4096]{1,0} in the program; compute it from iota' in complaint


def test_float64():
  complaints = found(lambda x: tf.reduce_sum(tf.cast(x, tf.float64) * 2), tf.TensorSpec([64]))
  assert complaints and all('f64[64]{0} in float64' in line for line in complaints)


def test_a_large_sort():
  (complaint,) = found(lambda x: tf.sort(x)[0], tf.TensorSpec([2**21]))
  assert complaint.startswith('sort ') and 'f32[2097152]{0}' in complaint


@pytest.mark.parametrize(
  'limit, expected',
  [
    (12, []),
    (hlo_checks.MAX_ROUNDS + 1, ['257 rounds; replace it by an operation on the whole array']),
    (None, ['a loop of unknown length; give it a constant number of rounds']),
  ],
)
def test_loops(limit, expected):
  def step(x, number):
    end = number if limit is None else limit
    return tf.while_loop(lambda i, _: i < end, lambda i, x: (i + 1, x * 2), (0, x))[1][0]

  complaints = found(step, tf.TensorSpec([4]), tf.TensorSpec([], tf.int32))
  assert [line.partition(': ')[2] for line in complaints] == expected


def test_a_loop_that_counts_down():
  step = lambda x: tf.while_loop(lambda i, _: i >= 0, lambda i, x: (i - 1, x * 2), (11, x))[1][0]
  (complaint,) = found(step, tf.TensorSpec([4]))
  assert complaint.endswith('a loop of unknown length; give it a constant number of rounds')


def test_a_weight_that_is_cast_in_a_loop():
  weight = tf.Variable(tf.zeros([256, 256]))

  def step(x, is_cast_once):
    once = tf.cast(weight, tf.bfloat16)
    body = lambda i, x: (i + 1, tf.matmul(x, once if is_cast_once else tf.cast(weight, tf.bfloat16)))
    return tf.while_loop(lambda i, _: i < 8, body, (0, x))[1][0, 0]

  spec = tf.TensorSpec([8, 256], tf.bfloat16)
  (complaint,) = found(lambda x: step(x, False), spec, has_constant_weights=True)
  assert complaint.endswith('bf16[256,256]{1,0} in a loop: a weight is cast in each round; cast it before the loop')
  assert found(lambda x: step(x, True), spec, has_constant_weights=True) == []
