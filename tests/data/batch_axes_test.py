"""The axes that count the examples of a batch, from shapes alone, and from a second batch size."""

import pytest
import tensorflow as tf

from official_ext.data import batch_axes

B = 4  # The batch size.


def spec(*shapes):
  return tuple(tf.TensorSpec(shape, tf.float32) for shape in shapes)


@pytest.mark.parametrize(
  'shapes, axes, is_checked',
  [
    ([[None, 2]], (0,), True),
    ([[], []], (None, None), True),
    ([[None, 2], [], [None]], (0, None, 0), False),  # The second may be a flat list of boxes.
    ([[3], [B, 2], [B]], (None, 0, 0), True),  # Full batches.
    ([[3], [5]], (0, None), True),  # Each batch has the same shapes: any axis gives the same weights.
  ],
)
def test_shapes_decide(shapes, axes, is_checked):
  found = batch_axes.of_spec(spec(*shapes), B)
  assert (found.axes, found.is_checked) == (axes, is_checked)


@pytest.mark.parametrize('shapes', [[[3], [None, 2]], [[7, None], [3]], [[B, None]], [[None], [B]]])
def test_shapes_leave_a_doubt(shapes):
  assert batch_axes.of_spec(spec(*shapes), B) is None


def test_ragged_sparse_and_unknown_shapes_count_by_rows():
  ragged = tf.ragged.constant([[1, 2], [3], []])
  sparse = tf.sparse.from_dense([[0, 1], [1, 0], [0, 0]])
  batch = {'a': ragged, 'b': sparse, 'c': tf.zeros([3, 1])}
  specs = tf.nest.map_structure(tf.type_spec_from_value, batch) | {'c': tf.TensorSpec(None, tf.float32)}
  dataset = tf.data.Dataset.from_tensors(batch)
  assert batch_axes.of_spec(specs) is None  # Two full ones, and one of which nothing is known.
  axes = batch_axes.BatchAxes((0, 0, 0))
  assert float(axes.num_examples(batch)) == 3 and bool(axes.agree(next(iter(dataset))))


def test_parts_that_disagree():
  axes = batch_axes.of_spec(spec([None, 1], [None, 4]))
  batch = tf.zeros([2, 1]), tf.zeros([7, 4])
  assert not axes.agree(batch) and axes.agree((batch[0], tf.zeros([2, 4])))


def test_axes_that_follow_another_batch_size():
  # A constant, features with the time in front, boxes of all images in one list, and full batches of the user's own.
  shapes = [3], [7, None, 2], [None, 4], [B], [1]
  for takes in (1, 2 * B):  # Another size cannot be built.
    build = lambda size, takes=takes: spec([3], [7, size, 2], [None, 4], [size], [1]) if size == takes else None
    found = batch_axes.find(spec(*shapes), B, build)
    assert found.axes == (None, 1, None, 0, None) and found.is_checked and not found.assumed


@pytest.mark.parametrize('build', [None, lambda size: None, lambda size: spec([3], [None, 2])])
def test_what_is_assumed_is_named(build):
  named = dict(zip(('anchors', 'points'), spec([3], [None, 2])))
  found = batch_axes.find(named, B, build and (lambda size: build(size) and dict(zip(named, build(size)))))
  assert found.axes == (None, 0) and found.assumed == 'the first dimension of points'
