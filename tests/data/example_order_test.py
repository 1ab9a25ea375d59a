"""The order of a run: exact permutations, keyed by seed and epoch, with no state."""

import math

import numpy as np
import pytest
import tensorflow as tf

from official_ext.data import keyed_random

GOLDEN, M1, M2 = (np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def mix(word):
  """SplitMix64's finaliser."""
  word = (word ^ (word >> np.uint64(30))) * M1
  word = (word ^ (word >> np.uint64(27))) * M2
  return word ^ (word >> np.uint64(31))


def reference_order(num_examples, seed, epoch):
  """One epoch in plain numpy: walk every cell of the rectangle through the network until it is a valid index."""
  with np.errstate(over='ignore'):
    seed_key = mix(mix(np.uint64(seed % 2**64)) + GOLDEN)
    key = mix(seed_key + np.uint64(epoch) * GOLDEN)
    rows = math.isqrt(num_examples - 1) + 1
    columns = -(-num_examples // rows)

    def turn(side, other, half_round, size):
      word = (key + np.uint64(half_round) * GOLDEN + np.uint64(other)) * M1
      word = (word ^ (word >> np.uint64(32))) * M2
      return (side + (int(word >> np.uint64(32)) * size >> 32)) % size

    order = []
    for cell in range(num_examples):
      while True:
        row, column = divmod(cell, columns)
        for half_round in range(0, 8, 2):
          row = turn(row, column, half_round, rows)
          column = turn(column, row, half_round + 1, columns)
        cell = row * columns + column
        if cell < num_examples:
          break
      order.append(cell)
  return np.array(order)


def epochs_of(num_examples, seed, first, count):
  """`count` epochs from `first`: [count, num_examples]."""
  positions = tf.range(first * num_examples, (first + count) * num_examples, dtype=tf.int64)
  return keyed_random.shuffled_indices(positions, num_examples, seed).numpy().reshape(count, num_examples)


@pytest.mark.parametrize('num_examples', [1, 2, 3, 10, 97, 1437])
@pytest.mark.parametrize('seed, epoch', [(0, 0), (7, 1), (-1, 300), (2**70 + 3, 10**6)])
def test_order_is_the_reference_order(num_examples, seed, epoch):
  (order,) = epochs_of(num_examples, seed, epoch, 1)
  np.testing.assert_array_equal(order, reference_order(num_examples, seed, epoch))


@pytest.mark.parametrize('num_examples', [*range(1, 40), 1437, 65536, 65537])
def test_every_epoch_is_a_permutation(num_examples):
  for order in epochs_of(num_examples, seed=5, first=3, count=3):
    np.testing.assert_array_equal(np.sort(order), np.arange(num_examples))


def test_indices_stay_inside_for_huge_sources_and_far_positions():
  num_examples = 3 * 10**9 + 1
  positions = tf.range(10**15, 10**15 + 10**5, dtype=tf.int64)
  indices = keyed_random.shuffled_indices(positions, num_examples, 0).numpy()
  assert indices.min() >= 0 and indices.max() < num_examples
  assert len(np.unique(indices)) == 10**5
  # A uniform sample's mean has standard deviation n / sqrt(12 * 10**5).
  assert abs(indices.mean() / num_examples - 0.5) < 5 / math.sqrt(12 * 10**5)


def test_no_two_epochs_and_no_two_seeds_share_an_order():
  """RandomIndexShuffle, keyed directly, repeats every 256 epochs and every 256 seeds below 65,537 examples."""
  orders = {order.tobytes() for order in epochs_of(100, seed=0, first=0, count=600)}
  assert len(orders) == 600
  orders = {epochs_of(100, seed, 0, 1).tobytes() for seed in range(0, 256 * 20, 256)}
  assert len(orders) == 20


@pytest.mark.parametrize('num_examples', [5, 16, 300])
def test_orders_look_random(num_examples):
  """Index, distance to the neighbour and distance to the last epoch are uniform, by a chi-squared test."""
  orders = epochs_of(num_examples, seed=1, first=0, count=2000)
  samples = {
    'first index': orders[:, 0],
    'last index': orders[:, -1],
    'distance to the neighbour': (orders[:, 1] - orders[:, 0]) % num_examples - 1,
    'distance to the last epoch': (orders[1:, 0] - orders[:-1, 0]) % num_examples,
  }
  for name, sample in samples.items():
    num_values = num_examples - (name == 'distance to the neighbour')  # which is never 0
    counts = np.bincount(sample, minlength=num_values)
    expected = len(sample) / num_values
    statistic = ((counts - expected) ** 2 / expected).sum()
    # Mean and variance of chi-squared are k and 2k, k being the degrees of freedom.
    freedom = num_values - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom), name


def test_small_sources_take_all_their_orders():
  orders, counts = np.unique(epochs_of(3, seed=0, first=0, count=6000), axis=0, return_counts=True)
  assert len(orders) == 6
  assert (abs(counts - 1000) < 5 * math.sqrt(1000)).all()


def test_positions_may_come_in_any_shape_and_grouping():
  positions = np.random.RandomState(0).randint(0, 10**6, (7, 4, 2))
  together = keyed_random.shuffled_indices(tf.constant(positions), 97, 3).numpy()
  alone = [keyed_random.shuffled_indices(tf.constant([one]), 97, 3).numpy()[0] for one in positions.ravel()]
  np.testing.assert_array_equal(together.ravel(), alone)
  assert together.shape == positions.shape


def test_sequential_order_repeats():
  indices = keyed_random.sequential_indices(tf.range(7, dtype=tf.int64), 3)
  assert indices.numpy().tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_transform_seeds_differ_by_seed_and_position():
  positions = tf.range(100, dtype=tf.int64)
  pairs = [tuple(pair) for seed in range(3) for pair in keyed_random.transform_seeds(positions, seed).numpy()]
  assert len(set(pairs)) == 300
