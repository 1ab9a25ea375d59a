"""Input whose batch at step s is a pure function of (seed, s).

Step s uses the positions from s * G to (s + 1) * G - 1 of the run, where G is `global_batch_size`; replica r takes the
r-th of the equal slices. `keyed_random` computes which example is at a position. So there is nothing to save, every
step costs the same to start at, and the global batch does not depend on how many replicas or input pipelines share it.
"""

import dataclasses

import numpy as np
from official.modeling.hyperparams import base_config
import tensorflow as tf

from official_ext.base import errors
from official_ext.data import bad_examples
from official_ext.data import batch_reader
from official_ext.data import collators
from official_ext.data import config_fields
from official_ext.data import data_identity
from official_ext.data import keyed_random
from official_ext.data import pipelines
from official_ext.data import sources
from official_ext.data.service import client
from official_ext.data.service import worker

do_not_convert = tf.autograph.experimental.do_not_convert

# Indices are computed for several batches at a time: one costs as much as thousands.
_INDICES_PER_BLOCK = 4096
_BYTES_PER_BLOCK = 2**24
# From here on a call of Python costs little compared with the rows.
_ROWS_PER_READ = 256


def build_dataset(
  source: sources.Source,
  params: base_config.Config,
  input_context: tf.distribute.InputContext | None = None,
  transform: batch_reader.Transform | None = None,
  transform_per_example: batch_reader.Transform | None = None,
) -> tf.data.Dataset:
  """Builds a dataset of per-replica batches, for `strategy.distribute_datasets_from_function`.

  For training it is infinite, epoch after epoch in an order that `params.seed` determines: batches are always full, and
  cross the end of an epoch. It starts at the batch of `pipelines.starting_at`.

  For evaluation it is finite, in the source's order, and has every example exactly once. The last global batch may be
  partial: the first replicas get its examples, the others none; `params.drop_remainder` drops that batch.

  Args:
    source: the examples.
    params: a data configuration. Fields read: global_batch_size, is_training, seed, drop_remainder, deterministic,
      collator, num_parallel_calls, prefetch_buffer_size, on_bad_example.
    input_context: which of the input pipelines this is. None: the only one, of one replica.
    transform: called on every batch, in the graph, as `transform(batch, seeds)`. `seeds` is an int64 tensor of shape
      [b, 2], one seed for TensorFlow's stateless random ops for each example: a function of (seed, position).
    transform_per_example: the same for single examples, before they go to `transform`: called as
      `transform_per_example(example, seed)` with `seed` of shape [2]. The results must agree in shape.

  Returns:
    A `tf.data.Dataset` whose elements are batches as the collator makes them, with leading dimension
    b = global_batch_size / number of replicas: element e is step start + e // r, replica e % r of the r that the
    pipeline feeds.

  An example that cannot be read, or cannot be batched with the others, ends the iteration with an error that contains
  the message of a `BadExampleError`. Under `on_bad_example='skip'`, the next good example of the source replaces it in
  training; an evaluation skips it, so that a batch may be smaller. `bad_examples.logged_in` counts them.

  Raises:
    UserError: `global_batch_size` is not positive or cannot be divided among the replicas, or there are no examples, or
      one of the first examples cannot be read.

  Example:

    >>> source = ext.ArraySource({'x': np.arange(5)})
    >>> data = ext.InMemoryDataConfig({'global_batch_size': 2, 'is_training': False})
    >>> [batch['x'].numpy().tolist() for batch in ext.build_dataset(source, data)]
    [[0, 1], [2, 3], [4]]
    >>> data = ext.InMemoryDataConfig({'global_batch_size': 5, 'is_training': True, 'seed': 1})
    >>> batches = ext.build_dataset(source, data).take(3)  # Epochs, each with every example.
    >>> [sorted(batch['x'].numpy().tolist()) for batch in batches]
    [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
  """
  if not len(source):
    raise errors.UserError(f'{batch_reader.config_path(params)}: there are no examples')
  log = _log_of(source, params)
  share = batch_reader.Share.of(params, input_context)
  load, in_graph = _loader(source, params)
  is_untransformed = transform is None and transform_per_example is None
  is_cheap = in_graph and is_untransformed
  reads_in_blocks = is_untransformed and _reads_in_blocks(source, params)
  plan = _plan(source, params, share, reads_in_blocks)
  seed = params.seed or 0
  batches = batch_reader.BatchMaker(len(source), seed, plan.is_partial, load, transform, transform_per_example)
  served = _served(source, params, batches, log) if worker.is_wanted(params) else None
  if served is not None:
    dataset = client.dataset(_request(served, params, share, plan))
  elif (is_cheap or reads_in_blocks) and not plan.is_partial:
    dataset = _in_blocks(plan, load, in_graph)
  else:
    dataset = plan.elements(plan.blocks).map(
      batches, num_parallel_calls=config_fields.of_data(params).num_parallel_calls
    )
  dataset = _prefetched(dataset, params)
  if is_cheap and params.is_training and share.is_whole and served is None:
    return batch_reader.attach_in_memory(dataset, _in_memory_batches(share, len(source), seed, load))
  return dataset


def _log_of(source: sources.Source, params: base_config.Config) -> bad_examples.ExampleLog:
  """The log of bad examples, which names the examples of this source."""
  log = bad_examples.current_log()
  log.describe = lambda at: _describe(source, params, at)
  log.add_source(_identity(source, params), source.summary(), source.balance())
  return log


def _in_blocks(plan, load, in_graph):
  """The batches of rows that are cheap to gather: a block of batches at a time."""
  blocks = plan.blocks.map(do_not_convert(lambda positions, indices: load(positions, indices)[0]))
  return plan.elements(blocks if in_graph else blocks.prefetch(1))


def _prefetched(dataset: tf.data.Dataset, params: base_config.Config) -> tf.data.Dataset:
  buffer_size = params.prefetch_buffer_size
  dataset = dataset.prefetch(_buffer_size(dataset.element_spec) if buffer_size is None else buffer_size)
  options = tf.data.Options()
  options.autotune.enabled = False  # There is nothing to tune, and the accounting for it costs more than a gather.
  options.deterministic = params.deterministic is not False
  return dataset.with_options(options)


def _served(
  source: sources.Source, params: base_config.Config, batches: batch_reader.BatchMaker, log: bad_examples.ExampleLog
) -> worker.ServedInput | None:
  """The input as one that a tf.data service makes; None if this process is a worker of it, which has noted it."""

  def indices(positions):
    if params.is_training:
      return keyed_random.shuffled_indices(positions, len(source), params.seed or 0)
    return keyed_random.sequential_indices(positions, len(source))

  transforms = [batches.transform, batches.transform_per_example]
  key = worker.key_of(params, _identity(source, params), transforms)
  served = worker.ServedInput(key, batch_reader.config_path(params), batches, indices, log)
  return None if worker.collect(served) else served


def _request(
  served: worker.ServedInput, params: base_config.Config, share: batch_reader.Share, plan: '_Plan'
) -> client.Request:
  """The request of a pipeline to the tf.data service of its data configuration."""
  return client.Request(
    served,
    share,
    params.tf_data_service_address,
    start=plan.first_step * share.num_replicas,
    end=plan.num_elements,
    is_partial=plan.is_partial,
    num_parallel_calls=config_fields.of_data(params).num_parallel_calls,
  )


def _in_memory_batches(share, num_examples, seed, load):
  @do_not_convert
  def indices(numbers):
    return keyed_random.shuffled_indices(share.positions(numbers), num_examples, seed)

  @do_not_convert
  def gather(indices):
    return load(indices, indices)[0]

  return batch_reader.InMemoryBatches(indices, gather)


def _identity(source: sources.Source, params: base_config.Config) -> data_identity.Identity:
  """Distinguishes this input's batches from the batches of another input."""
  if not params.is_training:
    return source.identity()
  return {**source.identity(), 'order_of_examples': keyed_random.ORDER_VERSION, 'seed': params.seed or 0}


def _describe(source: sources.Source, params: base_config.Config, at: int) -> str:
  """Describes the example at a position of the run."""
  index = at
  if params.is_training:
    index = int(keyed_random.shuffled_indices(tf.constant([at], tf.int64), len(source), params.seed or 0)[0])
  return f'{source.describe(index)} at position {at} of the run'


def _buffer_size(element_spec: tf.TypeSpec) -> int:
  """The number of batches to prefetch: enough to bridge the computation of a block, within 64 MiB."""
  num_bytes = 0
  for spec in tf.nest.flatten(element_spec):
    if spec.shape.num_elements() is None:
      return 4
    num_bytes += spec.shape.num_elements() * spec.dtype.size
  return max(2, min(16, 2**26 // max(num_bytes, 1)))


@dataclasses.dataclass(frozen=True)
class _Plan:
  """The positions and indices of the examples of every element.

  Attributes:
    blocks: a dataset of (positions, indices), int64 tensors of shape [elements of the block, b].
    first_step: the step of its first element.
    num_elements: how many of the blocks' elements count; None: all, without end.
    is_partial: whether positions at the end are beyond the last example.
  """

  blocks: tf.data.Dataset
  first_step: int
  num_elements: int | None
  is_partial: bool

  def elements(self, blocks: tf.data.Dataset) -> tf.data.Dataset:
    """The elements of the blocks, one by one."""
    dataset = blocks.unbatch()
    return dataset if self.num_elements is None else dataset.take(self.num_elements)


def _plan(
  source: sources.Source, params: base_config.Config, share: batch_reader.Share, reads_in_blocks: bool
) -> _Plan:
  """The plan of a pipeline, from the batch of `position` on."""
  num_examples = len(source)
  num_rows = _ROWS_PER_READ if reads_in_blocks else _INDICES_PER_BLOCK
  if source.bytes_per_example:
    num_rows = min(num_rows, _BYTES_PER_BLOCK // source.bytes_per_example)
  num_steps = max(1, num_rows // (share.batch_size * share.num_replicas))

  @do_not_convert
  def make_block(first_step):
    positions = share.positions(first_step + tf.range(num_steps, dtype=tf.int64))
    if params.is_training:
      return positions, keyed_random.shuffled_indices(positions, num_examples, params.seed or 0)
    return positions, keyed_random.sequential_indices(positions, num_examples)

  if params.is_training:
    first_step = pipelines.take_start()
    return _Plan(tf.data.Dataset.counter(first_step, num_steps).map(make_block), first_step, None, False)
  num_full, rest = divmod(num_examples, share.global_batch_size)
  is_partial = rest > 0 and not params.drop_remainder
  num_batches = num_full + is_partial
  if not num_batches:
    raise errors.UserError(
      f'task.validation_data.drop_remainder: the {num_examples} examples do not fill one batch of '
      f'{share.global_batch_size}'
    )
  blocks = tf.data.Dataset.range(0, num_batches, num_steps).map(make_block)
  return _Plan(blocks, 0, num_batches * share.num_replicas, is_partial)


def _collator_name(params: base_config.Config) -> str:
  return config_fields.of_data(params).collator


def _reads_in_blocks(source: sources.Source, params: base_config.Config) -> bool:
  """Whether Python reads many batches in one call."""
  return source.reads_in_blocks and _collator_name(params) == 'stack' and not batch_reader.may_skip(params)


def _loader(source: sources.Source, params: base_config.Config) -> tuple[batch_reader.Load, bool]:
  """Returns a graph function for `BatchMaker.load`, of a block of batches too, and whether it stays in the graph.

  Only an `ArraySource` and one that is read in blocks take positions of more than one dimension.
  """
  name = _collator_name(params)
  if isinstance(source, sources.ArraySource) and name == 'stack':
    gather = source.gatherer()
    return do_not_convert(lambda positions, indices: (gather(indices), positions)), True
  collate = collators.get(name, params)
  reader = batch_reader.BatchReader(source, collate, params)
  arrays = [np.asarray(array) for array in tf.nest.flatten(reader.batch)]
  dtypes = [tf.string if array.dtype.kind in 'OSU' else tf.as_dtype(array.dtype) for array in arrays]
  ranks = [array.ndim for array in arrays]
  shapes = [array.shape[1:] if collate.fixed_shapes else (None,) * (array.ndim - 1) for array in arrays]
  if 0 in ranks:
    raise ValueError(f'collator: {name!r} gave a scalar; every value of a batch needs a leading batch dimension.')

  def read(positions, indices):
    values, kept = reader.read(positions.tolist(), indices.tolist())
    return [np.asarray(kept, np.int64), *values]

  def load(positions, indices):
    rows = [tf.reshape(tensor, [-1]) for tensor in (positions, indices)]
    kept, *flat = tf.numpy_function(read, rows, [tf.int64, *dtypes])
    if indices.shape.rank > 1:
      kept, *flat = (
        tf.reshape(tensor, tf.concat([tf.shape(indices), tf.shape(tensor)[1:]], 0)) for tensor in (kept, *flat)
      )
    size = [None] if reader.may_skip else indices.shape
    kept.set_shape(size)
    for tensor, shape in zip(flat, shapes):
      tensor.set_shape((*size, *shape))
    return tf.nest.pack_sequence_as(reader.batch, flat), kept

  return load, False
