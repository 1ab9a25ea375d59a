"""The answer to a request does not depend on the requests that arrive with it: models and sizes are drawn."""

import asyncio
import json

import numpy as np
import pytest
import tensorflow as tf

from official_ext.deployment import batch_dimension
from official_ext.deployment.server import app
from official_ext.deployment.server import served_model
from tests import tiers

SPEC = tf.TensorSpec([None, 3], tf.float32, 'x')
NAMES = ['ant', 'bee', 'cat']


def normalized(x):
  return (x - tf.reduce_mean(x, 0)) / (tf.math.reduce_std(x, 0) + 1)


# An output by name, (the function, whether it has rows, whether its requests may share a computation).
OUTPUTS = {
  'scores': (tf.nn.softmax, True, True),
  'names': (lambda x: tf.constant(NAMES), False, True),
  'temperature': (lambda x: tf.constant(2.0), False, True),
  'one': (lambda x: tf.constant([7]), False, True),
  'unnamed': (lambda x: tf.raw_ops.PlaceholderWithDefault(input=NAMES, shape=[None]), False, True),
  'best': (lambda x: tf.gather(NAMES, tf.argmax(x, 1)), True, True),
  'mapped': (lambda x: tf.map_fn(lambda row: tf.reduce_max(row) * row, x), True, True),
  'flat': (lambda x: x[:, 0], True, True),
  'branch': (lambda x: tf.cond(x[0, 0] > 0, lambda: x + 1, lambda: x * 2), True, False),
  'alike': (lambda x: tf.matmul(x, x, transpose_b=True), True, False),
  'mean': (lambda x: tf.reduce_mean(x, 0), False, False),
  'kept_mean': (lambda x: tf.reduce_mean(x, 0, keepdims=True), False, False),
  'count': (lambda x: tf.shape(x)[0], False, False),
  'found': (lambda x: tf.where(x > 0.5), None, False),
  'positive': (lambda x: tf.boolean_mask(x, x[:, 0] > 0.5), None, False),
  'words': (lambda x: tf.strings.split(tf.strings.as_string(x[:, 0], precision=1), '.').to_tensor(''), None, False),
  'squeezed': (lambda x: tf.squeeze(x[:, :1]), None, False),
  'first': (lambda x: x[:2], None, False),
  'pairs': (lambda x: tf.reshape(x, [-1, 1]), None, False),
  'normalized': (normalized, True, True),
  'turned': (lambda x: tf.reverse(x, [0]), True, True),
}
# Their rows have the shapes of rows, and depend on other rows.
MIXED = ('normalized', 'turned')


def function_of(names):
  """A tf.function with some of `OUTPUTS`."""

  @tf.function(input_signature=[SPEC])
  def call(x):
    return {name: OUTPUTS[name][0](x) for name in names}

  return call


def served(function, folder):
  module = tf.Module()
  module.function = function
  tf.saved_model.save(module, str(folder), signatures=function)
  return served_model.load(str(folder), 'model')


def answers(model, bodies, **settings):
  """(status, answer) of requests that are made at once, and of each alone after that."""
  made = app.make_app(model, app.Settings(max_latency_ms=20, **settings))

  async def post(body):
    sent = []

    async def receive():
      return {'type': 'http.request', 'body': json.dumps(body).encode(), 'more_body': False}

    async def send(message):
      sent.append(message)

    path = '/v1/models/model:predict'
    scope = {'type': 'http', 'method': 'POST', 'path': path, 'headers': [], 'query_string': b'', 'root_path': ''}
    await made(scope, receive, send)
    return sent[0]['status'], json.loads(sent[1]['body'])

  async def ask():
    async with made.router.lifespan_context(made):
      together = await asyncio.wait_for(asyncio.gather(*map(post, bodies)), 60)
      return together, [await post(body) for body in bodies]

  return asyncio.run(ask())


def assert_close(found, expected):
  """Values of JSON, texts in full and numbers up to rounding."""
  flat, others = tf.nest.flatten(found), tf.nest.flatten(expected)
  tf.nest.assert_same_structure(found, expected)
  for one, other in zip(flat, others):
    assert one == (pytest.approx(other, rel=1e-4, abs=1e-5) if isinstance(other, float) else other)


def plain(tensor):
  array = tensor.numpy()
  return (array.astype(str) if array.dtype == object else array).tolist()


@pytest.mark.parametrize('name', OUTPUTS)
def test_the_graph_shows_which_outputs_have_a_row_for_each_example(name):
  (found,) = batch_dimension.of_outputs(function_of([name]).get_concrete_function()).values()
  assert (found.has_batch, found.is_joinable) == OUTPUTS[name][1:]


@tiers.parametrize('seed', range(40), fast=8)
def test_joined_and_single_requests_agree(seed, tmp_path):
  rng = np.random.default_rng(seed)
  names = list(rng.choice(list(OUTPUTS), rng.integers(1, 4), replace=False))
  function = function_of(names)
  model = served(function, tmp_path)
  batches = [rng.random([rng.integers(1, 5), 3]).astype(np.float32) for _ in range(6)]
  bodies = [{'inputs': batch.tolist()} for batch in batches] + [{'instances': batch.tolist()} for batch in batches]
  together, alone = answers(model, bodies, max_batch_size=int(rng.integers(2, 16)))
  assert [status for status, _ in together] == [status for status, _ in alone]
  for one, other in zip(together, alone):
    assert_close(one, other)
  for batch, (status, answer) in zip(batches, together):
    expected = {name: plain(tensor) for name, tensor in function(batch).items()}
    assert status == 200
    assert_close(answer['outputs'], expected if len(names) > 1 else next(iter(expected.values())))
  has_rows = all(OUTPUTS[name][1] is not False for name in names)
  for batch, (status, answer) in zip(batches, together[len(batches) :]):
    if status == 200:
      assert has_rows and len(answer['predictions']) == len(batch)
    else:
      assert status == 400 and answer['error'].startswith('instances: ') and 'send "inputs"' in answer['error']
      assert not all(OUTPUTS[name][1] for name in names)


@tiers.parametrize('name', ['scores', 'names', 'mapped', *MIXED, 'branch', 'mean', 'positive'], fast=1)
def test_requests_share_a_computation_if_their_answers_remain_the_same(name, tmp_path, capsys):
  model = served(function_of([name, 'scores']), tmp_path)
  sizes = []
  compute = model.compute
  model = served_model.ServedModel(
    **{**vars(model), 'compute': lambda inputs: sizes.append(len(inputs['x'])) or compute(inputs)}
  )
  x = np.random.default_rng(0).random([6, 3]).astype(np.float32) - 0.5
  together, _ = answers(model, [{'inputs': [row.tolist()]} for row in x])
  assert max(sizes) == (6 if name in ('scores', 'names', 'mapped') else 4 if name in MIXED else 1)
  line = f'each request is computed by itself: {name} depends on the other examples of a computation\n'
  assert capsys.readouterr().out == (line if name in MIXED else '')
  for row, (_, answer) in zip(x, together):
    expected = {each: plain(tensor) for each, tensor in function_of([name, 'scores'])(row[np.newaxis]).items()}
    assert_close(answer['outputs'], expected if name != 'scores' else expected['scores'])


def test_inputs_of_several_sizes_scalars_and_texts(tmp_path):
  @tf.function(
    input_signature=[
      tf.TensorSpec([None, 2], tf.float32, 'query'),
      tf.TensorSpec([None, 2], tf.float32, 'document'),
      tf.TensorSpec([], tf.float32, 'scale'),
      tf.TensorSpec([None, 2], tf.string, 'words'),
    ]
  )
  def call(query, document, scale, words):
    return {'score': scale * tf.matmul(query, document, transpose_b=True), 'joined': tf.strings.reduce_join(words, 1)}

  model = served(call, tmp_path)
  assert model.apart == 'not every input has a batch dimension'
  inputs = {'query': [[1, 2]], 'document': [[3, 4], [5, 6], [7, 8]], 'scale': 2, 'words': [['a', 'b']]}
  together, _ = answers(model, [{'inputs': inputs}, {'inputs': {**inputs, 'scale': 3}}])
  assert together[0] == (200, {'outputs': {'score': [[22, 34, 46]], 'joined': ['ab']}})
  assert together[1][1]['outputs']['score'] == [[33, 51, 69]]
  row = {'query': [1, 2], 'document': [3, 4], 'scale': 1, 'words': ['a', 'b']}
  ((status, answer),) = answers(model, [{'instances': [row]}])[0]
  assert status == 400 and answer == {'error': 'instances: scale is one value for all examples; send "inputs"'}


def test_a_model_of_four_examples_takes_four(tmp_path):
  @tf.function(input_signature=[tf.TensorSpec([4, 1], tf.float32, 'x')])
  def call(x):
    return {'y': 2 * x, 'total': tf.reduce_sum(x, 0, keepdims=True)}

  model = served(call, tmp_path)
  body = {'inputs': [[1], [2], [3], [4]]}
  (found, short, rows), _ = answers(model, [body, {'inputs': [[1]]}, {'instances': body['inputs']}])
  assert found == (200, {'outputs': {'y': [[2], [4], [6], [8]], 'total': [[10]]}})
  assert short == (400, {'error': 'x: has the shape (1, 1), expected (4, 1)'})
  assert rows[0] == 400 and 'instances: total has the shape (1, 1) for 4 examples' in rows[1]['error']


def test_a_model_of_one_example_computes_several_one_by_one(tmp_path):
  @tf.function(input_signature=[tf.TensorSpec([1, 1], tf.float32, 'x')])
  def call(x):
    return {'y': 2 * x, 'names': tf.constant(['one'])}

  @tf.function(input_signature=[tf.TensorSpec([1, 1], tf.float32, 'x')])
  def asserted(x):
    with tf.control_dependencies([tf.debugging.assert_less(x, 9.0)]):
      return {'y': 2 * x}

  @tf.function(input_signature=[tf.TensorSpec([1, 1], tf.float32, 'x')])
  def without_rows(x):
    return {'y': tf.concat([x, x], 0)}

  model = served(call, tmp_path / 'rows')
  (found, rows), _ = answers(model, [{'inputs': [[1], [2]]}, {'instances': [[1], [2]]}])
  assert found == (200, {'outputs': {'y': [[2], [4]], 'names': ['one']}})
  assert rows[0] == 400 and 'instances: names has no batch dimension' in rows[1]['error']
  model = served(asserted, tmp_path / 'asserted')  # Its graph does not show that rows are independent.
  assert answers(model, [{'instances': [[1], [2]]}])[0] == [(200, {'predictions': [[2], [4]]})]
  model = served(without_rows, tmp_path / 'none')
  (one, several), _ = answers(model, [{'inputs': [[1]]}, {'inputs': [[1], [2]]}])
  assert one == (200, {'outputs': [[1], [1]]})
  assert several == (400, {'error': 'inputs: the model fails on these inputs: the model takes one example'})
