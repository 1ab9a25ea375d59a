"""Regression tasks: sinusoids of random amplitude and phase, with points drawn from them."""

import math

import numpy as np
import tensorflow as tf

import official_ext as ext

from . import configs

AMPLITUDES, PHASES, XS = (0.1, 5.0), (0.0, math.pi), (-5.0, 5.0)


def draw(seed: tf.Tensor, num_tasks: int, num_shots: int, num_queries: int) -> dict[str, tf.Tensor]:
  """Draws tasks y = amplitude * sin(x - phase), and points of each.

  Args:
    seed: int64 tensor of shape [2].
    num_tasks: how many.
    num_shots: points to adapt to, of each task.
    num_queries: further points, to measure with.

  Returns:
    {'support_x', 'support_y': float32 [tasks, shots, 1], 'query_x', 'query_y': float32 [tasks, queries, 1]}.
  """
  num_points = num_shots + num_queries
  uniform = tf.random.stateless_uniform([num_tasks, 2 + num_points], seed, alg='philox')
  scale = lambda values, limits: limits[0] + (limits[1] - limits[0]) * values
  amplitudes, phases = scale(uniform[:, :1], AMPLITUDES), scale(uniform[:, 1:2], PHASES)
  x = scale(uniform[:, 2:], XS)
  points = {'x': x, 'y': amplitudes * tf.sin(x - phases)}
  parts = {'support': slice(None, num_shots), 'query': slice(num_shots, None)}
  return {
    f'{part}_{name}': values[:, where, tf.newaxis] for part, where in parts.items() for name, values in points.items()
  }


def build_training_data(
  params: configs.SinusoidsDataConfig, input_context: tf.distribute.InputContext | None = None
) -> tf.data.Dataset:
  """Tasks without end, none of them twice: the tasks of step s are a function of (seed, s).

  Args:
    params: a `SinusoidsDataConfig`.
    input_context: which of the input pipelines this is. None: the only one, of one replica.

  Returns:
    A dataset of per-replica batches: see `draw`. It starts at the batch that `pipelines.starting_at` says.

  Raises:
    UserError: the tasks cannot be divided evenly among the replicas.
  """
  share = ext.Share.of(params, input_context, 'tasks')

  def batches_of(step):
    seed = tf.stack([tf.constant(params.seed or 0, tf.int64), step])
    tasks = draw(seed, params.global_batch_size, params.num_shots, params.num_queries)
    mine = share.positions(tf.zeros([1], tf.int64))  # In this batch.
    return {name: tf.gather(values, mine) for name, values in tasks.items()}

  dataset = tf.data.Dataset.counter(ext.take_start()).map(batches_of, num_parallel_calls=params.num_parallel_calls)
  options = tf.data.Options()
  options.autotune.enabled = False
  return dataset.unbatch().prefetch(64).with_options(options)


def test_tasks(params: configs.SinusoidsDataConfig) -> dict[str, np.ndarray]:
  """The tasks of every evaluation, always the same `params.num_tasks`: see `draw`."""
  # Steps count from 0: no training task has this seed.
  tasks = draw(tf.constant([0, -1], tf.int64), params.num_tasks, params.num_shots, params.num_queries)
  return {name: values.numpy() for name, values in tasks.items()}
