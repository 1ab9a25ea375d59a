"""A run's side of a tf.data service: takes the batches that others have made, and makes those that do not come.

The service deals the numbers of batches out to its workers, each once (`ShardingPolicy.DYNAMIC`), so they arrive in
no certain order, and what a lost worker had taken never does. Each carries its number: they are put in order here, and
a batch that later ones have overtaken is made here. So nothing that happens to the service changes a batch.
"""

import dataclasses
import itertools
import socket
import threading
import time
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from official_ext import errors
from official_ext import tf_internals
from official_ext.data import diagnosis
from official_ext.data import served_inputs
from official_ext.data import service_worker
from official_ext.data import share as share_lib

_PATIENCE_SECONDS = 10.0
_CONNECT_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 30.0
_MAX_HELD = 64
_LEAST_HELD = 8
_BYTES_HELD = 2**28
_PREFIX = 'grpc://'
THREAD = 'tf_data_service'


def check_address(address: str, field: str) -> None:
  """Refuses what is no address of a dispatcher.

  Args:
    address: `grpc://HOST:PORT`.
    field: the dotted path for messages.

  Raises:
    UserError: it is none.
  """
  host, _, port = address.removeprefix(_PREFIX).rpartition(':')
  if not (address.startswith(_PREFIX) and host and port.isdigit()):
    raise errors.UserError(f'{field}: expected grpc://HOST:PORT, got {address!r}')


@dataclasses.dataclass(frozen=True)
class Request:
  """What a pipeline asks for.

  Attributes:
    served: the input.
    share: which part of every global batch it makes: element e is step e // r, replica e % r of its r replicas.
    address: of the dispatcher.
    start: the number of the first element.
    end: the number after the last element; None: there is none.
    num_parallel_calls: how many elements each worker makes at the same time.
  """

  served: served_inputs.ServedInput
  share: share_lib.Share
  address: str
  start: int
  end: int | None
  num_parallel_calls: int

  def first_position(self, number: Any) -> Any:
    """The first position of an element, for numbers and for tensors."""
    share = self.share
    replica = share.first_replica + number % share.num_replicas
    return number // share.num_replicas * share.global_batch_size + replica * share.batch_size

  def make(self, number: int) -> list[tf.Tensor]:
    """Makes an element here."""
    return self.served.make(self.first_position(number), self.share.batch_size)

  def element_spec(self) -> Any:
    """The structure of an element.

    Raises:
      UserError: it has something else than tensors.
    """
    outputs = self.served.function(self.share.batch_size).structured_outputs
    if not all(isinstance(spec, (tf.TensorSpec, tf.Tensor)) for spec in tf.nest.flatten(outputs)):
      raise errors.UserError(
        f'{self.served.path}.enable_tf_data_service: batches of ragged or sparse tensors do not come from there; '
        'leave it false, or make dense tensors of them'
      )
    return tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape, spec.dtype), outputs)


def dataset(request: Request) -> tf.data.Dataset:
  """The elements of a request, in their order; each iteration asks for them anew."""
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


class _Stream:
  """The elements of one iteration. A thread takes them from the service; `take` gives them out in their order."""

  def __init__(self, request: Request, spec: Any):
    self._request = request
    self._dtypes = [each.dtype for each in tf.nest.flatten(spec)]
    self._max_held = _max_held(spec)
    self._changed = threading.Condition()
    self._held: dict[int, _Arrived] = {}
    self._next = request.start
    self._asked_from = request.start  # The first element that the service was asked for.
    self._is_over = False  # Nothing more will come.
    self._num_late = 0  # Elements in a row that came after they had been made here.
    self._is_silent = True  # Nothing has come for long: nobody waits for the service.
    self._is_told = False  # That it is silent.
    self._since = time.monotonic()  # When it was opened, or something came.
    self._is_trusted: dict[str, bool] = {}
    self._is_closed = False
    self._problem = ''
    self._iterator: tf_internals.CancellableIterator | None = None
    self._thread = threading.Thread(target=self._pull, name=THREAD, daemon=True)

  def __enter__(self) -> '_Stream':
    self._thread.start()
    return self

  def __exit__(self, *unused: Any) -> None:
    with self._changed:
      self._is_closed = True
      self._changed.notify_all()
      if self._iterator is not None:
        self._iterator.cancel()

  def take(self, number: int) -> list[tf.Tensor]:
    """The tensors of the element with this number, which is one more than that of the call before."""
    arrived = self._wait_for(number)
    made = None
    if arrived is not None and arrived.tensors is not None and arrived.worker not in self._is_trusted:
      made = self._request.make(number)
      self._judge(arrived, number, made)
    if arrived is not None and arrived.tensors is not None and self._is_trusted[arrived.worker]:
      return arrived.tensors
    return self._request.make(number) if made is None else made

  def _wait_for(self, number: int) -> _Arrived | None:
    """What has arrived under a number; None if it is to be made here."""
    with self._changed:
      self._next = number
      while number not in self._held and self._may_come(number):
        left = self._since + _PATIENCE_SECONDS - time.monotonic()
        if left <= 0:
          self._is_silent = True
        self._changed.wait(max(left, 0.0))
      self._tell()
      arrived = self._held.pop(number, None)
      self._next = number + 1
      self._changed.notify_all()
      return arrived

  def _may_come(self, number: int) -> bool:
    """Whether an element is worth waiting for."""
    is_overtaken = len(self._held) >= self._max_held
    return number >= self._asked_from and not (is_overtaken or self._is_silent or self._is_over)

  def _tell(self) -> None:
    """Says once that nothing comes from the service, and once that it comes again."""
    if self._is_silent and not self._is_told and time.monotonic() - self._since > _PATIENCE_SECONDS:
      self._is_told = True
      logging.warning(
        '%s: nothing has come from the tf.data service at %s for %d seconds%s: batches are made here until something '
        'does.',
        self._request.served.path,
        self._request.address,
        _PATIENCE_SECONDS,
        f' ({self._problem})' if self._problem else '',
      )
    elif not self._is_silent and self._is_told:
      self._is_told = False
      logging.info('%s: batches come from the tf.data service at %s.', self._request.served.path, self._request.address)

  def _judge(self, arrived: _Arrived, number: int, made: list[tf.Tensor]) -> None:
    """Trusts a worker if the first batch that it has made is the one that is made here."""
    assert arrived.tensors is not None
    is_same = all(_are_same(*pair) for pair in zip(arrived.tensors, made, strict=True))
    self._is_trusted[arrived.worker] = is_same
    if not is_same:
      logging.warning(
        '%s: element %d of worker %s of the tf.data service is not the one that is made here: nothing of that worker '
        'is used. Start it with the same flags, versions and processor as the run.',
        self._request.served.path,
        number,
        arrived.worker,
      )

  def _pull(self) -> None:
    """The thread: takes elements from the service, and begins anew after errors, and when it has fallen behind."""
    pause = 1.0
    while not self._is_closed:
      try:
        with tf.device('CPU:0'):
          if not self._pull_once():
            break
        pause = 1.0
      except Exception as error:  # pylint: disable=broad-except  # TensorFlow's, and the socket's.
        self._problem = diagnosis.reason_of(error)
        with self._changed:
          self._changed.wait_for(lambda: self._is_closed, pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    with self._changed:
      self._is_over = True
      self._changed.notify_all()

  def _pull_once(self) -> bool:
    """Opens the service and takes elements until it has fallen behind. Returns whether to open it again."""
    request = self._request
    host, _, port = request.address.removeprefix(_PREFIX).rpartition(':')
    # TensorFlow would try to connect for hours, and nothing could end that.
    socket.create_connection((host.strip('[]'), int(port)), _CONNECT_SECONDS).close()
    with self._changed:
      start = self._asked_from = self._next + self._num_late
      self._num_late = 0
    if request.end is not None and start >= request.end:
      return False
    iterator = tf_internals.CancellableIterator(_served_elements(request, start, self._dtypes))
    with self._changed:
      self._iterator = iterator
      if self._is_closed:
        return False
    while True:
      try:
        number, worker, problem, *tensors = next(iterator)
      except tf.errors.OutOfRangeError:
        return False
      arrived = _Arrived(worker.numpy().decode(), problem.numpy().decode(), tensors)
      if arrived.problem:
        arrived.tensors = None
        self._tell_problem(arrived)
      if not self._keep(int(number), arrived):
        return not self._is_closed

  def _tell_problem(self, arrived: _Arrived) -> None:
    """Warns of a worker that does not know the input."""
    if arrived.problem == service_worker.UNKNOWN and self._is_trusted.get(arrived.worker, True):
      self._is_trusted[arrived.worker] = False
      logging.warning(
        '%s: worker %s of the tf.data service has other data: start it with the same flags as the run.',
        self._request.served.path,
        arrived.worker,
      )

  def _keep(self, number: int, arrived: _Arrived) -> bool:
    """Keeps an element until it is taken. Returns whether to go on."""
    with self._changed:
      self._changed.wait_for(lambda: self._is_closed or number < self._next or len(self._held) < self._max_held)
      if self._is_closed:
        return False
      if number < self._next:
        self._num_late += 1
        return self._num_late <= self._max_held
      self._held[number] = arrived
      self._num_late, self._is_silent, self._since = 0, False, time.monotonic()
      self._changed.notify_all()
      return True


def _served_elements(request: Request, start: int, dtypes: list[tf.DType]) -> tf.data.Dataset:
  """(number, worker, problem, tensors...) of the elements from `start` on, as the workers finish them."""

  def ask(number):
    inputs = [
      tf.constant(request.served.key),
      request.first_position(number),
      tf.constant(request.share.batch_size, tf.int64),
      tf.constant([dtype.name for dtype in dtypes]),
    ]
    answer = tf.raw_ops.PyFuncStateless(
      input=inputs, token=service_worker.FUNCTION, Tout=[tf.string, tf.string, *dtypes]
    )
    return (number, *answer)

  end = tf.int64.max if request.end is None else request.end
  numbers = tf.data.Dataset.range(start, end)
  asked = numbers.map(tf.autograph.experimental.do_not_convert(ask), request.num_parallel_calls, deterministic=False)
  options = tf.data.Options()
  options.autotune.enabled = False  # There is nothing to tune, and its thread keeps those waiting that end it.
  service = tf.data.experimental.service
  served = asked.with_options(options).apply(service.distribute(service.ShardingPolicy.DYNAMIC, request.address))
  return served.with_options(options)


def _max_held(spec: Any) -> int:
  """How many elements may wait here for their turn: within 256 MiB, if their size is known."""
  sizes = [(each.shape.num_elements(), each.dtype.size) for each in tf.nest.flatten(spec)]
  if any(count is None for count, _ in sizes):
    return _LEAST_HELD
  num_bytes = sum(count * size for count, size in sizes)
  return max(_LEAST_HELD, min(_MAX_HELD, _BYTES_HELD // max(1, num_bytes)))


def _are_same(one: tf.Tensor, other: tf.Tensor) -> bool:
  """Whether two tensors agree bit for bit."""
  first, second = np.asarray(one), np.asarray(other)
  if first.shape != second.shape or first.dtype != second.dtype:
    return False
  return first.tolist() == second.tolist() if first.dtype.kind == 'O' else first.tobytes() == second.tobytes()
