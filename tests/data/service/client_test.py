"""Batches from a tf.data service, with a real dispatcher and real workers in this process: none is ever another one."""

import contextlib
import dataclasses
import gc
import logging
import re
import socket
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.data import pipelines
from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.data.service import client
from official_ext.data.service import worker
from official_ext.training.config import definitions
from tests import tiers

service_lib = tf.data.experimental.service
NUM_EXAMPLES, BATCH_SIZE = 60, 8


@dataclasses.dataclass
class Numbers(sources.Source):
  """Examples of several dtypes, which take a while, so that a service is worth its while."""

  seconds: float = 0.0
  bad: tuple[int, ...] = ()
  shift: int = 0

  def __len__(self):
    return NUM_EXAMPLES

  def fetch(self, indices):
    time.sleep(self.seconds)
    if set(indices) & set(self.bad):
      raise ValueError('broken')
    return [
      {
        'number': np.int64(index + self.shift),
        'text': f'example {index}'.encode(),
        'half': np.full([3], index, tf.bfloat16.as_numpy_dtype),
        'is_even': np.bool_(index % 2 == 0),
      }
      for index in indices
    ]


def _augment(batch, seeds):
  noise = tf.map_fn(lambda seed: tf.random.stateless_normal([2], seed), seeds, fn_output_signature=tf.float32)
  # TensorFlow computes a quotient by a constant in two ways, which differ in the last bit.
  return {**batch, 'noise': noise, 'quotient': tf.cast(batch['number'], tf.float32) / 255.0}


def _params(address=None, **fields):
  fields = {'is_training': True, 'seed': 3, 'global_batch_size': BATCH_SIZE, **fields}
  return definitions.DataConfig(enable_tf_data_service=bool(address), tf_data_service_address=address, **fields)


def _build(address=None, source=None, context=None, start=0, **fields):
  with pipelines.starting_at(start):
    source = source or Numbers(seconds=0.01 if address else 0.0)
    return step_indexed.build_dataset(source, _params(address, **fields), context, _augment)


class Requests:
  """Knows when the workers of this process are at rest.

  TensorFlow's servers keep Python's lock while they stop, and wait meanwhile for requests, which need it.
  """

  def __init__(self):
    self._lock = threading.Lock()
    self._running, self._last = 0, time.monotonic()

  def counted(self, answer):
    def counting(*arguments):
      with self._lock:
        self._running += 1
      try:
        return answer(*arguments)
      finally:
        with self._lock:
          self._running, self._last = self._running - 1, time.monotonic()

    return counting

  def wait_until_idle(self):
    while self._running or time.monotonic() - self._last < 1.0:
      time.sleep(0.05)


@pytest.fixture(scope='module')
def requests():
  return Requests()


@pytest.fixture(scope='module')
def servers(requests):
  """What is stopped at the end."""
  with contextlib.ExitStack() as stack:
    yield stack
    gc.collect()
    requests.wait_until_idle()


class Service:
  """A dispatcher and workers."""

  def __init__(self, servers, requests):
    self.dispatcher = service_lib.DispatchServer(service_lib.DispatcherConfig(port=0))
    servers.callback(self.dispatcher._stop)
    self.address = self.dispatcher.target
    self._servers, self._requests = servers, requests

  def add_worker(self, *sources_, answer=None, **fields):
    """Adds one that knows the inputs of `_build` for some sources; returns its answers."""
    with worker.collected() as inputs, bad_examples.logged_in(bad_examples.ExampleLog()):
      for source in sources_ or (Numbers(seconds=0.01),):
        for is_training in (True, False):
          _build('grpc://unused:1', source, is_training=is_training, **fields)
    answers = worker.Answers(inputs)
    self.function = self._requests.counted(answer(answers) if answer else answers)
    worker.register(self.function)
    config = service_lib.WorkerConfig(self.address.partition('://')[2], heartbeat_interval_ms=100)
    server = service_lib.WorkerServer(config)
    self._servers.callback(server._stop)
    return answers


@pytest.fixture
def service(servers, requests):
  return Service(servers, requests)


def _values(dataset, count=None):
  """The batches of a dataset as dictionaries of lists."""
  found = []
  for batch in dataset if count is None else dataset.take(count):
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    found.append({name: array.tolist() for name, array in arrays.items()})
  return found


@pytest.fixture
def made_here(monkeypatch):
  """The numbers of the elements that the run has made itself."""
  numbers, make = [], client.Request.make

  def noting(request, number):
    numbers.append(number)
    return make(request, number)

  monkeypatch.setattr(client.Request, 'make', noting)
  return numbers


STEP_SECONDS, DEADLINE_SECONDS = 0.02, 180


def _steps(iterator, is_enough):
  """The batches of steps that take longer than a batch does here, until there are enough."""
  found, deadline = [], time.monotonic() + DEADLINE_SECONDS
  while not is_enough(len(found)):
    assert time.monotonic() < deadline
    found.append({name: tensor.numpy().tolist() for name, tensor in next(iterator).items()})
    time.sleep(STEP_SECONDS)
  return found


@pytest.mark.slow
@tiers.parametrize('start', [0, 1000], fast=1)
def test_training_has_the_same_batches_with_a_service(service, made_here, start):
  """Until 50 in a row were none that the run has made; it reads ahead."""
  service.add_worker()
  iterator = iter(_build(service.address, start=start))
  found = _steps(iterator, lambda count: made_here and start + count - made_here[-1] > 50)
  assert found == _values(_build(start=start), len(found))
  assert made_here[0] == start


def test_elements_have_the_same_specs(service):
  assert _build(service.address).element_spec == _build().element_spec
  assert _build(service.address, is_training=False).element_spec == _build(is_training=False).element_spec


@pytest.mark.slow
@tiers.parametrize('drop_remainder', [False, True], fast=1)
def test_an_evaluation_has_each_example_once_in_every_pass(service, made_here, drop_remainder):
  slow = Numbers(seconds=0.2)
  service.add_worker(slow, drop_remainder=drop_remainder)
  how = {'is_training': False, 'drop_remainder': drop_remainder}
  dataset = _build(service.address, slow, **how)
  straight = _values(_build(**how))
  assert len(straight) == NUM_EXAMPLES // BATCH_SIZE + (not drop_remainder)
  passes, deadline = 0, time.monotonic() + DEADLINE_SECONDS
  while passes < 2 or len(made_here) == passes * len(straight):
    assert _values(dataset) == straight
    passes += 1
    assert time.monotonic() < deadline


@pytest.mark.slow
def test_an_evaluation_does_not_depend_on_the_batches_of_the_worker(service):
  """Which has 6 full ones, where the run has 7 and a half."""
  service.add_worker(Numbers(seconds=0.1), global_batch_size=10)
  second = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=2)
  for context in (None, second):
    how = {'is_training': False, 'drop_remainder': False, 'context': context}
    assert _values(_build(service.address, Numbers(seconds=0.1), **how)) == _values(_build(**how))


@tiers.parametrize('is_training', [True, False], fast=[False])
def test_replicas_get_their_slices(service, is_training):
  """Two pipelines of two replicas each; 60 examples end in the middle of a batch, and leave replicas without any."""
  answers = service.add_worker()
  for pipeline in range(2):
    context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=pipeline, num_replicas_in_sync=4)
    how = {'context': context, 'is_training': is_training}
    count = 100 if is_training else None
    assert _values(_build(service.address, **how), count) == _values(_build(**how), count)
  assert answers.num_batches > 0


def _after_the_service_is_used(dataset, answers, count=10):
  """An iterator over a dataset once the batches of a service have come, and how many elements it has given."""
  iterator, taken = iter(dataset), 0
  while answers.num_batches < count:
    next(iterator)
    taken += 1
  return iterator, taken


@pytest.mark.slow
def test_a_batch_that_does_not_come_is_made_when_others_have_overtaken_it(service, monkeypatch):
  """One answer of many is kept back for longer than the run waits for anything."""
  monkeypatch.setattr(client, '_PATIENCE_SECONDS', 60.0)
  released, kept = threading.Event(), []

  def keeping(answers):
    def answer(key, first, *rest):
      if first >= 100 * BATCH_SIZE and not kept:
        kept.append(int(first) // BATCH_SIZE)
        released.wait(60)
      return answers(key, first, *rest)

    return answer

  service.add_worker(answer=keeping)
  began = time.monotonic()
  try:
    found = _steps(iter(_build(service.address)), lambda count: kept and count > kept[0] + 10)
  finally:
    released.set()
  assert found == _values(_build(), len(found)) and time.monotonic() - began < 60


@pytest.mark.slow
def test_a_slow_service_holds_nobody_up(service, made_here):
  """Each of its batches takes a second, and two are made at a time; here 10 milliseconds."""

  def slow(answers):
    def answer(*arguments):
      time.sleep(1)
      return answers(*arguments)

    return answer

  service.add_worker(answer=slow)
  dataset = _build(service.address)
  began = time.monotonic()
  assert _values(dataset, 60) == _values(_build(), 60)
  assert time.monotonic() - began < 20 and len(made_here) > 30


def _reported(text, answers):
  """What is said of a worker, each time."""
  return re.findall(f'task.train_data: worker {re.escape(answers.name)} of the tf.data service is ignored: (.*)', text)


@pytest.mark.slow
def test_a_worker_with_other_batches_is_not_used(service, caplog):
  """It has the same files by name and size, with other content."""
  answers = service.add_worker(Numbers(seconds=0.01, shift=1))
  with caplog.at_level(logging.WARNING):
    found = _steps(iter(_build(service.address)), lambda count: count > 20 and _reported(caplog.text, answers))
  assert found == _values(_build(), len(found))
  (reported,) = _reported(caplog.text, answers)
  assert re.match(r'element \d+ is not the one that is made here\. Start it with the same flags', reported)


@pytest.mark.slow
def test_a_worker_whose_batches_become_others_is_found(service, made_here, caplog, monkeypatch):
  """In the middle its files change."""
  monkeypatch.setattr(client, '_COMPARED_EVERY', 50)
  source = Numbers(seconds=0.01)
  answers = service.add_worker(source)
  iterator = iter(_build(service.address))
  _steps(iterator, lambda count: made_here and count - made_here[-1] > 15)
  source.shift = 1
  with caplog.at_level(logging.WARNING):
    _steps(iterator, lambda count: _reported(caplog.text, answers))
  (reported,) = _reported(caplog.text, answers)
  assert 'elements of it were used, of which only some were compared' in reported


@pytest.mark.slow
@tiers.parametrize('name', ['seed', 'task', 'transform', 'dtype'], fast=['seed'])
def test_a_worker_with_other_inputs_is_named(service, caplog, monkeypatch, name):
  if name == 'task':
    with worker.belonging_to(definitions.TaskConfig(name='another')):
      answers = service.add_worker()
  elif name == 'transform':
    with monkeypatch.context() as other:
      other.setattr(sys.modules[__name__], '_augment', lambda batch, seeds: batch)
      answers = service.add_worker()
  elif name == 'dtype':

    def narrowing(answers):
      make = answers._make
      answers._make = lambda *arguments: (make(*arguments)[0], [np.float16(0)] * 6)
      return answers

    answers = service.add_worker(answer=narrowing)
  else:
    answers = service.add_worker(seed=4)
  monkeypatch.setattr(worker, '_PAUSE_SECONDS', 0.02)
  with caplog.at_level(logging.WARNING):
    found = _steps(iter(_build(service.address)), lambda count: count > 20 and _reported(caplog.text, answers))
  assert found == _values(_build(), len(found))
  assert answers.num_batches == 0
  (reported,) = _reported(caplog.text, answers)
  assert reported.startswith('it has other data. ')


@pytest.mark.slow
def test_a_worker_that_cannot_read_is_named_once(service, caplog, monkeypatch):
  monkeypatch.setattr(worker, '_PAUSE_SECONDS', 0.02)
  answers = service.add_worker(Numbers(seconds=0.01, bad=tuple(range(1, NUM_EXAMPLES, 2))))
  reported = f'worker {answers.name} of the tf.data service could not make element '
  with caplog.at_level(logging.WARNING):
    found = _steps(iter(_build(service.address)), lambda count: count > 20 and reported in caplog.text)
  assert found == _values(_build(), len(found))
  assert caplog.text.count(reported) == 1 and 'ValueError: broken' in caplog.text


@pytest.mark.slow
def test_a_bad_example_is_named_as_without_a_service(service):
  source = Numbers(bad=(7,))
  service.add_worker(source)
  messages = []
  for address in (None, service.address):
    with pytest.raises(tf.errors.OpError) as raised:
      _values(_build(address, source), 2 * NUM_EXAMPLES // BATCH_SIZE)
    messages.append(str(raised.value).partition('BadExampleError: ')[2].splitlines()[0])
  assert messages[0] == messages[1] and 'example 7 of Numbers, at position ' in messages[0]


@pytest.mark.slow
@pytest.mark.parametrize('is_training', [True, False])
def test_skipped_examples_are_counted_as_without_a_service(service, is_training):
  source = Numbers(bad=(7, 30))
  how = {'is_training': is_training, 'on_bad_example': 'skip'}
  service.add_worker(source, on_bad_example='skip')
  found = []
  for address in (None, service.address):
    with bad_examples.logged_in(bad_examples.ExampleLog()) as log:
      batches = _values(_build(address, source, **how), 60 if is_training else None)
      end = 60 * BATCH_SIZE if is_training else None
      found.append((batches, log.take_skips(end)))
  assert found[0] == found[1] and found[0][1] == (16 if is_training else 2)


def _port_of_nobody():
  with socket.create_server(('localhost', 0)) as server:
    return server.getsockname()[1]


@pytest.mark.slow
def test_without_a_dispatcher_batches_are_made_here_and_a_line_reports_it(monkeypatch, caplog):
  monkeypatch.setattr(client, '_PATIENCE_SECONDS', 0.5)
  address = f'grpc://localhost:{_port_of_nobody()}'
  with caplog.at_level(logging.WARNING):
    assert _values(_build(address), 100) == _values(_build(), 100)
  reported = f'task.train_data: nothing has come from the tf.data service at {address}'
  assert caplog.text.count(reported) == 1 and 'Connection refused' in caplog.text


@pytest.mark.slow
def test_without_a_service_as_many_batches_are_made_at_a_time_as_when_none_is_asked_for():
  """32 of them, 4 at a time, for 0.1 seconds each."""
  iterator = iter(_build(f'grpc://localhost:{_port_of_nobody()}', Numbers(seconds=0.1), num_parallel_calls=4))
  found = [next(iterator)['number'].numpy().tolist()]
  began = time.monotonic()
  found += [next(iterator)['number'].numpy().tolist() for _ in range(32)]
  assert time.monotonic() - began < 0.6 * 32 * 0.1
  assert found == [batch['number'] for batch in _values(_build(), 33)]


@pytest.mark.slow
def test_a_worker_that_is_of_no_use_slows_nothing_down(service, caplog):
  """After its first batch, which is another one, 40 are made 4 at a time, for 0.2 seconds each."""
  answers = service.add_worker(Numbers(seconds=0.01, shift=1))
  iterator = iter(_build(service.address, Numbers(seconds=0.2), num_parallel_calls=4))
  with caplog.at_level(logging.WARNING):
    _steps(iterator, lambda count: _reported(caplog.text, answers))
  began = time.monotonic()
  for _ in range(40):
    next(iterator)
  assert time.monotonic() - began < 0.6 * 40 * 0.2


@pytest.mark.slow
def test_a_service_that_falls_silent_is_reported_and_used_again_when_it_answers(service, monkeypatch, caplog):
  monkeypatch.setattr(client, '_PATIENCE_SECONDS', 0.5)
  gate, waiting = threading.Event(), threading.Event()
  gate.set()

  def gated(answers):
    def answer(*arguments):
      if not gate.is_set():
        waiting.set()
        gate.wait(60)
      return answers(*arguments)

    return answer

  answers = service.add_worker(answer=gated)
  iterator, taken = _after_the_service_is_used(_build(service.address), answers)
  gate.clear()
  waiting.wait(10)
  reported = 'task.train_data: batches come from the tf.data service at '
  with caplog.at_level(logging.WARNING):
    silent = [next(iterator)['number'].numpy().tolist() for _ in range(150)]
    assert 'nothing has come from the tf.data service' in caplog.text
    gate.set()
    before, deadline = answers.num_batches, time.monotonic() + DEADLINE_SECONDS
    while reported not in caplog.text and time.monotonic() < deadline:
      silent.append(next(iterator)['number'].numpy().tolist())
      time.sleep(STEP_SECONDS)
  assert answers.num_batches > before and reported in caplog.text
  straight = [batch['number'] for batch in _values(_build(start=taken), len(silent))]
  assert silent == straight


@pytest.mark.slow
def test_an_iterator_that_is_given_up_leaves_no_thread(service, monkeypatch):
  """Whether it has begun, or waits for a service that says nothing, or for one that is not there."""
  monkeypatch.setattr(client, '_CONNECT_SECONDS', 0.2)
  before = set(threading.enumerate())
  answers = service.add_worker()
  iterator, _ = _after_the_service_is_used(_build(service.address), answers)
  others = [iter(_build(f'grpc://localhost:{_port_of_nobody()}')), iter(_build(service.address))]
  for each in others:
    next(each)
  ours = lambda name: [each for each in threading.enumerate() if each.name.startswith(name) and each not in before]
  assert len(ours(client.CLIENT_THREAD)) == 3 and ours(client.MAKER_THREAD)
  del iterator, others, each
  deadline = time.monotonic() + 20
  while ours(client.CLIENT_THREAD) + ours(client.MAKER_THREAD) and time.monotonic() < deadline:
    time.sleep(0.05)
  assert not ours(client.CLIENT_THREAD) + ours(client.MAKER_THREAD)


def test_ragged_batches_are_refused():
  ragged = lambda batch, seeds: {'rows': tf.RaggedTensor.from_tensor(batch['noise'])}
  with pytest.raises(errors.UserError, match='task.train_data.enable_tf_data_service: batches of ragged'):
    step_indexed.build_dataset(
      Numbers(), _params('grpc://localhost:1'), None, lambda batch, seeds: ragged(_augment(batch, seeds), seeds)
    )


@pytest.mark.parametrize(
  'address', ['grpc://localhost:65536', 'localhost:5050', 'grpc://localhost', 'grpc://:5050', 'http://localhost:5050']
)
def test_what_is_no_address_is_refused(address):
  with pytest.raises(errors.UserError, match='^here: expected grpc://HOST:PORT, got '):
    client.check_address(address, 'here')


def test_addresses_may_be_names_and_numbers():
  for address in ('grpc://localhost:5050', 'grpc://10.0.0.1:1', 'grpc://[::1]:5050'):
    client.check_address(address, 'here')
