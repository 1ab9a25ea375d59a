"""The sizes of models, counted by hand."""

import tensorflow as tf
import tf_keras

from official_ext.training.model_parts import model_size


def make_model():
  return tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Dense(5), tf_keras.layers.BatchNormalization()])


def test_weights_gradients_and_slots():
  model = make_model()
  optimizer = tf_keras.optimizers.Adam()
  optimizer.build(model.trainable_variables)
  size = model_size.of(model, optimizer)
  trained = 4 * 5 + 5 + 2 * 5  # Kernel, bias, gamma and beta; moving mean and variance are not trained.
  assert (size.parameters, size.trained_parameters) == (trained + 10, trained)
  assert (size.weight_bytes, size.gradient_bytes) == (4 * (trained + 10), 4 * trained)
  assert size.slot_bytes == 2 * 4 * trained + sum(v.dtype.size for v in optimizer.variables if v.shape.rank == 0)
  assert size.describe().startswith(f'45 parameters, 35 trained (78 %); weights {180 / 2**20:.3g} MiB, gradients ')


def test_a_model_that_is_only_evaluated_trains_nothing():
  size = model_size.of(make_model())
  assert size.trained_parameters == size.gradient_bytes == size.slot_bytes == 0
  assert size.describe() == f'45 parameters; weights {180 / 2**20:.3g} MiB'


def test_a_model_without_variables_has_no_size():
  assert model_size.of(tf_keras.Sequential([tf_keras.layers.Dense(5)])) is None


def test_packed_weights_count_what_they_represent():
  class Packed(tf.Module):
    is_packed = True

    def __init__(self):
      super().__init__()
      self.codes = tf.Variable(tf.zeros([8], tf.uint8), trainable=False)
      self.scales = tf.Variable(tf.zeros([1]), trainable=False)

    def own_weights(self):
      return {'codes': self.codes, 'scales': self.scales}

    def num_weights(self):
      return 16

  class Model(tf.Module):
    def __init__(self):
      super().__init__()
      self.packed, self.adapter = Packed(), tf.Variable(tf.zeros([3]))

  model = Model()
  size = model_size.of(model, tf_keras.optimizers.SGD())
  assert (size.parameters, size.trained_parameters, size.weight_bytes) == (19, 3, 8 + 4 + 12)
