"""The inputs of a run: which batches a step takes, from which iterator, and how its errors are reported.

`InputReport` reports errors of an input, and how many examples it skipped. `TrainingInput` makes a training input that
begins at any batch. `StepInputs` takes the micro-batches of steps from the trainer's iterator, or computes their
numbers if a program gathers its batches, and measures the time that this takes.

The tf.data service of one experiment comes last. TensorFlow's servers run in a process that has built the experiment's
inputs: sources are read by Python functions, which no graph can carry to another machine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import time
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import protocols
from official_ext.base import tf_internals
from official_ext.data import bad_examples
from official_ext.data import batch_reader
from official_ext.data import config_fields
from official_ext.data import data_identity
from official_ext.data import input_faults
from official_ext.data import input_files
from official_ext.data import pipelines
from official_ext.data import record_report
from official_ext.data.service import worker
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.step import step_random
from official_ext.training.tasks import base_task
from official_ext.training.tasks import loop_task
from official_ext.training.tasks import model_garden

SKIPS = 'examples_skipped'
_MAX_NAMED = 3


class InputReport:
  """The report of one data configuration.

  Attributes:
    path: the dotted path of the configuration.
    log: the reports of the library's own inputs about their examples, since the last was built.
  """

  def __init__(self, path: str, data: Any, task: Any):
    """Initializes the report.

    Args:
      path: the dotted path of the configuration.
      data: the configuration; anything if a task has none.
      task: builds the input.
    """
    self.path = path
    self.log = bad_examples.ExampleLog()
    self._data = data
    self._task = task
    self._is_built = False
    self._found: list[json_values.JsonObject] | None = None  # Looking at many files takes time.

  @contextlib.contextmanager
  def building(self) -> Iterator[None]:
    """A context in which the input is built.

    Raises:
      UserError: its files are all empty.
    """
    input_faults.check_not_empty(self.path, self._data)
    self.log = bad_examples.ExampleLog()  # Examples that an abandoned input reads ahead must not be counted.
    self._is_built = True
    self._found = None
    with bad_examples.logged_in(self.log), worker.belonging_to(self._task.task_config):
      yield

  def identity(self) -> list[json_values.JsonObject]:
    """The identity of the data: those of the library's sources, or of the files that the configuration names.

    For another input, it is the number of examples, if the task knows it. [] if nothing is known, or the input was not
    built.
    """
    if self.log.identities or not self._is_built:
      return self.log.identities
    if self._found is None:
      self._found = self._identify()
    return self._found

  def _identify(self) -> list[json_values.JsonObject]:
    found = data_identity.of_config(self._data)
    num_examples = self._task.num_examples(self._data)
    found = {**found, 'num_examples': num_examples} if num_examples is not None else found
    return [found] if found else []

  def summary(self, drops_rest: bool = True) -> str:
    """How many examples there are, and how many of their records were dropped, in words; '' if nothing was built.

    Args:
      drops_rest: whether the input has whole batches alone, as `drop_remainder` requests.
    """
    if not self._is_built:
      return ''
    if self.log.summaries:
      text = '; '.join(self.log.summaries)
    else:
      known = next(iter(self.identity()), {})
      counts = [f'{known[f"num_{name}"]} {name}' for name in ('examples', 'files') if f'num_{name}' in known]
      text = ' in '.join(counts) + ('' if 'num_examples' in known else ', number of examples unknown')
      text = text.removeprefix(', ')
    fields = config_fields.of_data(self._data)
    is_known = bool(config_fields.known(self._data, {'is_training': True}))
    if fields.drop_remainder and is_known and not fields.is_training and drops_rest:
      text += f'; those after the last whole batch are dropped: {self.path}.drop_remainder'
    return text

  def balance(self) -> list[json_values.JsonObject]:
    """The accounts of the data, with their `text`: of sources, or of the prepared folder that the configuration names.

    The numbers of a custom tf.data pipeline are 'unknown'. [] if nothing was built.
    """
    if not self._is_built:
      return []
    found = self.log.balances or input_files.balance_of(config_fields.of_data(self._data).input_path)
    found = found or [record_report.unknown_balance(self.path)]
    return [{**each, 'text': record_report.balance_line(each)} for each in found]

  def explain(
    self, error: BaseException, step: int, model: Any, batch_numbers: Sequence[int] = ()
  ) -> errors.UserError | None:
    """Turns the exception of a step into an error that names the data that it is about.

    Args:
      error: the exception.
      step: the number of steps done.
      model: the task's.
      batch_numbers: the numbers of the batches that it may be about.

    Returns:
      The error; None if it is not about data.
    """
    evaluates = self.path.endswith('validation_data')
    # The counter of steps waits neither for the loss nor for the input of all replicas.
    when = f'in the evaluation at step {step}' if evaluates else f'near step {step}'
    found = input_faults.out_of_range(error)
    if found is None:
      return input_faults.explain(error, self.path, self._data, self._task.build_inputs, f' ({when})')
    place = self.examine(batch_numbers, model, labels_only=True)
    if place:
      return errors.UserError(f'{self.path}: {place}' + (f' ({when})' if evaluates else ''))
    message = f'{self.path}: a label or an index of {found.value} is outside of {found.valid}'
    fault = None if self.log.describe else input_faults.find_label(self._data, found.value)
    if fault is not None:
      message = f'{self.path}: {fault}, which is outside of {found.valid}'
    return errors.UserError(f'{message} ({when})')

  def no_examples(self, needed: int = 0) -> errors.UserError:
    """The error for an input that has ended before its first batch; a step needs `needed` examples."""
    return input_faults.no_examples(self.path, self._data, needed)

  def skips_up_to(self, end: int | None) -> dict[str, int]:
    """The number of examples that were skipped since the last call, as a log. Empty if the task skips none.

    Args:
      end: the position up to which examples have been used; None: all.
    """
    if config_fields.of_data(self._data).on_bad_example != 'skip' or self.log.describe is None:
      return {}
    return {SKIPS: self.log.take_skips(end)}

  def examine(self, batch_numbers: Sequence[int], model: object, labels_only: bool = False) -> str:
    """Finds the inputs or labels that have made the loss of some batches not finite.

    Only the library's own inputs can read a batch again. The loss itself tests the labels, on the CPU, whose kernels
    refuse labels that those of GPU and XLA turn into NaN.

    Args:
      batch_numbers: which batches.
      model: the task's.
      labels_only: whether to pass over the inputs.

    Returns:
      The errors of examples; '' if nothing is found.
    """
    for number in batch_numbers:
      batch = self._read_again(number)
      if batch is None:
        continue
      places = [] if labels_only else _rows(batch, lambda array: ~np.isfinite(array))
      if places:
        name, rows = places[0]
        return f'{name} is not finite in {self._name(number, rows)}'
      found = input_faults.out_of_range(_error_of(self._task, model, batch))
      if found is not None:
        places = _rows(batch, functools.partial(_equals, value=found.value))
        name, rows = places[0] if places else ('a label or an index', [0])
        return f'{name}: {found.value} is outside of {found.valid}, in {self._name(number, rows)}'
    return ''

  def _name(self, batch_number, rows) -> str:
    size = self._data.global_batch_size
    describe = self.log.describe
    assert describe is not None  # There is one, as the batch was read again.
    named = [describe(batch_number * size + row) for row in rows[:_MAX_NAMED]]
    more = f' and {len(rows) - _MAX_NAMED} more of the batch' if len(rows) > _MAX_NAMED else ''
    return f'{"; ".join(named)}{more}'

  def _read_again(self, number: int) -> Any | None:
    """Reads a whole global batch again, if the input can start anywhere; None if it cannot."""
    if self.log.describe is None:
      return None
    try:
      with pipelines.starting_at(number) as start, bad_examples.logged_in(bad_examples.ExampleLog()):
        dataset = self._task.build_inputs(self._data)
        if not start.honoured:  # An evaluation, in the order of the source.
          dataset = dataset.skip(number)
      return next(iter(dataset), None)
    except Exception:  # pylint: disable=broad-except  # Another error is being reported.
      return None


def _rows(batch: object, test: Any) -> list[Any]:
  """(name, rows) of the tensors with rows that pass a test of arrays [b, n]; those of the lowest rank first."""
  found = []
  # The keys of its dictionaries, the numbers of its tuples.
  named = zip(bad_examples.paths(batch), tf.nest.flatten(batch))
  flat = [(name, tensor) for name, tensor in named if tf.is_tensor(tensor) and isinstance(tensor, tf.Tensor)]
  for name, tensor in sorted(flat, key=lambda item: item[1].shape.rank):
    array = tensor.numpy()
    if array.ndim and array.dtype.kind in 'iuf':
      rows = np.flatnonzero(test(array.reshape(len(array), -1)).any(axis=1)).tolist() if len(array) else []
      if rows:
        found.append((name, rows))
  return found


def _equals(array: np.ndarray, value: int) -> np.ndarray:
  return (array == value) if array.dtype.kind in 'iu' else np.zeros(array.shape, bool)


def _error_of(task: Any, model: Any, batch: Any) -> Exception | None:
  """The exception of the task's loss on a batch, on the CPU."""
  try:
    key = step_random.StepKey(seed=0, step=tf.constant(0, tf.int64), purpose='evaluation')
    with tf.device('CPU:0'), step_random.step_key(key):
      if isinstance(task, base_task.Task):
        task.forward(batch, model, training=False)
      else:
        task.validation_step(batch, model)
  except Exception as error:  # pylint: disable=broad-except
    return error
  return None


_FIELDS_OF_SOURCES = ('input_path:', 'tfds_name:', 'tfds_split:', 'tfds_data_dir:')


class TrainingInput:
  """The training input of one trainer.

  Attributes:
    data_offset: the offset that is added to the number of a step when its batches are chosen: rollbacks skip some.
    is_custom: whether the dataset was handed to the trainer, which cannot build it again.
  """

  def __init__(self, task: protocols.Task, data: object, batches_per_step: int, is_custom: bool):
    """Initializes an input that begins at its first batch.

    Args:
      task: builds the input.
      data: `task.train_data`; None if a task has none.
      batches_per_step: how many global batches an update takes.
      is_custom: whether the dataset was handed to the trainer, which cannot build it again.
    """
    self.data_offset = 0
    self._task = task
    self._data = data
    self._batches_per_step = batches_per_step
    self.is_custom = is_custom
    self._first_batch = 0  # The first batch of the dataset that was built last.

  def batches_of(self, step: int) -> list[int]:
    """The numbers of the global batches that a step (the first: 1) takes."""
    first = (step - 1 + self.data_offset) * self._batches_per_step
    return list(range(first, first + self._batches_per_step))

  def after(self, step: int, distribute_dataset: Callable[..., object]) -> Any | None:
    """The dataset that begins after the batches that `step` steps have used; None if the present one does.

    Args:
      step: the number of steps done.
      distribute_dataset: the trainer's: makes a dataset from a function like `task.build_inputs`, and its argument.
    """
    num_batches = (step + self.data_offset) * self._batches_per_step
    if num_batches == self._first_batch:
      return None
    if self.is_custom:
      logging.warning('The training dataset was handed to the trainer: it starts from its beginning.')
      return None
    with pipelines.starting_at(num_batches) as start:

      def from_start(dataset, input_context):
        del input_context
        if start.honoured:
          self._report_draws(dataset, num_batches, in_parallel=False)
        return dataset

      dataset = distribute_dataset(pipelines.transformed(self._task.build_inputs, from_start), self._data)
      if not start.honoured and num_batches and _is_from_a_service(self._data):
        logging.warning(
          'The input of %s comes from a tf.data service, which deals out examples in no order that could be repeated: '
          'from batch %d on, the run continues with other batches than an undisturbed run would have.',
          type(self._task).__name__,
          num_batches,
        )
      elif not start.honoured and num_batches:
        dataset = distribute_dataset(self._skipping_inputs(num_batches), self._data)
    self._first_batch = num_batches
    return dataset

  def _report_draws(self, dataset: tf.data.Dataset, num_batches: int, in_parallel: bool) -> None:
    """Warns of draws that are not those of an undisturbed run; `in_parallel`: see `tf_internals.draws`."""
    if num_batches and tf.executing_eagerly() and tf_internals.draws(dataset, in_parallel):
      logging.warning(
        'The input of %s draws by tf.random in %s: from batch %d on, the numbers are others than in an undisturbed '
        'run. Draw by stateless ops%s.',
        type(self._task).__name__,
        'several threads' if in_parallel else 'tf.data',
        num_batches,
        ', or set runtime.deterministic=true' if in_parallel else ' with the seeds of a transform',
      )

  def _skipping_inputs(self, num_batches: int) -> Callable[..., tf.data.Dataset]:
    """A `build_inputs` whose pipelines skip the examples of `num_batches` global batches."""
    logging.warning(
      'The input of %s is a tf.data pipeline: it is read again up to batch %d, which costs as long as '
      'reading these batches did.%s',
      type(self._task).__name__,
      num_batches,
      ''
      if config_fields.of_data(self._data).deterministic is not False
      else ' With task.train_data.deterministic=false the order of the examples differs.',
    )

    def skip(dataset, input_context):
      self._report_draws(dataset, num_batches, in_parallel=True)
      local_replicas = 1
      if input_context is not None:
        local_replicas = input_context.num_replicas_in_sync // input_context.num_input_pipelines
      return dataset.skip(num_batches * local_replicas)

    return pipelines.transformed(self._task.build_inputs, skip)


def _is_from_a_service(data: object) -> bool:
  """Whether Model Garden's InputReader takes the batches of a data configuration from a tf.data service."""
  return config_fields.of_data(data).is_served


def ended(step: int) -> errors.UserError:
  """The error for examples that end inside a training loop, after `step` steps."""
  return errors.UserError(
    f'task.train_data: the examples ended at step {step}, inside a training loop; let the dataset repeat, or set '
    'trainer.train_steps to its number of steps'
  )


def wrong_batch_size(task: protocols.Task, expected: int, found: int, num_replicas: int) -> errors.UserError:
  """The error for training batches of another size than the configuration has.

  Args:
    task: builds the input.
    expected: `task.train_data.global_batch_size`.
    found: the examples of one replica's batch.
    num_replicas: the number of replicas.
  """
  where, name = 'task.train_data.global_batch_size', f'{type(task).__name__}.build_inputs'
  if num_replicas == 1:
    return errors.UserError(
      f'{where}: is {expected}, and a batch of {name} has {found} examples; batch by params.global_batch_size, or set '
      f'{where}={found}'
    )
  return errors.UserError(
    f'{where}: is {expected}, and a step takes {found * num_replicas} examples, {found} on each of {num_replicas} '
    f'replicas; let {name} batch by input_context.get_per_replica_batch_size(params.global_batch_size)'
  )


def mistake_in_data(config: Any, data: Any, error: Exception) -> errors.UserError | None:
  """The mistake in a data configuration that explains an error of Model Garden's; None if none is known."""
  path = next(
    (
      f'task.{name}'
      for name in ('train_data', 'validation_data')
      if data is not None and config_fields.data_of(config.task, name) is data
    ),
    None,
  )
  if path is None:
    return None
  num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
  if 'is not divisible by `num_replicas_in_sync`' in str(error):
    return checks.batch_that_cannot_be_shared(path, data.global_batch_size, num_replicas)
  if isinstance(error, errors.UserError):  # A source knows its field, but not for which data it reads.
    return errors.UserError(f'{path}.{error}') if str(error).startswith(_FIELDS_OF_SOURCES) else None
  pattern = input_faults.unmatched(data)
  if pattern is not None:
    return errors.UserError(f'{path}.input_path: no file matches {pattern!r}')
  # A task may provide the examples of our DataConfig itself: then its own error says more.
  if isinstance(data, definitions.DataConfig) or config_fields.of_data(data).names_data:
    return None
  return errors.UserError(
    f'{path}: names no data; set {path}.input_path to files, or {path}.tfds_name and {path}.tfds_split '
    f'({type(error).__name__}: {" ".join(str(error).split())[:150]})'
  )


class StepInputs:
  """Calls `next_train_inputs` for a step.

  Attributes:
    wait: float64 scalar variable, the seconds spent waiting for input since it was set to zero. Gathering is a part of
      the step, and not in it.
    in_memory: how to compute the batch of a number; None if batches come from the iterator.
    data_offset: int64 scalar variable: steps find their batches so many updates further than their numbers.
    count: the examples of one replica's batch, an int64 scalar tensor; None if nothing must be counted.
    num_seen: int64 scalar variable, the result of `count` for the first batch of this process; -1 before.
  """

  def __init__(self, next_inputs: Callable[[Any], object], global_step: tf.Variable, seed: int, num_micro_steps: int):
    """Initializes it, inside the strategy's scope.

    Args:
      next_inputs: the trainer's `next_train_inputs`: takes a micro-batch from the training iterator.
      global_step: the number of steps done.
      seed: `runtime.seed`.
      num_micro_steps: micro-batches of one step.
    """
    self.wait = tf.Variable(
      0.0, dtype=tf.float64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
    )
    self.in_memory: batch_reader.InMemoryBatches | None = None
    self.data_offset = tf.Variable(
      0, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
    )
    self.count: Callable[[Any], tf.Tensor] | None = None
    self.num_seen = tf.Variable(
      -1, dtype=tf.int64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
    )
    self._next_inputs = next_inputs
    self._global_step = global_step
    self._seed = seed
    self._num_micro_steps = num_micro_steps

  @tf_internals.autograph_unconverted
  def take(self, iterator: tf.data.Iterator, steps_ahead: int = 0) -> list[Any]:
    """Takes the micro-batches of one step, and notes how long that took. Cross-replica context, on the host.

    Args:
      iterator: the training iterator.
      steps_ahead: the number of the step, counted from the next one.
    """
    if self.in_memory is not None:
      first = self.next_batch(steps_ahead)
      return [self.in_memory.batch(first + i) for i in range(self._num_micro_steps)]
    with tf.control_dependencies([self._global_step.read_value()]):
      start = _timestamp()
    with tf.control_dependencies([start]):
      batches = [self.take_one(iterator, i, steps_ahead) for i in range(self._num_micro_steps)]
    arrived = [t for t in tf.nest.flatten(batches, expand_composites=True) if tf.is_tensor(t)]
    with tf.control_dependencies(arrived):
      self.wait.assign_add(_timestamp() - start)
    return batches

  @tf.autograph.experimental.do_not_convert
  def next_batch(self, steps_ahead: int = 0) -> tf.Tensor:
    """The number of the first batch of the next step, or of one further ahead: int64 scalar."""
    return (self._global_step.read_value() + steps_ahead + self.data_offset.read_value()) * self._num_micro_steps

  @tf_internals.autograph_unconverted
  def take_one(self, iterator: tf.data.Iterator, micro_step: int = 0, steps_ahead: int = 0) -> Any:
    """Calls `next_train_inputs`, which may read the step and its seeds. Cross-replica context.

    Args:
      iterator: the training iterator.
      micro_step: the number of the micro-batch in the step.
      steps_ahead: the number of the step, counted from the next one.
    """
    with step_random.step_key(self._key(micro_step, steps_ahead)):
      batch = tf_internals.autograph_called(self._next_inputs)(iterator)
    if self.count is not None:
      one = tf.nest.map_structure(lambda part: tf.distribute.get_strategy().experimental_local_results(part)[0], batch)
      self.num_seen.assign(tf.where(self.num_seen < 0, self.count(one), self.num_seen))
    return batch

  @tf.autograph.experimental.do_not_convert
  def _key(self, micro_step, steps_ahead):
    return step_random.StepKey(
      seed=self._seed,
      step=self._global_step.read_value() + steps_ahead,
      micro_step=micro_step,
      num_micro_steps=self._num_micro_steps,
      purpose='inputs',
    )


@tf.autograph.experimental.do_not_convert
def _timestamp() -> tf.Tensor:
  """Seconds since 1970: float64 scalar. TensorFlow's own op is refused under op determinism."""
  if tf_internals.is_op_determinism_enabled():
    return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
  return tf.timestamp()


_service = tf.data.experimental.service
_HEARTBEAT_MS = 1000


def build_served_inputs(params: definitions.ExperimentConfig) -> Mapping[str, worker.ServedInput]:
  """Builds the training and the validation input of an experiment, as a run would, and returns them by their keys.

  If the data allow no run that evaluates, the input of --mode=train is returned, and a warning names the reason.

  Raises:
    UserError: the data allow no run, or the task has no input that is indexed by step.
  """
  task = model_garden.make_task(params.task)
  found: Mapping[str, worker.ServedInput] = {}
  if not isinstance(task, loop_task.LoopTask):
    with worker.collected() as found:
      if isinstance(task, base_task.Task):  # Of runs that do not evaluate: nothing is held out.
        task.evaluates = False
        _build_input(task, params, 'train_data')
        task.evaluates = True
      try:
        for name in ('train_data', 'validation_data'):
          _build_input(task, params, name)
      except errors.UserError as error:
        if not found:
          raise
        logging.warning('Only --mode=train is served: %s', error)  # Prepared rows are not divided.
  if not found:
    raise errors.UserError(
      f'{type(task).__name__}: its input is not indexed by step; ordinary tf.data pipelines are served by the workers '
      'of tf.data.experimental.service, which need no experiment'
    )
  return found


def _build_input(task: protocols.Task, params: definitions.ExperimentConfig, name: str) -> None:
  data = config_fields.data_of(params.task, name)
  if data is None or not data.global_batch_size:
    return
  try:
    with InputReport(f'task.{name}', data, task).building():
      task.build_inputs(data)
  except Exception as error:
    mistake = mistake_in_data(params, data, error)
    if mistake is None:
      raise
    raise mistake from error


@dataclasses.dataclass
class DataServers:
  """The servers of one process; they end with it.

  Attributes:
    address: of the dispatcher, as `--tf_data_service` takes it.
    answers: of the worker.
    parts: objects that must live as long as they serve.
  """

  address: str
  answers: worker.Answers
  parts: list[Any]


def start_data_servers(
  inputs: Mapping[str, worker.ServedInput], host: str, port: int, dispatcher: str, worker_port: int
) -> DataServers:
  """Starts a worker, and its dispatcher if there is none.

  Args:
    inputs: of the worker.
    host: the name of this machine, for others.
    port: of the dispatcher to start; 0: any.
    dispatcher: HOST:PORT of an existing one; '': it is started here.
    worker_port: of the worker; 0: any.

  Raises:
    UserError: a port is taken.
  """
  answers = worker.Answers(inputs)
  worker.register(answers)
  parts: list[Any] = []
  flag = '--worker_port' if dispatcher else '--port'
  try:
    if not dispatcher:
      parts.append(_service.DispatchServer(_service.DispatcherConfig(port=port)))
      dispatcher = f'{host}:{parts[0].target.rpartition(":")[2]}'
      flag = '--worker_port'
    address = f'{host}:{worker_port or "%port%"}'
    parts.append(
      _service.WorkerServer(
        _service.WorkerConfig(dispatcher, worker_address=address, port=worker_port, heartbeat_interval_ms=_HEARTBEAT_MS)
      )
    )
  except (tf.errors.OpError, RuntimeError) as error:
    raise errors.UserError(f'{flag}: no server could be started: {bad_examples.one_line(error)}') from error
  return DataServers(f'grpc://{dispatcher}', answers, parts)
