"""A run's side of a tf.data service: takes batches that workers have made, and makes missing ones itself.

The service deals the numbers of batches out to its workers, each once (`ShardingPolicy.DYNAMIC`). So batches arrive in
no certain order, and the batches of a lost worker never arrive. Each carries its number: batches are put in order here,
and a missing one is made here when it is needed. Samples of the workers' output are compared with batches made here. So
nothing that happens to the service changes a batch.

The parts, in order: `LocalMaker` makes elements in threads of this process; `Request` describes the elements of one
pipeline, by number; `dataset` yields them.
"""

import collections
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
import dataclasses
import itertools
import math
import socket
import threading
import time
from typing import Any, Generic, TypeVar

from absl import logging
import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.data import batch_reader
from official_ext.data import input_faults
from official_ext.data.service import worker as worker_lib

T = TypeVar('T')
MAKER_THREAD = 'local_maker'


class LocalMaker(Generic[T]):
  """Makes elements by their numbers. One thread takes them; any thread may close it meanwhile.

  Attributes:
    seconds: the least that it has taken to make one; infinite before the first.
  """

  def __init__(self, make: Callable[[int], T], num_threads: int):
    """Initializes a maker.

    Args:
      make: makes the element of a number; called from `num_threads` threads.
      num_threads: how many elements are made at the same time.
    """
    self.seconds = math.inf
    self._make = make
    self._pending: dict[int, futures.Future[T]] = {}
    self._pool = futures.ThreadPoolExecutor(num_threads, MAKER_THREAD)
    self._lock = threading.Lock()  # Between the decision to begin an element and the pool's shutdown.
    self._is_closed = False

  def make(self, number: int, ahead: Iterable[int] = ()) -> T:
    """Makes an element, and begins the elements of some other numbers.

    Raises:
      CancelledError: the maker was closed before this element was begun.
      Exception: of its construction.
    """
    self._begin(number)
    for each in ahead:
      self._begin(each)
    future = self._pending.pop(number, None)
    if future is None:
      raise futures.CancelledError(f'element {number}: the maker is closed')
    return future.result()

  def has_begun(self, number: int) -> bool:
    """Whether an element is being made, or made and not yet given out."""
    return number in self._pending

  def close(self) -> None:
    """Begins nothing more. Does not wait for the batch in progress."""
    with self._lock:
      self._is_closed = True
      self._pool.shutdown(wait=False, cancel_futures=True)

  def _begin(self, number: int) -> None:
    with self._lock:
      if number not in self._pending and not self._is_closed:
        self._pending[number] = self._pool.submit(self._timed, number)

  def _timed(self, number: int) -> T:
    began = time.monotonic()
    made = self._make(number)
    self.seconds = min(self.seconds, time.monotonic() - began)
    return made


_PREFIX = 'grpc://'


def check_address(address: str, field: str) -> None:
  """Refuses an invalid address of a dispatcher.

  Args:
    address: `grpc://HOST:PORT`.
    field: the dotted path for messages.

  Raises:
    UserError: it is invalid.
  """
  host, _, port = address.removeprefix(_PREFIX).rpartition(':')
  if not (address.startswith(_PREFIX) and host and port.isdigit() and 0 < int(port) < 2**16):
    raise errors.UserError(f'{field}: expected grpc://HOST:PORT, got {address!r}')


def host_and_port(address: str) -> tuple[str, int]:
  """The host and port of an address that `check_address` accepts."""
  host, _, port = address.removeprefix(_PREFIX).rpartition(':')
  return host.strip('[]'), int(port)


@dataclasses.dataclass(frozen=True)
class Request:
  """The request of a pipeline.

  Attributes:
    served: the input.
    share: which part of every global batch it makes: element e is step e // r, replica e % r of its r replicas.
    address: of the dispatcher.
    start: the number of the first element.
    end: the number after the last element; None for no end.
    is_partial: whether examples may end within a batch, or before it.
    num_parallel_calls: how many elements each worker makes at the same time.
  """

  served: worker_lib.ServedInput
  share: batch_reader.Share
  address: str
  start: int
  end: int | None
  is_partial: bool
  num_parallel_calls: int

  def first_position(self, number: Any) -> Any:
    """The position in the run of an element's first example. Takes an integer or an int64 tensor, and returns one."""
    share = self.share
    replica = share.first_replica + number % share.num_replicas
    return number // share.num_replicas * share.global_batch_size + replica * share.batch_size

  def make(self, number: int) -> list[tf.Tensor]:
    """Makes an element here."""
    return self.served.make(self.first_position(number), self.share.batch_size, self.is_partial)

  def element_spec(self) -> tf.TypeSpec:
    """The structure of an element.

    Raises:
      UserError: it has something else than tensors.
    """
    outputs = self.served.function(self.share.batch_size, self.is_partial).structured_outputs
    if not all(isinstance(spec, (tf.TensorSpec, tf.Tensor)) for spec in tf.nest.flatten(outputs)):
      raise errors.UserError(
        f'{self.served.path}.enable_tf_data_service: batches of ragged or sparse tensors do not come from there; '
        'leave it false, or make dense tensors of them'
      )
    return tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape, spec.dtype), outputs)

  def dataset(self, start: int, dtypes: Sequence[tf.DType]) -> tf.data.Dataset:
    """The elements from `start` on, as the workers finish them: (number, worker, problem, tensors...).

    It registers the request at the dispatcher, for which it waits if necessary.
    """

    def ask(number):
      inputs = [
        tf.constant(self.served.key),
        self.first_position(number),
        tf.constant(self.share.batch_size, tf.int64),
        tf.constant(self.is_partial),
        tf.constant([dtype.name for dtype in dtypes]),
      ]
      answer = tf.raw_ops.PyFuncStateless(input=inputs, token=worker_lib.FUNCTION, Tout=[tf.string, tf.string, *dtypes])
      return (number, *answer)

    end = tf.int64.max if self.end is None else self.end
    numbers = tf.data.Dataset.range(start, end)
    asked = numbers.map(tf.autograph.experimental.do_not_convert(ask), self.num_parallel_calls, deterministic=False)
    options = tf.data.Options()
    options.autotune.enabled = False  # There is nothing to tune, and the end of its thread takes long.
    service = tf.data.experimental.service
    served = asked.with_options(options).apply(service.distribute(service.ShardingPolicy.DYNAMIC, self.address))
    return served.with_options(options)


_PATIENCE_SECONDS = 10.0
# One element is waited for as long as it takes to make three of them here.
_WAIT_FACTOR, _LEAST_WAIT_SECONDS = 3.0, 0.1
# The first element of each worker, and later one in `_COMPARED_EVERY`, is compared with the batch made here.
_COMPARED_EVERY = 100
_CONNECT_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 30.0
_MAX_HELD = 64
_LEAST_HELD = 8
_BYTES_HELD = 2**28
_LONGEST_LEAD = 4096
CLIENT_THREAD = 'tf_data_service'


def dataset(request: Request) -> tf.data.Dataset:
  """The elements of a request, in their order; each iteration is a new request."""
  spec = request.element_spec()

  def elements():
    with _Stream(request, spec) as stream:
      for number in itertools.count(request.start) if request.end is None else range(request.start, request.end):
        yield tf.nest.pack_sequence_as(spec, stream.take(number))

  return tf.data.Dataset.from_generator(elements, output_signature=spec)


@dataclasses.dataclass
class _Arrived:
  """An element that a worker has made; `tensors` is None if it could not, for the reason `problem`."""

  worker: str
  problem: str
  tensors: list[tf.Tensor] | None
  num_bytes: int


class _Stream:
  """The elements of one iteration. A thread takes them from the service; `take` gives them out in their order."""

  def __init__(self, request: Request, spec: tf.TypeSpec):
    self._request = request
    self._dtypes = [each.dtype for each in tf.nest.flatten(spec)]
    self._changed = threading.Condition()
    self._held: dict[int, _Arrived] = {}
    self._bytes_held = 0
    self._next = request.start
    self._asked_from = request.start  # The first element requested from the service.
    self._is_over = False  # Nothing more will come.
    self._num_late = 0  # Elements in a row that came after they had been made here.
    self._lead = _MAX_HELD  # How far ahead the service is asked after it has lagged.
    self._is_silent = True  # Nothing has come for long: the service is not waited for.
    self._is_reported = False  # That it is silent was reported.
    self._since = time.monotonic()  # When it was opened, or something came.
    self._maker = LocalMaker(request.make, request.num_parallel_calls)
    self._is_trusted: dict[str, bool] = {}  # By worker.
    self._has_problem: set[str] = set()  # Workers that have been reported.
    self._num_used: collections.Counter[str] = collections.Counter()  # By worker.
    self._is_closed = False
    self._problem = ''
    self._iterator: tf_internals.CancellableIterator | None = None
    self._thread = threading.Thread(target=self._pull, name=CLIENT_THREAD, daemon=True)

  def __enter__(self) -> '_Stream':
    self._thread.start()
    return self

  def __exit__(self, *unused: object) -> None:
    with self._changed:
      self._is_closed = True
      self._changed.notify_all()
      if self._iterator is not None:
        self._iterator.cancel()
    self._maker.close()

  def take(self, number: int) -> list[tf.Tensor]:
    """The tensors of the element with this number, which is one more than in the call before."""
    arrived = self._wait_for(number)
    if arrived is None:
      return self._make(number)
    if arrived.tensors is None:
      made = self._make(number)  # Or else the error of an example, which is reported as usual.
      self._report_problem(arrived, number)
      return made
    if self._maker.has_begun(number) or not self._is_trusted.get(arrived.worker, True):
      return self._make(number)
    self._num_used[arrived.worker] += 1
    if self._num_used[arrived.worker] % _COMPARED_EVERY != 1:
      return arrived.tensors
    made = self._make(number)
    if all(_are_same(*pair) for pair in zip(arrived.tensors, made, strict=True)):
      return arrived.tensors
    before = self._num_used[arrived.worker] - 1
    self._reject(
      arrived.worker,
      f'element {number} is not the one that is made here'
      + (f'; {before} elements of it were used, of which only some were compared' if before else ''),
    )
    return made

  def _make(self, number: int) -> list[tf.Tensor]:
    """Makes an element here, together with later ones that the service will not give either."""
    end = number + self._request.num_parallel_calls
    following = range(number + 1, end if self._request.end is None else min(end, self._request.end))
    with self._changed:
      ahead = [each for each in following if not self._will_be_given(each)]
    return self._maker.make(number, ahead)

  def _report_problem(self, arrived: _Arrived, number: int) -> None:
    """Warns of a worker that failed on a batch that could be made here, once."""
    with self._changed:
      if arrived.problem == worker_lib.SKIPPED or arrived.worker in self._has_problem:
        return
      self._has_problem.add(arrived.worker)
    if arrived.problem == worker_lib.UNKNOWN:
      self._reject(arrived.worker, arrived.problem)
      return
    logging.warning(
      '%s: worker %s of the tf.data service could not make element %d, which is made here: %s',
      self._request.served.path,
      arrived.worker,
      number,
      arrived.problem,
    )

  def _reject(self, worker: str, problem: str) -> None:
    """Ignores a worker from now on, and logs that."""
    self._is_trusted[worker] = False
    logging.warning(
      '%s: worker %s of the tf.data service is ignored: %s. Start it with the same flags, files, versions and '
      'kind of processor as the run.',
      self._request.served.path,
      worker,
      problem,
    )

  def _wait_for(self, number: int) -> _Arrived | None:
    """The batch received under a number; None if it is to be made here."""
    began = time.monotonic()
    with self._changed:
      self._next = number
      while number not in self._held and self._may_come(number):
        now = time.monotonic()
        is_silent = now - self._since > _PATIENCE_SECONDS
        # A batch that takes long here is worth a wait.
        left = began + max(_LEAST_WAIT_SECONDS, _WAIT_FACTOR * min(self._maker.seconds, _PATIENCE_SECONDS)) - now
        if is_silent:
          self._is_silent = True
        elif left <= 0:
          break
        else:
          self._changed.wait(min(left, self._since + _PATIENCE_SECONDS - now + 0.001))
      self._report_silence()
      arrived = self._held.pop(number, None)
      self._bytes_held -= arrived.num_bytes if arrived is not None else 0
      self._next = number + 1
      self._changed.notify_all()
      return arrived

  def _may_come(self, number: int) -> bool:
    """Whether an element is worth waiting for."""
    is_lost = self._is_full() or self._is_silent or self._is_over
    return number >= self._asked_from and not (is_lost or self._maker.has_begun(number))

  def _will_be_given(self, number: int) -> bool:
    """Whether an element is here, of a worker that is trusted, or worth waiting for."""
    arrived = self._held.get(number)
    if arrived is None:
      return self._may_come(number)
    return arrived.tensors is not None and self._is_trusted.get(arrived.worker, True)

  def _is_full(self) -> bool:
    """Whether no more elements are taken, because many wait for their turn. A missing one then counts as lost."""
    count = len(self._held)
    least = max(_LEAST_HELD, 2 * self._request.num_parallel_calls)
    return count >= max(least, _MAX_HELD) or (count >= least and self._bytes_held >= _BYTES_HELD)

  def _report_silence(self) -> None:
    """Reports once that nothing comes from the service, and once that batches come again."""
    if self._is_silent and not self._is_reported and time.monotonic() - self._since > _PATIENCE_SECONDS:
      self._is_reported = True
      logging.warning(
        '%s: nothing has come from the tf.data service at %s for %g seconds%s: batches are made here until something '
        'does.',
        self._request.served.path,
        self._request.address,
        _PATIENCE_SECONDS,
        f' ({self._problem})' if self._problem else '',
      )
    elif not self._is_silent and self._is_reported:
      self._is_reported = False
      # At the level of the message that it revokes: readers see both or neither.
      logging.warning(
        '%s: batches come from the tf.data service at %s now.', self._request.served.path, self._request.address
      )

  def _pull(self) -> None:
    """The thread: takes elements from the service. It opens it again after errors and when the service lags."""
    pause = 1.0
    while not self._is_closed:
      opened = time.monotonic()
      try:
        with tf.device('CPU:0'):
          if not self._pull_once():
            break
      except Exception as error:  # pylint: disable=broad-except  # TensorFlow's, and the socket's.
        self._problem = input_faults.reason_of(error)
      if time.monotonic() - opened > _LONGEST_PAUSE_SECONDS:
        pause = 1.0
      with self._changed:
        self._changed.wait_for(lambda: self._is_closed, pause)
      pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    with self._changed:
      self._is_over = True
      self._changed.notify_all()

  def _pull_once(self) -> bool:
    """Opens the service and takes elements until the service lags. Returns whether to open it again."""
    request = self._request
    # TensorFlow would try to connect for hours, and until it has, nothing could end that.
    socket.create_connection(host_and_port(request.address), _CONNECT_SECONDS).close()
    with self._changed:
      start = self._asked_from = self._next + (self._lead if self._num_late else 0)
      self._num_late = 0
    if request.end is not None and start >= request.end:
      return False
    iterator = tf_internals.CancellableIterator(request.dataset(start, self._dtypes))
    with self._changed:
      if self._is_closed:
        return False
      self._iterator = iterator
    try:
      while True:
        try:
          number, worker, problem, *tensors = next(iterator)
        except tf.errors.OutOfRangeError:
          if request.end is None:
            raise  # It has lost the iteration.
          return False
        if not self._keep(int(number), worker.numpy().decode(), problem.numpy().decode(), tensors):
          return not self._is_closed
    finally:
      with self._changed:
        self._iterator = None

  def _keep(self, number: int, worker: str, problem: str, tensors: list[tf.Tensor]) -> bool:
    """Keeps an element until it is taken. Returns whether to continue."""
    arrived = _Arrived(worker, problem, None if problem else tensors, sum(map(_num_bytes, tensors)))
    with self._changed:
      self._changed.wait_for(lambda: self._is_closed or number <= self._next or not self._is_full())
      if self._is_closed:
        return False
      self._since, self._problem = time.monotonic(), ''
      if problem == worker_lib.UNKNOWN or (problem and number < self._next):
        self._report_problem(arrived, number)
      if number < self._next:
        self._num_late += 1
        if self._num_late <= _MAX_HELD:
          return True
        self._lead = min(2 * self._lead, _LONGEST_LEAD)
        return False
      self._bytes_held += arrived.num_bytes - (self._held[number].num_bytes if number in self._held else 0)
      self._held[number] = arrived
      self._num_late, self._is_silent = 0, False
      self._changed.notify_all()
      return True


def _num_bytes(tensor: tf.Tensor) -> int:
  """The size of a tensor's values."""
  if tensor.dtype == tf.string:
    return sum(map(len, tensor.numpy().ravel().tolist()))
  return tensor.shape.num_elements() * tensor.dtype.size


def _are_same(one: tf.Tensor, other: tf.Tensor) -> bool:
  """Whether two tensors agree bit for bit."""
  first, second = np.asarray(one), np.asarray(other)
  if first.shape != second.shape or first.dtype != second.dtype:
    return False
  return first.tolist() == second.tolist() if first.dtype.kind == 'O' else first.tobytes() == second.tobytes()
