"""Requests in the form of TensorFlow Serving, and messages about those that are wrong."""

import base64
import json

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.deployment.server import served_model
from official_ext.deployment.server import tensor_json

IMAGE = {'image': served_model.TensorSpec('image', 'float32', (None, 2))}
WORDS = {
  'ids': served_model.TensorSpec('ids', 'int32', (None, None)),
  'mask': served_model.TensorSpec('mask', 'int32', (None, None)),
}
SCALAR = {'scale': served_model.TensorSpec('scale', 'float32', ())}
FOUR = {'four': served_model.TensorSpec('four', 'float32', (4, 2))}
PAIRS = {'texts': served_model.TensorSpec('texts', 'string', (None, 2))}
BYTES = {'inputs': served_model.TensorSpec('inputs', 'string', (None,))}


@pytest.mark.parametrize(
  'request_json',
  [
    {'instances': [[1, 2], [3, 4]]},
    {'instances': [{'image': [1, 2]}, {'image': [3, 4]}]},
    {'inputs': [[1, 2], [3, 4]]},
    {'inputs': {'image': [[1, 2], [3, 4]]}},
    {'inputs': {'image': [[1, 2], [3, 4]]}, 'signature_name': 'serving_default'},
  ],
)
def test_every_form_of_a_request_is_read(request_json):
  arrays, has_instances = tensor_json.decode(request_json, IMAGE)
  assert arrays['image'].dtype == np.float32 and arrays['image'].tolist() == [[1, 2], [3, 4]]
  assert has_instances == ('instances' in request_json)


def test_several_inputs_and_bytes_are_read():
  arrays, _ = tensor_json.decode({'instances': [{'ids': [1, 2], 'mask': [1, 0]}]}, WORDS)
  assert arrays['ids'].tolist() == [[1, 2]] and arrays['mask'].dtype == np.int32
  encoded = {'b64': base64.b64encode(b'\x00\xff').decode()}
  for given in ({'instances': [encoded, 'text']}, {'inputs': {'inputs': [encoded, 'text']}}):
    assert tensor_json.decode(given, BYTES)[0]['inputs'].tolist() == [b'\x00\xff', b'text']


@pytest.mark.parametrize(
  'request_json, inputs, words',
  [
    ([], IMAGE, 'request: expected a JSON object with "instances" or "inputs"'),
    ({}, IMAGE, 'request: expected either "instances"'),
    ({'instances': [], 'inputs': []}, IMAGE, 'request: expected either "instances"'),
    ({'instances': []}, IMAGE, 'instances: is empty'),
    ({'instances': [[1, 1e39]]}, IMAGE, r'image: expected numbers up to 3.40282e\+38 \(float32\)'),
    ({'instances': 3}, IMAGE, 'instances: expected a list'),
    ({'instances': [[1, 2]], 'signature_name': 'x'}, IMAGE, 'signature_name: x: this server has serving_default'),
    (
      {'instances': [[1, 2]], 'output_filter': ['a']},
      IMAGE,
      r"request: output_filter: \['a'\] may change the answer: not known here",
    ),
    ({'instances': [[1, 2], [3]]}, IMAGE, 'image: its lists have different lengths'),
    ({'instances': [[1, 2, 3]]}, IMAGE, r'image: an example has the shape \(3,\), expected \(2\)'),
    ({'instances': [['a', 'b']]}, IMAGE, 'image: expected numbers'),
    ({'instances': [{'image': [1, 2], 'other': 1}]}, IMAGE, r'instances\[0\]: other is unknown; the model takes image'),
    ({'instances': [[1, 2]]}, WORDS, r'instances\[0\]: expected an object with ids, mask'),
    ({'instances': [{'ids': [1, 2]}]}, WORDS, r'instances\[0\]: mask is missing; the model takes ids, mask'),
    ({'inputs': {'ids': [], 'mask': []}}, WORDS, r'ids: an example has the shape \(\), expected \(any\)'),
    ({'inputs': []}, BYTES, 'inputs: have no examples'),
    ({'instances': [1]}, SCALAR, 'instances: scale is one value for all examples; send "inputs"'),
    ({'inputs': [1, 2]}, SCALAR, r'scale: has the shape \(2,\), expected \(\)'),
    ({'inputs': [[1, 2]]}, FOUR, r'four: has the shape \(1, 2\), expected \(4, 2\)'),
    ({'inputs': [['a', 'b'], ['c']]}, PAIRS, 'texts: its lists have different lengths'),
    ({'instances': [{'ids': [0.5], 'mask': [1]}]}, WORDS, 'ids: expected numbers'),
    ({'instances': [{'ids': [2**40], 'mask': [1]}]}, WORDS, 'ids: expected numbers from -2147483648 to 2147483647'),
    ({'instances': [{'b64': '?'}]}, BYTES, 'inputs: b64 is not base 64'),
    ({'instances': [3]}, BYTES, 'inputs: expected texts'),
  ],
)
def test_wrong_requests_are_explained_in_one_line(request_json, inputs, words):
  with pytest.raises(errors.UserError, match=words) as raised:
    tensor_json.decode(request_json, inputs)
  assert '\n' not in str(raised.value)


def test_answers_name_outputs_only_if_there_are_several():
  logits, probs = np.array([[1.5, 2.0]], np.float32), np.array([[0.25, 0.75]])
  assert tensor_json.encode({'logits': logits}, True) == {'predictions': [[1.5, 2.0]]}
  assert tensor_json.encode({'logits': logits}, False) == {'outputs': [[1.5, 2.0]]}
  both = {'logits': logits, 'probs': probs}
  assert tensor_json.encode(both, True) == {'predictions': [{'logits': [1.5, 2.0], 'probs': [0.25, 0.75]}]}
  assert tensor_json.encode(both, False) == {'outputs': {'logits': [[1.5, 2.0]], 'probs': [[0.25, 0.75]]}}
  texts = np.array([b'ab', b'\xff'], object)
  assert tensor_json.encode({'t': texts}, True) == {'predictions': ['ab', {'b64': '/w=='}]}


def test_numbers_that_are_not_finite_are_the_tokens_of_tensorflow_serving():
  values = np.array([[np.nan, np.inf, -np.inf, 1.5]], np.float32)
  content = tensor_json.dump(tensor_json.encode({'t': values}, True))
  assert content == b'{"predictions":[[NaN,Infinity,-Infinity,1.5]]}'
  np.testing.assert_array_equal(json.loads(content)['predictions'], values)
  inputs = {'x': served_model.TensorSpec('x', 'float32', (None, 4))}
  arrays, _ = tensor_json.decode(json.loads('{"instances": [[NaN, Infinity, -Infinity, 1.5]]}'), inputs)
  np.testing.assert_array_equal(arrays['x'], values)


def test_inputs_may_have_other_numbers_of_examples_no_batch_or_texts_in_lists():
  arrays, _ = tensor_json.decode({'inputs': {'ids': [[1]], 'mask': [[1], [1]]}}, WORDS)
  assert arrays['ids'].shape == (1, 1) and arrays['mask'].shape == (2, 1)
  assert tensor_json.decode({'inputs': 3}, SCALAR)[0]['scale'].shape == ()
  assert tensor_json.decode({'instances': [['a', 'b']]}, PAIRS)[0]['texts'].tolist() == [[b'a', b'b']]


def test_predictions_require_a_row_of_each_output_for_each_example():
  has_none = served_model.OutputSpec('names', 'string', (3,), has_batch=False, is_joinable=True)
  with pytest.raises(errors.UserError, match='instances: names has no batch dimension.*send "inputs"'):
    tensor_json.check_rows({'names': has_none})
  tensor_json.check_rows({'found': served_model.OutputSpec('found', 'int64', (None, 2))})
  assert tensor_json.rows('found', np.ones([1, 2]), 1).shape == (1, 2)
  assert tensor_json.rows('found', np.array(5), 1).tolist() == [5]
  for array, number in ((np.ones([2, 2]), 1), (np.ones([2, 2]), 3), (np.array(5), 2)):
    with pytest.raises(errors.UserError, match='instances: found has the shape .* send "inputs"'):
      tensor_json.rows('found', array, number)
