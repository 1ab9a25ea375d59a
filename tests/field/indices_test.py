"""Indices beyond a table, which XLA replaces by the last row: the update is skipped, or an error names the index."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.training.step import observers
from tests.training.loop import small_run

_ROWS = 5  # Of each table. Example 3 has index 7.


class _ReadsRows(small_run.SmallTask):
  """A model of one table; `read` returns float rows of it for the indices, int32 of shape [b]."""

  bad_index = 7

  def __init__(self, params, data, validation_data=None):
    indices = np.arange(len(data[1]), dtype=np.int32) % _ROWS
    indices[3] = self.bad_index
    super().__init__(params, (indices, data[1]), (indices[8:16], data[1][8:16]))

  def build_model(self):
    model = tf_keras.Sequential([tf_keras.layers.Embedding(_ROWS, 10)])
    model.build([None])
    return model

  def read(self, indices, model):
    return model(indices)

  def forward(self, inputs, model, training):
    indices, labels = inputs
    logits = tf.reshape(self.read(indices, model), [-1, 10])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    return loss, {'accuracy': (labels, logits)}


class Embedding(_ReadsRows):
  pass


class Negative(_ReadsRows):
  bad_index = -1


class Gather(_ReadsRows):
  def read(self, indices, model):
    return tf.gather(model.layers[0].embeddings, indices)


class GatherAlongAnAxis(_ReadsRows):
  def read(self, indices, model):
    return tf.transpose(tf.gather(tf.transpose(model.layers[0].embeddings), indices, axis=-1))


class GatherInABatch(_ReadsRows):
  def read(self, indices, model):
    tables = tf.repeat(tf.convert_to_tensor(model.layers[0].embeddings)[tf.newaxis], tf.size(indices), axis=0)
    return tf.gather(tables, indices[:, tf.newaxis], batch_dims=1)


class GatherNd(_ReadsRows):
  def read(self, indices, model):
    return tf.gather_nd(tf.convert_to_tensor(model.layers[0].embeddings), indices[:, tf.newaxis])


class InAFunction(_ReadsRows):
  def read(self, indices, model):
    return tf.function(model)(indices)


class InALoop(_ReadsRows):
  def read(self, indices, model):
    return tf.map_fn(
      lambda index: tf.gather(model.layers[0].embeddings, index), indices, fn_output_signature=tf.float32
    )


class RowsOfALabel(_ReadsRows):
  """Weights by class, from a table that is not trained."""

  def forward(self, inputs, model, training):
    loss, logs = super().forward((tf.clip_by_value(inputs[0], 0, _ROWS - 1), inputs[1]), model, training)
    return loss * tf.reduce_mean(tf.gather(tf.ones([_ROWS]), inputs[0])), logs


_TASKS = [
  Embedding,
  Negative,
  Gather,
  GatherAlongAnAxis,
  GatherInABatch,
  GatherNd,
  InAFunction,
  InALoop,
  RowsOfALabel,
]


@pytest.mark.parametrize('task_cls', _TASKS)
def test_an_index_beyond_a_table_makes_no_update_under_xla(tmp_path, task_cls):
  # The example is in one of the eight batches of an epoch.
  trainer = {'train_steps': 8, 'steps_per_loop': 4, 'validation_interval': 8, 'checkpoint_interval': 8}
  params = small_run.make_params({'enable_xla': True}, **trainer)
  small_run.run(tmp_path, task_cls=task_cls, params=params)
  assert len(small_run.events(tmp_path, 'update_skipped')) == 1


@pytest.mark.parametrize('shape', [(), (3, 2)])
def test_the_loss_of_a_compiled_step_is_nan_only_if_an_index_is_bad(shape):
  table = tf.ones([_ROWS, 4], tf.bfloat16)

  @tf.function(jit_compile=True)
  def loss_of(index):
    with observers.checked_indices() as check:
      rows = tf.gather(table, tf.fill(shape, index))
    return check.spoiled(tf.cast(tf.reduce_mean(rows), tf.float32))

  losses = [float(loss_of(tf.constant(index))) for index in range(-1, _ROWS + 1)]
  np.testing.assert_array_equal(losses, [np.nan, *[1.0] * _ROWS, np.nan])


def test_a_loss_of_integers_stays():
  with observers.checked_indices() as check:
    tf.gather(tf.ones([_ROWS]), [0])
  assert check.spoiled(tf.constant(0)).dtype == tf.int32


def test_without_xla_the_error_names_it(tmp_path):
  with pytest.raises(errors.UserError, match='7'):
    small_run.run(tmp_path, task_cls=Embedding)


@pytest.mark.parametrize('enable_xla', [False, True])
def test_indices_in_range_are_read_as_before(tmp_path, enable_xla):
  class InRange(InALoop):
    bad_index = _ROWS - 1

  params = small_run.make_params({'enable_xla': enable_xla}, train_steps=8)
  model, logs = small_run.run(tmp_path, task_cls=InRange, params=params)
  assert not small_run.events(tmp_path, 'update_skipped') and 'validation_not_finite' not in logs
  assert np.isfinite(model.layers[0].embeddings.numpy()).all()
