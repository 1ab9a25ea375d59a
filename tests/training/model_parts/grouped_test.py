"""Products by group, against a loop over the rows in NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from official_ext.training.model_parts import grouped


def drawn(num_tokens, k, num_groups, seed, favourite=None):
  """Distinct groups of each token; with a favourite, it is the first of each."""
  rng = np.random.default_rng(seed)
  chances = rng.random([num_tokens, num_groups])
  if favourite is not None:
    chances[:, favourite] = 2
  return np.argsort(-chances, axis=1)[:, :k].astype(np.int32)


@pytest.mark.parametrize(
  'num_tokens, k, num_groups, rows, favourite',
  [(13, 2, 5, 4, None), (64, 1, 3, 16, 2), (40, 3, 7, 2, 0), (8, 2, 4, 16, None), (5, 1, 9, 2, None)],
)
def test_each_slot_has_one_row_of_its_group(num_tokens, k, num_groups, rows, favourite):
  numbers = drawn(num_tokens, k, num_groups, 1, favourite)
  blocks = tf.function(grouped.blocks_of, jit_compile=True)(tf.constant(numbers), num_groups, rows)
  positions, slots = blocks.positions.numpy(), blocks.slots.numpy()
  is_padding, groups = blocks.is_padding.numpy()[:, 0], blocks.groups.numpy()
  assert sorted(slots[~is_padding]) == list(range(num_tokens * k))
  assert sorted(positions.ravel()) == sorted(np.flatnonzero(~is_padding))
  for token in range(num_tokens):
    for i in range(k):
      position = positions[token, i]
      assert slots[position] == token * k + i and groups[position // rows] == numbers[token, i]
  counts = np.bincount(numbers.ravel(), minlength=num_groups)
  assert len(groups) >= sum(-(-count // rows) for count in counts)


@pytest.mark.parametrize('jit_compile', [False, True])
def test_products_and_gradients(jit_compile):
  num_tokens, k, num_groups, size, width, rows = 29, 2, 6, 7, 5, 4
  numbers = drawn(num_tokens, k, num_groups, 2)
  rng = np.random.default_rng(3)
  x, shares = rng.normal(size=[num_tokens, size]), rng.random([num_tokens, k])
  weights, dy = rng.normal(size=[num_groups, size, width]), rng.normal(size=[num_tokens, width])

  @tf.function(jit_compile=jit_compile)
  def ours(x, weights, shares):
    with tf.GradientTape() as tape:
      tape.watch([x, weights, shares])
      blocks = grouped.blocks_of(tf.constant(numbers), num_groups, rows)
      parts = grouped.products(grouped.dispatched(x, blocks), weights, blocks.groups)
      y = tf.reduce_sum(grouped.collected(parts, blocks) * shares[:, :, tf.newaxis], axis=1)
      total = tf.reduce_sum(y * dy)
    return y, *tape.gradient(total, [x, weights, shares])

  found = [value.numpy() for value in ours(tf.constant(x), tf.constant(weights), tf.constant(shares))]
  y, dx, dweights = np.zeros([num_tokens, width]), np.zeros_like(x), np.zeros_like(weights)
  dshares = np.zeros_like(shares)
  for token in range(num_tokens):
    for i, group in enumerate(numbers[token]):
      y[token] += shares[token, i] * (x[token] @ weights[group])
      dx[token] += shares[token, i] * (weights[group] @ dy[token])
      dweights[group] += shares[token, i] * np.outer(x[token], dy[token])
      dshares[token, i] = dy[token] @ (x[token] @ weights[group])
  for value, expected in zip(found, (y, dx, dweights, dshares)):
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)


def test_padding_rows_are_zero():
  """They are no copies of the first token."""
  x = tf.constant(np.full([3, 2], np.inf))
  blocks = grouped.blocks_of(tf.constant([[0], [0], [0]]), num_groups=2, rows=2)
  parts = grouped.dispatched(x, blocks).numpy()
  assert np.isinf(parts[0]).all() and not parts[1][1].any() and not parts[2:].any()


@pytest.mark.parametrize(
  'arguments, expected',
  [((8192, 2, 8), 512), ((8192, 8, 128), 128), ((64, 2, 8), 0), ((10**6, 2, 2), 0), ((10**6, 4, 5), 0)],
)
def test_padding_adds_a_quarter_at_most(arguments, expected):
  rows = grouped.rows_of_block(*arguments)
  num_tokens, k, num_groups = arguments
  assert rows == expected and num_groups * rows <= num_tokens * k / 4
