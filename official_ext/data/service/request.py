"""A run's request to a tf.data service: the elements of one pipeline, by number."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.data import batch_share
from official_ext.data.service import served_inputs
from official_ext.data.service import worker

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
    end: the number after the last element; None: there is none.
    is_partial: whether examples may end within a batch, or before it.
    num_parallel_calls: how many elements each worker makes at the same time.
  """

  served: served_inputs.ServedInput
  share: batch_share.Share
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

    It registers the request at the dispatcher, which may take as long as there is none.
    """

    def ask(number):
      inputs = [
        tf.constant(self.served.key),
        self.first_position(number),
        tf.constant(self.share.batch_size, tf.int64),
        tf.constant(self.is_partial),
        tf.constant([dtype.name for dtype in dtypes]),
      ]
      answer = tf.raw_ops.PyFuncStateless(input=inputs, token=worker.FUNCTION, Tout=[tf.string, tf.string, *dtypes])
      return (number, *answer)

    end = tf.int64.max if self.end is None else self.end
    numbers = tf.data.Dataset.range(start, end)
    asked = numbers.map(tf.autograph.experimental.do_not_convert(ask), self.num_parallel_calls, deterministic=False)
    options = tf.data.Options()
    options.autotune.enabled = False  # There is nothing to tune, and its thread keeps those waiting that end it.
    service = tf.data.experimental.service
    served = asked.with_options(options).apply(service.distribute(service.ShardingPolicy.DYNAMIC, self.address))
    return served.with_options(options)
