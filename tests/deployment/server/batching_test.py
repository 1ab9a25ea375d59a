"""Requests that arrive together share a computation, and keep their own answers."""

import asyncio
import threading

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.deployment.server import batching


def batcher(compute, **settings):
  sizes = []
  values = {'max_batch_size': 8, 'max_latency': 0.05, 'max_waiting': 100, **settings}
  return batching.Batcher(compute, observe=sizes.append, **values), sizes


def answers(made, requests):
  """The answers to requests that are made at once."""

  async def ask():
    work = asyncio.create_task(made.run())
    try:
      asked = asyncio.gather(*(made.predict({'x': np.array(one)}) for one in requests), return_exceptions=True)
      return await asyncio.wait_for(asked, 20)
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

  found = batching.one_by_one(single)({'x': np.array([[1], [2], [3]])})
  assert found['y'].tolist() == [[2], [3], [4]] and found['constant'].tolist() == [3, 3, 3] and len(calls) == 3


@pytest.mark.parametrize('size', [1, 3])
def test_an_output_without_a_batch_is_repeated(size):
  made, _ = batcher(lambda inputs: {'y': np.float32(7)})
  (answer,) = answers(made, [np.ones([size, 1])])
  assert answer['y'].tolist() == [7] * size
