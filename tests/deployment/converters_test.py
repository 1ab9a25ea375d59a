"""Conversions keep the arithmetic that no example of a verification may show."""

import copy

import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from official_ext.base import errors
from official_ext.deployment import converters
from official_ext.deployment import runtime_script

SPEC = tf.TensorSpec([1, 4], tf.float32, 'x')


def traced(call, spec=SPEC):
  return tf.function(lambda *x: call(*x)).get_concrete_function(spec)


@pytest.mark.parametrize('dtype', [np.int32, np.int64])
def test_onnx_divides_integers_as_tensorflow(dtype, tmp_path):
  path, values = str(tmp_path / 'model.onnx'), np.array([[3, 7, 10, 0, -3, -7, -10, 9]], dtype)
  outputs = lambda a: {
    f'{name}_{divisor}': function(a, tf.constant(divisor, dtype))
    for name, function in (('div', tf.math.floordiv), ('mod', tf.math.floormod))
    for divisor in (3, -3)
  }
  converters.convert_to_onnx(traced(outputs, tf.TensorSpec([1, 8], dtype, 'a')), 'none', None, path)
  session = onnxruntime.InferenceSession(path)
  found = dict(zip([each.name for each in session.get_outputs()], session.run(None, {'a': values})))
  for divisor in (3, -3):
    np.testing.assert_array_equal(found[f'div_{divisor}'], values // divisor)
    np.testing.assert_array_equal(found[f'mod_{divisor}'], values % divisor)


def test_litert_keeps_the_numbers_that_16_bits_do_not_hold(tmp_path):
  large = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 1e5]])
  small = tf.Variable(np.linspace(0.1, 0.9, 8, dtype=np.float32).reshape(4, 2))

  def outputs(x):
    scaled = x / (tf.reduce_sum(tf.abs(x), -1, keepdims=True) + 1e-9)
    mapped = tf.map_fn(lambda row: row / (tf.reduce_sum(row) + 1e-9), x)
    return {
      'scaled': scaled,
      'mapped': mapped,
      'large': x @ large,
      'small': x @ small,
      'constant': tf.constant([1.1, 2]),
    }

  (tmp_path / 'model.tflite').write_bytes(converters.convert_to_litert(traced(outputs), 'float16', None).content)
  run, _ = runtime_script.LOADERS['litert'](str(tmp_path / 'model.tflite'), 1)
  for x in (np.zeros([1, 4], np.float32), np.float32([[0, 0, 0, 1]])):
    found, expected = run({'x': x}), outputs(tf.constant(x))
    for name in ('scaled', 'mapped', 'large', 'constant'):
      np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    np.testing.assert_array_equal(found['small'], x @ small.numpy().astype(np.float16).astype(np.float32))


def test_litert_keeps_a_buffer_that_another_tensor_has_too():
  weight = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
  content = converters.convert_to_litert(traced(lambda x: {'y': x @ weight}), 'none', None).content
  model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
  graph = model.subgraphs[0]
  (shared,) = (each for each in graph.tensors if model.buffers[each.buffer].data is not None)
  other = copy.copy(shared)
  other.type = schema.TensorType.INT32
  graph.tensors.append(other)
  data = model.buffers[shared.buffer].data
  found = converters._in_16_bits(bytes(flatbuffer_utils.convert_object_to_bytearray(model)))
  found = flatbuffer_utils.read_model_from_bytearray(bytearray(found))
  (kept,) = (each for each in found.subgraphs[0].tensors if each.type == schema.TensorType.INT32)
  np.testing.assert_array_equal(found.buffers[kept.buffer].data, data)


def test_onnx_refuses_weights_that_float16_does_not_hold(tmp_path):
  weight = tf.Variable([[1e5], [1], [1], [1]], name='weight')
  with pytest.raises(errors.UserError, match='float16: weight:0 has the value 100000, and float16 holds 65504 at most'):
    converters.convert_to_onnx(traced(lambda x: {'y': x @ weight}), 'float16', None, str(tmp_path / 'model.onnx'))
