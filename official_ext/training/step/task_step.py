"""Traces a task's step, and turns it from a function that updates into one from inputs to gradients.

Before it: the state that steps keep, as variables in the checkpoint; the objects and settings that all parts of a step
share; the means that a training loop logs, over the updates that were made.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals
from official_ext.base.run_folder import run_files
from official_ext.training.config import definitions
from official_ext.training.devices import device_types
from official_ext.training.model_parts import clusters
from official_ext.training.optimization import optimizers
from official_ext.training.step import gradient_tap
from official_ext.training.step import observers
from official_ext.training.step import step_plan
from official_ext.training.step import step_random

NUM_REMEMBERED_SKIPS = 16
NUM_REMEMBERED_LOSSES = definitions.LossSpikeConfig.MAX_WINDOW


class StepState(tf.Module):
  """The updates that were skipped, and the last losses.

  Attributes:
    num_skips: int64 scalar variable, updates skipped since the start or the last rollback.
    skipped_steps: int64 variable of shape [16], the numbers (first step: 1) of the last ones, a ring.
    num_losses: int64 scalar variable, how many losses were noted.
    losses: float32 variable of shape [128], the last ones, a ring.
  """

  def __init__(self):
    super().__init__(name='step_state')
    kwargs = dict(trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    self.num_skips = tf.Variable(0, dtype=tf.int64, name='num_skips', **kwargs)
    self.skipped_steps = tf.Variable([0] * NUM_REMEMBERED_SKIPS, dtype=tf.int64, name='skipped_steps', **kwargs)
    self.num_losses = tf.Variable(0, dtype=tf.int64, name='num_losses', **kwargs)
    self.losses = tf.Variable([0.0] * NUM_REMEMBERED_LOSSES, dtype=tf.float32, name='losses', **kwargs)

  # Skipped updates.

  def record_skip(self, ok: tf.Tensor, step: tf.Tensor) -> None:
    """Counts step number `step` if it is skipped (not `ok`). On a replica, all of which have the same values."""
    slot = tf.range(NUM_REMEMBERED_SKIPS, dtype=tf.int64) == self.num_skips % NUM_REMEMBERED_SKIPS
    self.skipped_steps.assign(tf.where(tf.logical_and(slot, tf.logical_not(ok)), step, self.skipped_steps))
    self.num_skips.assign_add(tf.where(ok, tf.constant(0, tf.int64), 1))

  def last_skips(self, number: int) -> list[int]:
    """The step numbers of the last `number` skips (16 at most), oldest first."""
    total = int(self.num_skips.numpy())
    ring = self.skipped_steps.numpy()
    number = min(number, total, NUM_REMEMBERED_SKIPS)
    return [int(ring[i % NUM_REMEMBERED_SKIPS]) for i in range(total - number, total)]

  def forget_skips(self) -> None:
    """Restarts the count at 0."""
    self.num_skips.assign(0)
    self.skipped_steps.assign([0] * NUM_REMEMBERED_SKIPS)

  # Losses that stand out.

  def is_spike(self, loss: tf.Tensor, factor: float, window: int) -> tf.Tensor:
    """Whether a loss is above `factor` times the median of the last `window` losses that were noted.

    It is not if fewer were noted, or if their median is not above 0.

    Args:
      loss: float32 scalar.
      factor: above 1.
      window: 1 to 128; of an even number, the median is the lower of the two in the middle.

    Returns:
      bool scalar.
    """
    last = (self.num_losses - 1 - tf.range(window, dtype=tf.int64)) % NUM_REMEMBERED_LOSSES
    median = tf.sort(tf.gather(self.losses.read_value(), last))[(window - 1) // 2]
    return (self.num_losses >= window) & (median > 0.0) & (loss > factor * median)

  def record_loss(self, loss: tf.Tensor, ok: tf.Tensor) -> None:
    """Notes the loss (float32 scalar) of a step that was not skipped (`ok`). Context as for `record_skip`."""
    slot = tf.range(NUM_REMEMBERED_LOSSES, dtype=tf.int64) == self.num_losses % NUM_REMEMBERED_LOSSES
    self.losses.assign(tf.where(tf.logical_and(slot, ok), loss, self.losses))
    self.num_losses.assign_add(tf.where(ok, tf.constant(1, tf.int64), 0))


@dataclasses.dataclass(frozen=True)
class StepParts:
  """The objects that a step reads and writes.

  Attributes:
    task: the task, whose `train_step` is run.
    model: the task's model.
    optimizer: the trainer's, with its wrappers.
    metrics: the training metrics.
    train_loss: the mean of the training loss.
    global_step: int64 scalar variable, the number of updates done.
    state: which updates were skipped, and what the losses were.
    strategy: the strategy in whose scope all of these were made.
  """

  task: Any
  model: Any
  optimizer: Any
  metrics: list[Any]
  train_loss: tf_keras.metrics.Mean
  global_step: tf.Variable
  state: StepState
  strategy: tf.distribute.Strategy

  @property
  def single_trace(self) -> bool:
    """Whether replica code may contain the update: one replica without a separate thread, or TPU."""
    if isinstance(self.strategy, (tf.distribute.OneDeviceStrategy, tf.distribute.TPUStrategy)):
      return True
    with self.strategy.scope():
      return not tf.distribute.has_strategy()  # The default strategy.


class StepMeans:
  """Means over the steps of a training loop. Made and read in the cross-replica context, updated in replica context.

  All but the training loss, which is Model Garden's, are in one variable of each type: a step adds to it once.
  """

  def __init__(self, parts: StepParts, log_dtypes: Mapping[str, tf.DType]):
    """Makes the variables.

    Args:
      parts: the step's.
      log_dtypes: of the task's logs, by name: float32 or float64.
    """
    self._optimizer = parts.optimizer
    self._train_loss = parts.train_loss
    self._wide_names = [name for name, dtype in log_dtypes.items() if dtype == tf.float64]
    narrow_names = [name for name in log_dtypes if name not in self._wide_names]
    self._names = [*narrow_names, *gradient_tap.logs_of(parts.optimizer), 'grad_norm']
    sums = lambda name, count, dtype=tf.float32: tf.Variable(
      tf.zeros([2, count], dtype),
      name=name,
      trainable=False,
      synchronization=tf.VariableSynchronization.ON_READ,
      aggregation=tf.VariableAggregation.SUM,
    )
    with parts.strategy.scope():  # Sums of values times their weights, and of the weights.
      self._sums = sums('log_sums', len(self._names))
      self._skipped_loss = sums('skipped_loss_sums', 1)
      self._wide_sums = sums('wide_log_sums', len(self._wide_names), tf.float64) if self._wide_names else None

  def update(self, loss: tf.Tensor, logs: Mapping[str, tf.Tensor], norm: tf.Tensor | None = None) -> None:
    """Counts a step that was made, with what the optimizer logs about its update.

    Args:
      loss: of the step, a float32 scalar.
      logs: the scalars that it logs, of the types in `log_dtypes`.
      norm: of the gradient, a float32 scalar, which counts if it is finite, as do the optimizer's logs: an overflow
        that loss scaling handles makes no update. None if the task owns its updates.
    """
    self._train_loss.total.assign_add(loss)
    self._train_loss.count.assign_add(1.0)
    finite = tf.constant(True) if norm is None else tf.math.is_finite(norm)
    made = tf.cast(finite, tf.float32)
    zero = tf.constant(0.0)
    counted = {
      **{name: (value, 1.0) for name, value in logs.items() if name not in self._wide_names},
      **{name: (value, made) for name, value in gradient_tap.logs_of(self._optimizer).items()},
      'grad_norm': (zero, zero) if norm is None else (tf.where(finite, norm, 0.0), made),
    }
    values, weights = zip(*(counted[name] for name in self._names))
    weights = tf.stack(weights)
    self._sums.assign_add(tf.stack([tf.stack(values) * weights, weights]))
    if self._wide_sums is not None:
      values = tf.stack([logs[name] for name in self._wide_names])
      self._wide_sums.assign_add(tf.stack([values, tf.ones_like(values)]))

  def note_skipped_loss(self, loss: tf.Tensor, ok: tf.Tensor) -> None:
    """Counts the loss of a step if it is skipped (not `ok`)."""
    self._skipped_loss.assign_add(tf.where(ok, 0.0, tf.stack([[loss], [1.0]])))

  @property
  def variables(self) -> list[tf.Variable]:
    """The variables that are written by a step that is not skipped."""
    return [*self._train_loss.variables, *self._sums_of_logs()]

  def _sums_of_logs(self) -> list[tf.Variable]:
    return [self._sums] if self._wide_sums is None else [self._sums, self._wide_sums]

  def skipped_loss(self) -> Any:
    """The mean loss of the loop, if all its steps were skipped, or None. Call it before the loss is reset."""
    total, count = self._skipped_loss.numpy()[:, 0]
    return total / count if count and not self._train_loss.count.numpy() else None

  def take_logs(self) -> dict[str, Any]:
    """Returns and forgets the means of the loop, without the training loss."""
    means: dict[str, Any] = {}
    for variable, names in zip(self._sums_of_logs(), (self._names, self._wide_names)):
      totals, counts = variable.numpy()
      means |= {name: total / count for name, total, count in zip(names, totals, counts) if count}
    for variable in (*self._sums_of_logs(), self._skipped_loss):
      variable.assign(tf.zeros_like(variable))
    return means


do_not_convert = tf.autograph.experimental.do_not_convert


class TaskOutput(NamedTuple):
  """The result of a task's step on one replica and one micro-batch.

  Attributes:
    loss: float32 scalar.
    logs: the scalars that the step logs: float64 if they were, or are integers, else float32.
    gradients: one for each of `TaskStep.variables`, none of them None; () if the step has made its updates itself.
  """

  loss: tf.Tensor
  logs: dict[str, tf.Tensor]
  gradients: Sequence[tf.Tensor]


class StepFunctions(NamedTuple):
  """The task's step, as an execution calls it. Replica context.

  Attributes:
    forward_backward: `(inputs, micro_step) -> TaskOutput` runs the step up to its update.
    whole_step: `(inputs) -> TaskOutput` runs the step with its updates.
  """

  forward_backward: Callable[[Any, tf.Tensor], TaskOutput]
  whole_step: Callable[[Any], TaskOutput]


class TaskStep:
  """The task's step on one replica's inputs, and the results of tracing it.

  Attributes:
    tap: the tap between the task and the optimizer.
    variables: the variables that have gradients.
    sparse_rows: for each of `variables`, the rows of a sparse gradient, 0 if they vary; None of a dense one.
    input_specs: the type specs of one replica's inputs.
    log_dtypes: of the step's logs, by name, sorted: float32 or float64.
    broadcasts: the shapes of labels and predictions that broadcast: see `observers.noted_broadcasts`.
  """

  def __init__(self, parts: StepParts, config: definitions.ExperimentConfig):
    """Puts the tap on the optimizer; traces nothing yet."""
    self._parts = parts
    self._config = config
    self._num_updates = 0
    self._num_other_updates = 0
    self._merge_calls = False
    self._has_clusters = False
    self._sparse_gradients = False
    self._arguments = {'model': parts.model, 'optimizer': parts.optimizer, 'metrics': parts.metrics}
    self._function = tf.function(self._forward_backward, autograph=False)
    self._compiles_clusters = False  # In `_function`.
    self.tap = gradient_tap.GradientTap(parts.optimizer, on_cpu=device_types.device_type(parts.strategy) == 'CPU')
    if not config.runtime.mesh.sizes():  # A mesh has variables that no function may write.
      optimizers.share_updates(gradient_tap.inner_optimizer(parts.optimizer))
    self.variables: list[tf.Variable] = []
    self.sparse_rows: list[int | None] = []
    self.input_specs: Any = None
    self.log_dtypes: dict[str, tf.DType] = {}
    self.broadcasts: list[str] = []

  # The step.

  @tf_internals.autograph_unconverted
  def _forward_backward(self, inputs, micro_step):
    with self._around_task(micro_step) as check, self.tap.capture() as calls, gradient_tap.other_updates() as others:
      with clusters.noted() as names, observers.noted_broadcasts() as broadcasts:
        logs = tf_internals.autograph_called(self._parts.task.train_step)(inputs, **self._arguments)
    self._num_other_updates = len(others)
    self._has_clusters = bool(names)
    self.broadcasts = broadcasts
    return self._note(inputs, logs, calls, check)

  @tf_internals.autograph_unconverted
  def _whole_step(self, inputs):
    with self._around_task(0) as check:
      logs = tf_internals.autograph_called(self._parts.task.train_step)(inputs, **self._arguments)
    return self._note(inputs, logs, (), check)

  @contextlib.contextmanager
  def _around_task(self, micro_step):
    """A context for the task's step: its random key, AutoGraph if a graph is traced, no search at all-reduces.

    It yields the check of the step's indices. A mesh has none: its layouts decide which operations read rows.
    """
    checked = contextlib.nullcontext() if self._config.runtime.mesh.sizes() else observers.checked_indices()
    with tf_internals.autograph_in_graphs(), step_random.step_key(self._key(micro_step)):
      with gradient_tap.without_searches(), checked as check:
        yield check

  @do_not_convert
  def _key(self, micro_step):
    return step_random.StepKey(
      seed=self._config.runtime.seed,
      step=self._parts.global_step.read_value(),
      replica=tf.distribute.get_replica_context().replica_id_in_sync_group,
      num_replicas=self._parts.strategy.num_replicas_in_sync,
      micro_step=micro_step,
      num_micro_steps=self._config.trainer.gradient_accumulation_steps,
    )

  @do_not_convert
  def _note(self, inputs, logs, calls, check):
    """Notes the results of the trace, and returns the inputs of the update."""
    self._num_updates = len(calls)
    self.input_specs = tf.nest.map_structure(_spec_of, inputs)
    pairs = [(g, v) for g, v in (calls[0] if len(calls) == 1 else ()) if g is not None]
    self.variables = [v for _, v in pairs]
    self._sparse_gradients = any(isinstance(g, tf.IndexedSlices) for g, _ in pairs)
    self.sparse_rows = [g.indices.shape[0] or 0 if isinstance(g, tf.IndexedSlices) else None for g, _ in pairs]
    reported = {self._parts.task.loss, 'training_loss', *(metric.name for metric in self._parts.metrics)}
    scalars = {}
    for name, value in logs.items():
      value = tf.convert_to_tensor(value) if isinstance(value, (int, float)) else value
      if name not in reported and step_plan.is_number(value):
        if name in run_files.LOOP_LOGS:
          owner = f'{type(self._parts.task).__name__}.train_step'
          raise ValueError(f'{owner} logs {name!r}, which is the name of a value that the loop logs; rename it.')
        scalars[name] = tf.cast(value, step_plan.dtype_of_log(value))
    self.log_dtypes = {name: scalars[name].dtype for name in sorted(scalars)}
    loss = tf.cast(logs[self._parts.task.loss], tf.float32)
    loss = loss if check is None else check.spoiled(loss)
    gradients = [g for g, _ in pairs]
    # DTensor has no layout for the operation that makes the indices of a sparse gradient unique.
    if self._config.runtime.mesh.sizes():
      gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return TaskOutput(loss=tf.reduce_mean(loss), logs=scalars, gradients=gradients)

  # As functions.

  def functions(self, plan: step_plan.StepPlan, choose: Callable[..., Any]) -> StepFunctions:
    """The functions of the step for a plan, after `probe`.

    Args:
      plan: how the step is run.
      choose: `(compiled, plain) -> function` is the compiled one, or takes the other for some shapes of inputs.
    """
    if plan.eager:
      return StepFunctions(self._forward_backward, self._whole_step)
    self._compile_clusters(plan.clusters)
    # In updates, replicas meet, as they may in the forward pass: then no separate function can contain them.
    owns_function = self._parts.single_trace and not self._merge_calls
    whole_step = tf.function(self._whole_step, autograph=False) if owns_function else self._whole_step
    forward_backward = self._traceable
    if plan.clusters:
      forward_backward, whole_step = self._function, _with_clusters(self._whole_step)
    if plan.execution == 'mesh':  # Not the trace of the probe: a mesh has operations and layouts that differ.
      forward_backward = self._forward_backward
    if plan.execution == 'split' and not plan.compiles_update:  # Else its execution compiles all passes of a step.
      compiled = tf.function(lambda *args: self._function(*args), jit_compile=True, autograph=False)
      forward_backward = choose(compiled, self._function)
    return StepFunctions(forward_backward, whole_step)

  def watched_functions(self, watch: Callable[[], contextlib.AbstractContextManager[None]]) -> StepFunctions:
    """The functions of a step that is traced again into the present graph, inside `watch()`, or run by Python."""

    def under_watch(function):
      def run(*args):
        with watch():
          return function(*args)

      return run

    return StepFunctions(under_watch(self._forward_backward), under_watch(self._whole_step))

  @property
  def _traceable(self) -> Callable[..., TaskOutput]:
    """The step up to its update: a separate function, or, if replicas meet in it, a part of the present graph."""
    return self._forward_backward if self._merge_calls else self._function

  def _compile_clusters(self, is_wanted: bool) -> None:
    """Makes `_function` compile clusters, or not: keeps a trace that suits."""
    if is_wanted != self._compiles_clusters and (self._has_clusters or self.input_specs is None):
      self._function = (
        _with_clusters(self._forward_backward) if is_wanted else tf.function(self._forward_backward, autograph=False)
      )
      self._compiles_clusters = is_wanted

  # Probing.

  def probe(
    self, next_inputs: Callable[[Any], object], iterator: tf.data.Iterator, compiles_clusters: bool = False
  ) -> step_plan.StepTraits:
    """Traces one step without running it. Cross-replica context.

    Args:
      next_inputs: the trainer's `next_train_inputs`.
      iterator: the training iterator, not consumed.
      compiles_clusters: whether to trace it as a plan with clusters needs it. A wrong guess costs another trace.

    Returns:
      The traits of the step, but for `xla_error`: see the method of that name.
    """
    self._compile_clusters(compiles_clusters)

    def of_replica(inputs):  # A function of Python's: a strategy would trace TensorFlow's for all replicas at once.
      self._traceable(inputs, tf.constant(0, tf.int64))

    def one_step(iterator):
      self._parts.strategy.run(of_replica, args=(next_inputs(iterator),))

    try:
      graph = tf.function(one_step, autograph=False).get_concrete_function(iterator).graph
    except RuntimeError as error:
      if 'merge_call' not in str(error):
        raise
      # Only the graph of the replicas' threads can contain a step in which they meet.
      self._merge_calls = True
      graph = tf.function(one_step, autograph=False).get_concrete_function(iterator).graph
    static_shapes, input_bytes = step_plan.input_traits(self.input_specs)
    return step_plan.StepTraits(
      num_updates=self._num_updates,
      num_other_updates=self._num_other_updates,
      convolutions=step_plan.has_convolutions(graph),
      bfloat16_products=step_plan.has_bfloat16_products(graph),
      clusters=self._has_clusters,
      num_weights=step_plan.num_weights(self._parts.model),
      merge_calls=self._merge_calls,
      static_shapes=static_shapes,
      sparse_gradients=self._sparse_gradients,
      input_bytes=input_bytes,
    )

  def xla_error(self) -> str:
    """Why XLA cannot turn the probed step into HLO; '' if it can. Runs nothing. Cross-replica context.

    It takes as long as the trace. Call it for a step in which no replicas meet. Unknown dimensions of its inputs are
    numbers: see `step_plan.static_specs`.
    """
    specs = step_plan.static_specs(self.input_specs)
    if specs is None:
      return 'an input is ragged, sparse or of unknown rank'
    found: list[str] = []
    self._compile_clusters(False)

    def of_replica():
      if not found:  # Only on the first replica.
        # A trace inside of XLA's would be another one. It is new only after a wrong guess of the probe.
        self._function.get_concrete_function(self.input_specs, tf.TensorSpec([], tf.int64))
        found.append(compiler_error(lambda inputs: self._function(inputs, tf.constant(0, tf.int64)), specs))

    tf.function(lambda: self._parts.strategy.run(of_replica), autograph=False).get_concrete_function()
    return found[0]


def compiler_error(function: Callable[[Any], object], specs: object) -> str:
  """Why XLA cannot turn a function into HLO; '' if it can. Runs nothing.

  Args:
    function: takes a structure of tensors.
    specs: the type specs of that structure.
  """
  flat = lambda *tensors: function(tf.nest.pack_sequence_as(specs, tensors, expand_composites=True))
  flat_specs = tf.nest.flatten(specs, expand_composites=True)
  compiled = tf.function(flat, jit_compile=True, autograph=False)
  try:
    with tf.init_scope():
      # XLA would print a stack trace of C++ for a resource that is no variable.
      graph = compiled.get_concrete_function(*flat_specs).graph
      if any(outer.dtype == tf.resource and not tf_internals.is_variable_handle(outer) for outer, _ in graph.captures):
        return 'it reads a lookup table, such as the vocabulary of a StringLookup layer'
      compiled.experimental_get_compiler_ir(*flat_specs)(stage='hlo')
  except (ValueError, TypeError, RuntimeError, tf.errors.OpError) as error:
    return compiler_message(error)
  return ''


def compiler_message(error: Exception) -> str:
  """XLA's message about a graph that it cannot compile, in one line of at most 200 characters."""
  text = ' '.join(str(error).split())
  start = max(0, text.find('Detected unsupported operations'))
  return text[start : start + 200] or type(error).__name__


def _with_clusters(function):
  """A separate function, in which parts of layers are compiled."""

  def run(*args):
    with clusters.compiled():
      return function(*args)

  return tf.function(run, autograph=False)


def _spec_of(value: object) -> Any:
  """The type spec of a tensor; None for anything else."""
  try:
    return tf.type_spec_from_value(value)
  except TypeError:
    return None
