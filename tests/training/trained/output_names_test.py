"""The names of outputs in signatures: the task's, those of named layers, or `output`."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import official_ext as ext
from official_ext.base import errors
from official_ext.training.trained import serving
from official_ext.training.trained import trained_model

Dense = tf_keras.layers.Dense


def a_sum():
  inputs = tf_keras.Input((2,), name='x')
  return tf_keras.Model(inputs, Dense(1)(inputs) + Dense(1)(inputs))


def of_layers(*names):
  inputs = tf_keras.Input((2,), name='x')
  return tf_keras.Model(inputs, [Dense(1, name=name)(inputs) for name in names])


def by_keys():
  inputs = tf_keras.Input((2,), name='x')
  return tf_keras.Model(inputs, {'price': Dense(1)(inputs), 'rent': Dense(1)(inputs)})


class Twice(tf_keras.Model):
  def __init__(self):
    super().__init__()
    self.dense = Dense(1)

  def call(self, x, training=None):
    return self.dense(x)


def subclassed():
  model = Twice()
  model(tf.zeros([3, 2]))
  return model


def signature_of(model, names=()):
  class Named(ext.Task):
    output_names = names

    def build_model(self):
      return model

    def build_inputs(self, params, input_context=None):
      raise NotImplementedError

  task = Named(ext.TaskConfig())
  return serving.build(trained_model.TrainedModel(model, task, ext.ExperimentConfig(task=ext.TaskConfig()), '', 'raw'))


@pytest.mark.parametrize(
  ('make', 'expected'),
  [
    (a_sum, ['output']),
    (lambda: tf_keras.Sequential([tf_keras.Input((2,)), Dense(1)]), ['output']),
    (lambda: tf_keras.Sequential([tf_keras.Input((2,)), Dense(1, name='logits')]), ['logits']),
    (lambda: of_layers('first', None), ['first', 'output_1']),
    (lambda: of_layers(None, None), ['output_0', 'output_1']),
    (by_keys, ['price', 'rent']),
    (subclassed, ['output']),
  ],
)
def test_names(make, expected):
  model = make()
  _, signatures = signature_of(model)
  function = signatures[serving.DEFAULT]
  assert sorted(function.structured_outputs) == expected
  x = tf.constant([[1.0, 2.0]])
  (name,) = function.structured_input_signature[1] or [function.structured_input_signature[0][0].name]
  found = function(**{name: x}) if function.structured_input_signature[1] else function(x)
  outputs = model(x)
  by_name = outputs if isinstance(outputs, dict) else dict(zip(expected, tf.nest.flatten(outputs)))
  assert sorted(found) == sorted(by_name)
  for key, value in by_name.items():
    np.testing.assert_allclose(found[key], value, rtol=1e-5)


def test_the_task_names_them():
  _, signatures = signature_of(of_layers('first', None), ('price', 'rent'))
  assert sorted(signatures[serving.DEFAULT].structured_outputs) == ['price', 'rent']
  _, signatures = signature_of(a_sum(), ('price',))
  assert sorted(signatures[serving.DEFAULT].structured_outputs) == ['price']
  for names in (('price', 'rent'), ('price', 'price')):
    with pytest.raises(
      errors.UserError, match=f'^Named.output_names: {", ".join(names)}: the model has 1 output; name it once$'
    ):
      signature_of(a_sum(), names)
  with pytest.raises(errors.UserError, match='^Named.output_names: a b, a_b: the model has 2 outputs; name each once$'):
    signature_of(of_layers(None, None), ('a b', 'a_b'))


def test_a_text_is_no_list_of_names():
  with pytest.raises(errors.UserError, match=r"^Named.output_names: is the text 'price'; write \('price',\)$"):
    signature_of(a_sum(), 'price')


def colliding_keys():
  inputs = tf_keras.Input((2,), name='x')
  return tf_keras.Model(inputs, {'a b': Dense(1)(inputs), 'a_b': Dense(1)(inputs)})


@pytest.mark.parametrize(
  ('make', 'name', 'remedy'),
  [
    (lambda: of_layers('output_1', None), 'output_1', 'set output_names in the task'),
    (colliding_keys, 'a_b', 'rename a key'),
  ],
)
def test_no_output_is_dropped_for_another_of_its_name(make, name, remedy):
  with pytest.raises(
    errors.UserError, match=f'^Named.build_model: several outputs have the name {name} in an export; {remedy}$'
  ):
    signature_of(make())
