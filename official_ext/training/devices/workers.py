"""Connects the workers of a run, exchanges values between them, and ends all of them when one is lost.

The chief hosts TensorFlow's coordination service: a key-value store that all workers see, and heartbeats. A lost worker
breaks the collective operations of the others: at once, or, if none is running, when its heartbeats have been missing
for `runtime.worker_timeout_seconds`.
"""

import atexit
from collections.abc import Callable, Iterator, Mapping
import contextlib
import faulthandler
import functools
import json
import re
import shutil
import tempfile
from typing import Any, Optional

from absl import logging
import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.training.devices import cluster as cluster_lib
from official_ext.training.devices import mesh_strategy

_JOBS = ('chief', 'worker')
_POLL_MILLISECONDS = 2000
_CONNECT_SECONDS = 60
_MAX_MESSAGE = 500

# TensorFlow's messages when a collective operation or the coordination service fails.
_SIGNS = re.compile(
  r'official_ext: worker|Collective ops is aborted|[Cc]oordination ?[Ss]ervice|[Cc]oordination agent|heartbeat'
)
_TASK = re.compile(r'/job:(chief|worker)/(?:replica:\d+/)?task:(\d+)')
_REPORT = re.compile(r'official_ext: worker (\d+): (.*)')
_current: Optional['Workers'] = None


def connect(
  cluster: cluster_lib.Cluster,
  make_strategy: Callable[[], tf.distribute.Strategy],
  start_timeout: float,
  worker_timeout: float,
  jobs: Mapping[str, int] | None = None,
) -> tf.distribute.Strategy:
  """Meets the other workers, and makes the strategy that they share.

  Args:
    cluster: the workers.
    make_strategy: connects them.
    start_timeout: seconds until all workers must have been started.
    worker_timeout: seconds without a sign of life after which a worker counts as lost.
    jobs: TensorFlow's jobs -> their tasks, the chief's first; None: from TF_CONFIG.

  Raises:
    WorkerError: not all of them came, or one was lost.
  """
  global _current
  print(f'Waiting for {len(cluster.addresses)} workers, for {start_timeout:g} s at most.', flush=True)
  cluster_lib.meet(cluster, start_timeout)
  known, _ = cluster_lib.read_tf_config()
  jobs = jobs or {name: len(known[name]) for name in _JOBS if known.get(name)}
  milliseconds = int(1000 * worker_timeout)
  tf_internals.eager_context().configure_coordination_service(
    service_type='standalone',
    service_leader=f'/job:{next(iter(jobs))}/replica:0/task:0',
    cluster_register_timeout_in_ms=milliseconds,
    heartbeat_timeout_in_ms=milliseconds,
    coordinated_jobs=[tf_internals.CoordinatedJob(name=name, num_tasks=count) for name, count in jobs.items()],
  )
  # A worker lost in here would leave the chief waiting in C++, where no Python runs: this ends the process even so.
  faulthandler.dump_traceback_later(_CONNECT_SECONDS + worker_timeout, exit=True)
  workers = Workers(cluster, jobs)
  try:
    with workers.guarded():
      strategy = make_strategy()
  finally:
    faulthandler.cancel_dump_traceback_later()
  _current = workers
  return strategy


def get(strategy: tf.distribute.Strategy) -> 'Workers':
  """Returns the workers that share a strategy: all that `connect` has met, or this process alone."""
  if _current is not None and are_several(strategy):
    return _current
  return Workers()


@functools.cache
def own_folder(strategy: tf.distribute.Strategy, folder: str) -> str:
  """The folder in which a worker may put files that every worker writes under the same name.

  Args:
    strategy: the strategy.
    folder: the chief's, whose files count.

  Returns:
    `folder` on the chief; elsewhere a temporary folder, which is deleted when the process ends.
  """
  if strategy.extended.should_checkpoint:
    return folder
  own = tempfile.mkdtemp(prefix='worker-')
  atexit.register(shutil.rmtree, own, ignore_errors=True)
  return own


def sum_over(strategy: tf.distribute.Strategy, values: tf.Tensor) -> tf.Tensor:
  """Sums the values of all workers of a strategy, on each of them; returns `values` itself if there is one worker.

  Args:
    strategy: the strategy. All of its workers must call, with the same shape and dtype.
    values: of this worker. On a mesh every worker has the values of all.
  """
  if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    return values
  return _sum_over_replicas(strategy, values)


def gather(strategy: tf.distribute.Strategy, outputs: Any) -> tuple[Any, int]:
  """The outputs of a step on all replicas of all workers, on each worker, in the order of the workers.

  Args:
    strategy: the strategy. All of its workers must call, with the same structure.
    outputs: of this worker: a nested structure in which tuples and lists of tensors hold the values of its replicas, as
      `experimental_local_results` makes them. The values may have other shapes on each replica; ragged and sparse
      tensors are taken. On a mesh every worker has the outputs of all.

  Returns:
    (The structure, with the values of all replicas in each tuple and list; the bytes that this worker has sent to each
    of the others).

  Raises:
    UserError: a value is of another type, or stands outside of a tuple and is not the same on all workers.
  """
  if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    return outputs, 0
  here = [part for value in _replica_values(outputs) for part in _parts_of(value)]
  content = tf.io.serialize_tensor(tf.stack([tf.io.serialize_tensor(part) for part in here])).numpy() if here else b''
  num_workers = strategy.num_replicas_in_sync // len(strategy.extended.worker_devices)
  own = tf.one_hot(get(strategy).index, num_workers, on_value=len(content), off_value=0, dtype=tf.int64)
  sizes = [int(size) for size in sum_over(strategy, own)]
  if not all(sizes):
    return outputs, 0
  # Collectives take numbers of 32 bits.
  words = tf.constant(np.frombuffer(content + bytes(-len(content) % 4), np.int32))
  words = strategy.experimental_local_results(_gather_from_workers(strategy)(words))[0].numpy().tobytes()
  found = []
  for size in sizes:
    parts = tf.io.parse_tensor(words[:size], tf.string)
    found.append(iter([tf.io.parse_tensor(part, like.dtype) for part, like in zip(parts, here, strict=True)]))
    words = words[size + -size % 4 :]
  return _of_all_workers(outputs, found), len(content)


def _is_of_replicas(value):
  return isinstance(value, (tuple, list)) and bool(value) and not any(isinstance(v, (dict, tuple, list)) for v in value)


def _replica_values(outputs):
  """The values in the order of `_of_all_workers`."""
  if isinstance(outputs, Mapping):
    return [value for name in outputs for value in _replica_values(outputs[name])]
  if isinstance(outputs, (tuple, list)):
    return [value for part in outputs for value in (_replica_values(part))]
  return [outputs]


def _parts_of(value):
  """The dense tensors of which a value is made."""
  if isinstance(value, tf.RaggedTensor):
    return [value.flat_values, *value.nested_row_splits]
  if isinstance(value, tf.SparseTensor):
    return [value.indices, value.values, value.dense_shape]
  if value is None:
    return []
  try:
    return [tf.convert_to_tensor(value)]
  except (TypeError, ValueError) as error:
    raise errors.UserError(
      f'validation_step: a value of type {type(value).__name__} cannot be sent to the other workers, and '
      'aggregate_logs needs the values of all; return tensors'
    ) from error


def _of_all_workers(outputs, found):
  """`outputs` with the parts of each worker, of which `found` has one iterator for each."""
  if isinstance(outputs, Mapping):
    return {name: _of_all_workers(value, found) for name, value in outputs.items()}
  if _is_of_replicas(outputs):
    return type(outputs)(_rebuilt(value, parts) for parts in found for value in outputs)
  if isinstance(outputs, (tuple, list)):
    parts = [_of_all_workers(value, found) for value in outputs]
    return type(outputs)(*parts) if hasattr(outputs, '_fields') else type(outputs)(parts)
  values = [[next(parts) for _ in _parts_of(outputs)] for parts in found]
  if any(not np.array_equal(one, other) for worker in values[1:] for one, other in zip(values[0], worker)):
    raise errors.UserError(
      'next_eval_inputs: a log that is a single tensor differs between the workers, and aggregate_logs needs the '
      'values of all; return strategy.experimental_local_results of it'
    )
  return outputs


def _rebuilt(like, parts):
  """A value of the type of `like` from the next parts of a worker."""
  if isinstance(like, tf.RaggedTensor):
    flat, *splits = [next(parts) for _ in _parts_of(like)]
    return tf.RaggedTensor.from_nested_row_splits(flat, splits, validate=False)
  if isinstance(like, tf.SparseTensor):
    return tf.SparseTensor(*[next(parts) for _ in range(3)])
  return None if like is None else next(parts)


def are_several(strategy: tf.distribute.Strategy) -> bool:
  """Whether several processes share a strategy, each of which runs the whole program."""
  return isinstance(strategy, (tf.distribute.MultiWorkerMirroredStrategy, mesh_strategy.MeshStrategy))


def check_cluster(strategy: tf.distribute.Strategy) -> None:
  """Makes sure that a strategy has the processes of TF_CONFIG: each would train alone, in one folder.

  Raises:
    UserError: TF_CONFIG names several, and the strategy is of this one, such as one that was made before it was set.
  """
  jobs, _ = cluster_lib.read_tf_config()
  count = sum(map(len, jobs.values()))
  if count > 1 and not are_several(strategy) and not isinstance(strategy, tf.distribute.ParameterServerStrategy):
    raise errors.UserError(
      f'TF_CONFIG: names {count} processes, and the {type(strategy).__name__} of this one does not reach the others; '
      'set TF_CONFIG before ext.get_strategy, or unset it'
    )


def on_any(strategy: tf.distribute.Strategy, here: bool) -> bool:
  """Whether it is so on any worker: they have to agree on the next action. All of them must call."""
  if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    return bool(sum_over(strategy, tf.constant(float(here))) > 0)
  return get(strategy).any('any', here)


@functools.partial(tf.function, autograph=False)
def _sum_over_replicas(strategy, values):
  num_local = len(strategy.extended.worker_devices)

  def of_replica():
    # One replica speaks for its worker.
    speaks = tf.distribute.get_replica_context().replica_id_in_sync_group % num_local == 0
    return tf.where(speaks, values, tf.zeros_like(values))

  return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(of_replica), axis=None)


@functools.cache
def _gather_from_workers(strategy):
  """Makes a function of each worker's int32 [n], n >= 1 and its own; returns all workers' values, concatenated."""
  num_local = len(strategy.extended.worker_devices)

  def of_replica(words):
    context = tf.distribute.get_replica_context()
    speaks = context.replica_id_in_sync_group % num_local == 0  # One replica speaks for its worker.
    return context.all_gather(words[: tf.where(speaks, tf.shape(words)[0], 0)], axis=0)

  return tf.function(
    lambda words: strategy.run(of_replica, args=(words,)), [tf.TensorSpec([None], tf.int32)], autograph=False
  )


class Workers:
  """The workers of a run, as one of them sees them. Of one worker, everything here is trivial.

  All workers must call the methods that communicate, in the same order.
  """

  def __init__(self, cluster: cluster_lib.Cluster | None = None, jobs: Mapping[str, int] | None = None):
    self._cluster = cluster
    self._jobs = dict(jobs or {})
    self.index = cluster.index if cluster else 0
    self._counts: dict[str, int] = {}

  @property
  def count(self) -> int:
    return len(self._cluster.addresses) if self._cluster else 1

  @property
  def is_chief(self) -> bool:
    return self._cluster is None or self._cluster.is_chief

  def name(self, index: int) -> str:
    """The name of a worker in messages."""
    return self._cluster.name(index) if self._cluster else f'worker {index}'

  # Talking.

  def from_chief(self, topic: str, make: Callable[[], object]) -> Any:
    """Returns to all workers the result of `make` on the chief, a JSON value. No other worker calls it.

    Args:
      topic: a name, for the same use on all workers.
      make: called on the chief. Its exceptions end all workers.
    """
    if self.count == 1:
      return make()
    key = self._key(topic)
    if not self.is_chief:
      return json.loads(self._get(key))
    value = make()
    tf_internals.eager_context().set_config_key_value(key, json.dumps(value))
    return value

  def check_same(self, topic: str, here: str, differences: Callable[[str, str], list[str]]) -> None:
    """Makes sure that all workers hold the same text.

    Args:
      topic: its name, for the message.
      here: this worker's.
      differences: describes the differences between two texts, the chief's first.

    Raises:
      UserError: on all workers, if one has another text than the chief.
    """
    if self.count == 1:
      return
    key = self._key(topic)
    if not self.is_chief:
      tf_internals.eager_context().set_config_key_value(f'{key}/{self.index}', json.dumps(here))
    message = self.from_chief(f'{topic} compared', lambda: self._first_difference(topic, key, here, differences))
    if message:
      raise errors.UserError(message)

  def _first_difference(self, topic, key, here, differences) -> str | None:
    for index in range(1, self.count):
      lines = differences(here, json.loads(self._get(f'{key}/{index}')))
      if lines:
        more = f'; and {len(lines) - 3} more' if len(lines) > 3 else ''
        return (
          f'{topic}: not the same on all workers, {self.name(0)} -> {self.name(index)}: {"; ".join(lines[:3])}{more}; '
          'start all workers with the same'
        )
    return None

  def any(self, topic: str, here: bool) -> bool:
    """Whether a value is true on any worker."""
    if self.count == 1:
      return here
    key = self._key(topic)
    if not self.is_chief:
      tf_internals.eager_context().set_config_key_value(f'{key}/{self.index}', json.dumps(here))
    others = range(1, self.count)
    return self.from_chief(
      f'{topic} on any', lambda: any([here, *(json.loads(self._get(f'{key}/{index}')) for index in others)])
    )

  def _key(self, topic: str) -> str:
    number = self._counts[topic] = self._counts.get(topic, 0) + 1
    return f'official_ext/{topic}/{number}'

  def _get(self, key: str) -> str:
    """Waits for a value for as long as all workers are alive.

    Raises:
      tf.errors.OpError: one of them is lost.
    """
    while True:
      try:
        return tf_internals.eager_context().get_config_key_value(key, _POLL_MILLISECONDS)
      except tf.errors.DeadlineExceededError:
        states = tf_internals.eager_context().get_task_states(list(self._jobs.items()))
        for state in states:
          if state is not None:
            raise state from None

  # Losing one.

  @contextlib.contextmanager
  def guarded(self) -> Iterator[None]:
    """Turns TensorFlow's errors about a lost worker into one line; sends the other workers the reason.

    Raises:
      WorkerError: instead of TensorFlow's errors.
    """
    try:
      yield
    except (errors.WorkerError, errors.PreemptedError, errors.DivergedError):
      raise  # The others know, or end in the same way.
    except BaseException as error:
      if self.count == 1:
        raise
      lost = self.explain(error)
      if lost is not None:
        raise lost from error
      self._report(error)
      raise

  def explain(self, error: BaseException) -> errors.WorkerError | None:
    """The cause, if an error is due to another worker's end; None for any other error.

    A `WorkerLostError` if that worker has not reported why it ended: it was killed, or its machine is gone.
    """
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, tf.errors.OpError) and _SIGNS.search(str(cause))):
      cause = cause.__cause__
    if cause is None:
      return None
    advice = 'Start all workers again, with the same command: they resume from the newest checkpoint'
    report = _REPORT.search(str(cause))
    if report:
      return errors.WorkerError(f'{self.name(int(report.group(1)))} has stopped: {report.group(2)}. {advice}')
    index = self._lost(str(cause))
    if index is None or index == self.index:
      return errors.WorkerLostError(f'the connection to the other workers was lost. {advice}')
    return errors.WorkerLostError(
      f'{self.name(index)} was lost: it was killed, or its machine cannot be reached. {advice}'
    )

  def _lost(self, message: str) -> int | None:
    """The worker that a message of TensorFlow's is about."""
    for part in (message.partition('unhealthy')[2], message):
      match = _TASK.search(part)
      if match:
        return int(match.group(2)) + (self._jobs.get('chief', 0) if match.group(1) == 'worker' else 0)
    return None

  def _report(self, error: BaseException) -> None:
    """Breaks the others' collective operations, which would wait until its heartbeats are missed."""
    text = f'{type(error).__name__}: {error}' if str(error) else type(error).__name__
    text = ' '.join(text.split())[:_MAX_MESSAGE]
    try:
      tf_internals.eager_context().report_error_to_cluster(
        tf.errors.ABORTED, f'official_ext: worker {self.index}: {text}'
      )
    except (tf.errors.OpError, ValueError) as failure:
      logging.warning('The other workers could not be notified: %s', failure)
