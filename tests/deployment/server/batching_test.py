"""Requests that arrive together share a computation, and keep their own answers."""

import asyncio
import threading

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.deployment.server import batching


def batcher(compute, **settings):
  sizes = []
  values = {'rows': ['y'], 'max_batch_size': 8, 'max_latency': 0.05, 'max_waiting': 100, **settings}
  return batching.Batcher(compute, observe=sizes.append, **values), sizes


def answers(made, requests, *later):
  """The answers to requests that are made at once; also to those that are made after these."""

  async def ask():
    work = asyncio.create_task(made.run())
    found = []
    try:
      for several in (requests, *later):
        asked = asyncio.gather(*(made.predict({'x': np.array(one)}) for one in several), return_exceptions=True)
        found += await asyncio.wait_for(asked, 20)
      return found
    finally:
      work.cancel()

  return asyncio.run(ask())


def double(inputs):
  return {'y': inputs['x'] * 2}


def test_requests_share_batches_and_get_their_own_rows():
  made, sizes = batcher(double)
  found = answers(made, [[[number]] for number in range(20)])
  assert [answer['y'].tolist() for answer in found] == [[[2 * number]] for number in range(20)]
  assert sizes == [8, 8, 4]


def test_a_full_batch_does_not_wait():
  made, sizes = batcher(double, max_latency=60.0)
  assert len(answers(made, [[[1]]] * 8)) == 8 and sizes == [8]


def test_a_large_request_is_computed_in_parts():
  made, sizes = batcher(double)
  (answer,) = answers(made, [np.arange(20)[:, np.newaxis]])
  assert answer['y'][:, 0].tolist() == list(range(0, 40, 2)) and sizes == [8, 8, 4]


def test_examples_of_other_shapes_are_not_joined():
  made, sizes = batcher(double)
  found = answers(made, [[[1]], [[1, 2]], [[3]]])
  assert [answer['y'].tolist() for answer in found] == [[[2]], [[2, 4]], [[6]]] and sorted(sizes) == [1, 2]


def test_a_request_that_fails_spoils_no_other():
  def compute(inputs):
    if 13 in inputs['x']:
      raise RuntimeError('13 is\nunlucky')
    return double(inputs)

  made, _ = batcher(compute)
  found = answers(made, [[[1]], [[13]], [[2]]])
  assert found[0]['y'].tolist() == [[2]] and found[2]['y'].tolist() == [[4]]
  assert isinstance(found[1], errors.UserError)
  assert str(found[1]) == 'inputs: the model fails on these inputs: 13 is unlucky'


def test_too_many_requests_are_refused():
  free = threading.Event()

  def compute(inputs):
    free.wait(10)
    return double(inputs)

  async def ask():
    made, _ = batcher(compute, max_waiting=2, max_batch_size=1)
    work = asyncio.create_task(made.run())
    tasks = [asyncio.create_task(made.predict({'x': np.array([[1]])})) for _ in range(3)]
    done, _ = await asyncio.wait(tasks, timeout=0.1)
    assert [type(task.exception()) for task in done] == [batching.OverloadedError]
    free.set()
    await asyncio.wait([task for task in tasks if task not in done])
    work.cancel()

  asyncio.run(ask())


def test_a_model_of_single_examples_computes_a_batch():
  calls = []

  def single(inputs):
    assert len(inputs['x']) == 1
    calls.append(1)
    return {'y': inputs['x'] + 1, 'constant': np.float32(3)}

  inputs = {'x': np.array([[1], [2], [3]])}
  found = batching.one_by_one(single, ['y'])(inputs)
  assert found['y'].tolist() == [[2], [3], [4]] and found['constant'] == 3 and len(calls) == 3
  with pytest.raises(ValueError, match='the model takes one example'):
    batching.one_by_one(single, None)(inputs)


def test_requests_without_rows_are_computed_as_they_are():
  made, sizes = batcher(lambda inputs: {'y': inputs['x'].sum()}, rows=None)
  found = answers(made, [np.ones([size, 1]) for size in (1, 2, 20)])
  assert [answer['y'].tolist() for answer in found] == [1, 2, 20] and sizes == [1, 2, 20]


def test_a_constant_is_whole_in_each_answer():
  made, sizes = batcher(lambda inputs: {**double(inputs), 'names': np.array(['a', 'b', 'c'])})
  found = answers(made, [[[1]], [[2], [3]], np.arange(20)[:, np.newaxis]])
  assert [answer['names'].tolist() for answer in found] == [['a', 'b', 'c']] * 3
  assert [len(answer['y']) for answer in found] == [1, 2, 20] and sizes == [3, 8, 8, 4]


def centered(inputs):
  return {'y': inputs['x'] - inputs['x'].mean(0)}


def refusing(inputs):
  if len(inputs['x']) > 1:
    raise RuntimeError('one')
  return double(inputs)


@pytest.mark.parametrize(
  'compute, reason',
  [
    (centered, 'y depends on the other examples of a computation'),
    (refusing, 'the model fails on examples together that it computes alone: one'),
  ],
)
def test_rows_that_depend_on_each_other_are_found_before_the_first_answer(compute, reason):
  reasons = []
  made, sizes = batcher(compute, report=reasons.append)
  found = answers(made, [[[1.0]], [[2.0]], [[3.0]]])
  expected = [compute({'x': np.array([[number]])})['y'].tolist() for number in (1.0, 2.0, 3.0)]
  assert [answer['y'].tolist() for answer in found] == expected
  assert sizes == [1, 1, 1] and reasons == [reason]


def test_equal_examples_prove_no_independence():
  made, sizes = batcher(centered)
  found = answers(made, [[[1.0]]] * 3, [[[1.0]], [[2.0]]])
  assert [answer['y'].tolist() for answer in found] == [[[0.0]]] * 5 and sizes == [3, 1, 1]


def test_rounding_is_no_dependence_and_other_texts_are():
  def rounded(inputs):
    return {'y': inputs['x'] * (1 + 1e-6 * len(inputs['x'])) + np.where(inputs['x'] > 8, np.nan, 0)}

  made, sizes = batcher(rounded)
  found = answers(made, [[[1.0]], [[9.0]]])
  assert found[0]['y'] == pytest.approx(1, rel=1e-5) and np.isnan(found[1]['y']).all() and sizes == [2]
  made, sizes = batcher(lambda inputs: {'y': np.array([f'{len(inputs["x"])}'.encode()] * len(inputs['x']), object)})
  assert [answer['y'].tolist() for answer in answers(made, [[[1]], [[2]]])] == [[b'1'], [b'1']] and sizes == [1, 1]


def test_an_output_with_another_number_of_rows_than_declared_is_not_split():
  made, _ = batcher(lambda inputs: {'y': np.ones([min(len(inputs['x']), 5)])})
  found = answers(made, [[[number]] for number in range(6)])
  assert [answer['y'].tolist() for answer in found] == [[1.0]] * 6
