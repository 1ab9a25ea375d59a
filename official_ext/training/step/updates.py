"""Makes one update, and executes it: in the graph, fused, or partly compiled by XLA.

The order is a contract, and the same in every execution: forward and backward, accumulate, all-reduce, test for finite,
clip, apply. A step is one update: it takes `gradient_accumulation_steps` micro-batches and applies their mean once,
over all replicas, weighted by `Task.micro_batch_weight`, or by their numbers of examples if these vary.

A step whose loss or reduced gradient is not finite, or whose loss is a spike if that rule is on, changes nothing but
`global_step`: weights, slots, `optimizer.iterations`, the model's own state (batch normalisation) and the metrics are
unchanged, on all replicas.

| execution | compiled by XLA | update |
|---|---|---|
| fused | the whole step, several of them in one program | in the program: see `GuardedUpdate.run_in_xla` |
| split | forward and backward, on each replica | in a program of each replica: see `SplitExecution` |
| plain | nothing (on TPU the strategy compiles) | in the graph; under a condition; of GPUs' replicas as in split |

An update that XLA cannot compile is in the graph in a split execution too. If the shapes of inputs vary, fused and
split executions compile a program for each. Beyond `StepPlan.max_shapes` their forward and backward passes are plain.
"""

from collections.abc import Callable, Sequence
import contextlib
import math
from typing import Any, NamedTuple, Protocol

import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals
from official_ext.data import batch_axes
from official_ext.data import batch_reader
from official_ext.training.config import definitions
from official_ext.training.model_parts import model_size
from official_ext.training.step import gradient_tap
from official_ext.training.step import step_plan
from official_ext.training.step import task_step as task_step_lib

do_not_convert = tf.autograph.experimental.do_not_convert


class Passes(NamedTuple):
  """The results of a replica's forward and backward passes, before the sum over the replicas.

  Attributes:
    gradients: of the replica's part of the loss, over all micro-batches; tensors and IndexedSlices. Summed, they are
      the gradients of the update, but for the division by `shares[2]`.
    shares: float32 vector, whose sum over the replicas is: the number of losses that are not finite; the mean loss;
      with weights, the sum of the weights, by which loss and gradients are divided.
    loss: float32 scalar, this replica's mean over its micro-batches; with weights its sum.
    logs: as in `StepOutput`.
    before: as in `StepOutput`.
  """

  gradients: list[Any]
  shares: tf.Tensor
  loss: tf.Tensor
  logs: dict[str, tf.Tensor]
  before: list[tf.Tensor]


class StepOutput(NamedTuple):
  """The results of a step's forward and backward passes on one replica, before the update.

  Attributes:
    ok: bool scalar, the same on all replicas: whether to make the update.
    gradients: of the loss over all replicas and micro-batches; tensors and IndexedSlices free of duplicates.
    norm: float32 scalar, the global norm of `gradients`.
    loss: float32 scalar, this replica's mean over its micro-batches; with weights `mean_loss`.
    mean_loss: float32 scalar, the mean over the micro-batches of all replicas.
    logs: scalars that the task logs, this replica's: see `TaskOutput`.
    before: the values of `GuardedUpdate.step_local_variables` before the passes.
  """

  ok: tf.Tensor
  gradients: list[Any]
  norm: tf.Tensor
  loss: tf.Tensor
  mean_loss: tf.Tensor
  logs: dict[str, tf.Tensor]
  before: list[tf.Tensor]


class WatchedUpdate(NamedTuple):
  """The view of an observer of an update, on one replica.

  Attributes:
    before: the values of the update's `variables` before it.
    loss: float32 scalar.
    gradients: as in `StepOutput`; None if the task owns its updates.
  """

  before: list[tf.Tensor]
  loss: tf.Tensor
  gradients: list[Any] | None


class GuardedUpdate:
  """The update for a task that leaves it to the trainer. Replica context, unless noted at a method.

  Attributes:
    variables: the variables that the gradients belong to.
  """

  def __init__(
    self,
    parts: task_step_lib.StepParts,
    loss_spike: definitions.LossSpikeConfig,
    task_step: task_step_lib.TaskStep,
    functions: task_step_lib.StepFunctions,
    means: task_step_lib.StepMeans,
  ):
    """Makes it.

    Args:
      parts: the step's.
      loss_spike: `trainer.loss_spike`.
      task_step: the task's step, which has been probed.
      functions: the functions of the task's step.
      means: the means of the logs.
    """
    self._parts = parts
    self._single_trace = parts.single_trace
    self._loss_spike = loss_spike
    self._tap = task_step.tap
    self.variables = task_step.variables
    self._forward_backward = functions.forward_backward
    self._means = means

  @property
  def guarded_variables(self) -> list[tf.Variable]:
    """All variables that a step writes, except its own counters."""
    variables = [
      *self.variables,
      *gradient_tap.variables_of(self._parts.optimizer),
      *self.step_local_variables,
      *self._means.variables,
    ]
    return list({id(variable): variable for variable in variables}.values())

  @property
  def step_local_variables(self) -> list[tf.Variable]:
    """Variables that a forward pass may write: metrics and the model's own state, not frozen weights."""
    variables = [variable for metric in self._parts.metrics for variable in tf_internals.variables_of(metric)]
    model = self._parts.model
    variables += [v for v in tf_internals.variables_of(model) if not v.trainable]
    # A constant that a program in XLA writes, even unchanged, is an output of it: a second copy in memory.
    constants = model_size.constants(model) if isinstance(model, tf.Module) else []
    constant_ids = {id(variable) for variable in constants}
    return list({id(v): v for v in variables if id(v) not in constant_ids}.values())

  def reduced_gradients(self, *micro_batches: object, in_xla: bool = False) -> StepOutput:
    """Runs forward and backward on every micro-batch, accumulates, and sums over the replicas.

    Args:
      *micro_batches: of one step.
      in_xla: whether XLA compiles all of this.
    """
    passes = self.passes(micro_batches)
    gradients, shares = passes.gradients, passes.shares
    if self._parts.strategy.num_replicas_in_sync > 1:
      *gradients, shares = sum_over_replicas([*gradients, shares])
    return self.output(passes, [gradient_tap.without_duplicates(g, in_xla) for g in gradients], shares)

  def passes(self, micro_batches: Sequence[object]) -> Passes:
    """Runs forward and backward on every micro-batch, and accumulates."""
    before = [variable.read_value() for variable in self.step_local_variables]
    weights = self._weights(micro_batches)
    outputs, gradients = self._accumulated(micro_batches, weights)
    logs = {name: tf.add_n([o.logs[name] for o in outputs]) / len(outputs) for name in outputs[0].logs}
    losses = [output.loss for output in outputs]
    if weights is None:
      if len(outputs) > 1:
        gradients = [gradient_tap.scale(g, 1 / len(outputs)) for g in gradients]
      loss = tf.add_n(losses) / len(outputs)
      shares = [loss / self._parts.strategy.num_replicas_in_sync]
    else:
      loss = tf.add_n([weight * each for weight, each in zip(weights, losses)])
      shares = [loss, tf.add_n(weights)]
    num_bad_losses = 1.0 - tf.cast(tf.math.is_finite(loss), tf.float32)
    return Passes(gradients, tf.stack([num_bad_losses, *shares]), loss, logs, before)

  def output(
    self, passes: Passes, gradients: list[Any], shares: tf.Tensor, packed: Sequence[tf.Tensor] = ()
  ) -> StepOutput:
    """The inputs of the update.

    Args:
      passes: of this replica.
      gradients: `passes.gradients`, summed over the replicas, without duplicates.
      shares: `passes.shares`, summed over the replicas.
      packed: vectors of all numbers of `gradients`, if there are such: the norm then reads few tensors.
    """
    num_bad_losses, mean_loss, *total = tf.unstack(shares)
    loss, scale = passes.loss, tf.constant(1.0)
    if total:
      inverse = tf.math.divide_no_nan(1.0, total[0])  # The gradients are of losses over the number of replicas.
      scale = inverse * self._parts.strategy.num_replicas_in_sync
      gradients = [gradient_tap.scale(g, scale) for g in gradients]
      loss = mean_loss = mean_loss * inverse
    if packed:
      norm = gradient_tap.global_norm(packed, self._tap.on_cpu) * scale
    else:
      norm = gradient_tap.global_norm(gradients, self._tap.on_cpu)
    ok = self._is_ok(norm, num_bad_losses, mean_loss)
    return StepOutput(ok, gradients, norm, loss, mean_loss, passes.logs, passes.before)

  def _weights(self, micro_batches):
    """The weight of each micro-batch; None if all count the same, as the only one of an update does."""
    weight_of = self._parts.task.micro_batch_weight  # None: of a task that derives from Model Garden's alone.
    if weight_of is None or (len(micro_batches) == 1 and self._parts.strategy.num_replicas_in_sync == 1):
      return None
    weights = [weight_of(inputs) for inputs in micro_batches]
    if weights[0] is None:
      weights = [_varying_num_examples(inputs) for inputs in micro_batches]
    return None if weights[0] is None else [tf.cast(weight, tf.float32) for weight in weights]

  def _accumulated(self, micro_batches, weights):
    """The outputs of all micro-batches, and the sum of their gradients, times their weights."""
    outputs: list[Any] = []
    gradients: list[Any] = []
    for i, inputs in enumerate(micro_batches):
      # One after the other: a graph may run them at the same time, and keep the activations of all.
      # Waiting for a function's own output would be waiting for its side effects alone.
      with tf.control_dependencies([tf.identity(g) for g in tf.nest.flatten(gradients, expand_composites=True)]):
        inputs = tf.nest.map_structure(tf.identity, inputs, expand_composites=True) if i else inputs
      output = self._forward_backward(inputs, tf.constant(i, tf.int64))
      found = [gradient_tap.with_shape_of(v, g) for v, g in zip(self.variables, output.gradients)]
      if weights is not None:
        found = [gradient_tap.scale(g, weights[i]) for g in found]
      gradients = [gradient_tap.accumulate(t, g) for t, g in zip(gradients, found)] if i else found
      outputs.append(output)
    return outputs, gradients

  def _is_ok(self, norm, num_bad_losses, mean_loss):
    # The norm is finite only if every gradient is; a norm that overflows could be neither clipped nor squared.
    ok = tf.logical_and(
      tf.equal(num_bad_losses, 0.0), tf.logical_or(tf.math.is_finite(norm), self._loss_scaling_handles_overflow())
    )
    spike = self._loss_spike
    if spike.factor:
      ok = tf.logical_and(ok, tf.logical_not(self._parts.state.is_spike(mean_loss, spike.factor, spike.window)))
    return ok

  def _loss_scaling_handles_overflow(self):
    """Whether an infinite gradient only means that the dynamic loss scale is too high: bool."""
    optimizer = self._parts.optimizer
    if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer) and optimizer.dynamic:
      return tf.convert_to_tensor(optimizer.loss_scale) > 1.0  # It never falls below 1.
    return tf.constant(False)

  def commit(self, out: StepOutput) -> None:
    """Clips, applies, and counts."""
    self.apply(out)
    self._means.update(out.loss, out.logs, out.norm)

  def apply(self, out: StepOutput) -> None:
    """Clips and applies the gradients."""
    self._tap.apply_reduced(out.gradients, self.variables, out.norm)

  def watched(self, micro_batches: Sequence[object]) -> WatchedUpdate:
    """The update, neither guarded nor counted."""
    out = self.reduced_gradients(*micro_batches)
    before = [variable.read_value() for variable in self.variables]
    self.apply(out)
    return WatchedUpdate(before, out.loss, out.gradients)

  def undo_passes(self, out: StepOutput) -> None:
    """Restores the variables that the forward passes have written."""
    for variable, value in zip(self.step_local_variables, out.before):
      _assign_here(variable, value)

  def note_skipped_loss(self, out: StepOutput) -> None:
    """Counts the loss of a step that is skipped."""
    self._means.note_skipped_loss(out.loss, out.ok)

  def record_skip(self, ok: tf.Tensor) -> None:
    """Counts a step if it is skipped, before `global_step` increases."""
    self._parts.state.record_skip(ok, self._parts.global_step + 1)

  def record_loss(self, ok: tf.Tensor, mean_loss: tf.Tensor) -> None:
    """Notes the loss of a step that is not skipped, for the rule about spikes."""
    if self._loss_spike.factor:
      self._parts.state.record_loss(mean_loss, ok)

  # A whole step.

  @do_not_convert
  def run(self, micro_batches: Sequence[object]) -> None:
    """Makes the update under a condition: each replica under its own, which has the same value on all of them."""
    out = self.reduced_gradients(*micro_batches)

    def commit():
      self.commit(out)
      return 0

    def undo():
      self.undo_passes(out)
      self.note_skipped_loss(out)
      self.record_skip(out.ok)
      return 0

    with self.updates_here():
      tf.cond(out.ok, commit, undo)
      self.record_loss(out.ok, out.mean_loss)
      self._parts.global_step.assign_add(1)

  def updates_here(self) -> contextlib.AbstractContextManager[None]:
    """A context, after the sum over the replicas, in which each of them updates its part of all variables."""
    return contextlib.nullcontext() if self._single_trace else tf_internals.updates_here(self._parts.strategy)

  @do_not_convert
  def run_in_xla(self, micro_batches: Sequence[object]) -> None:
    """Makes the update, guarded without a condition around it, for which XLA would copy weights and slots."""
    self.finish_in_xla(self.reduced_gradients(*micro_batches, in_xla=True))

  def finish_in_xla(self, out: StepOutput) -> None:
    """Makes the guarded update, and counts the step."""
    if self._tap.on_cpu:
      self._commit_in_loop(out)
    else:
      self._commit_and_select(out)
    self.note_skipped_loss(out)
    self.record_skip(out.ok)
    self.record_loss(out.ok, out.mean_loss)
    self._parts.global_step.assign_add(1)

  def _commit_in_loop(self, out):
    """Commits in a loop of one round or none, which writes in place, as no condition does."""

    def commit(pending):
      del pending
      self.commit(out)
      return [tf.constant(False)]

    tf.while_loop(lambda pending: pending, commit, [out.ok])
    for variable, value in zip(self.step_local_variables, out.before):  # Passes are never in the loop.
      _assign_here(variable, tf.where(out.ok, variable.read_value(), value))

  def _commit_and_select(self, out):
    """Commits, and undoes it by a select that becomes part of the writes. A GPU would wait for a loop's condition."""
    before = {id(variable): (variable, variable.read_value()) for variable in self.guarded_variables}
    before.update({id(variable): (variable, value) for variable, value in zip(self.step_local_variables, out.before)})
    self.commit(out)
    for variable, value in before.values():
      _assign_here(variable, tf.where(out.ok, variable.read_value(), value))


def _assign_here(variable, value):
  """Assigns to this replica's part of a variable, whose aggregation would be another meeting of the replicas."""
  tf_internals.part_here(variable).assign(value)


def sum_over_replicas(values: Sequence[Any]) -> list[Any]:
  """The sums of tensors and IndexedSlices over the replicas. Replica context."""
  sums: dict[int, Any] = {}
  for dtype in dict.fromkeys(value.dtype for value in values):  # TensorFlow packs all that it is given into one vector.
    places = [place for place, value in enumerate(values) if value.dtype == dtype]
    context = tf.distribute.get_replica_context()
    sums |= zip(places, context.all_reduce(tf.distribute.ReduceOp.SUM, [values[place] for place in places]))
  return [sums[place] for place in range(len(values))]


class ManualUpdate:
  """The step of a task that owns its updates: gradients are applied as the task applies them, none is skipped."""

  def __init__(
    self,
    parts: task_step_lib.StepParts,
    functions: task_step_lib.StepFunctions,
    means: task_step_lib.StepMeans,
  ):
    """Makes it: see `GuardedUpdate`."""
    self._parts = parts
    self._whole_step = functions.whole_step
    self._means = means

  @property
  def variables(self) -> list[tf.Variable]:
    """The variables that may be updated."""
    return self._parts.model.trainable_variables

  def make(self, inputs: object) -> task_step_lib.TaskOutput:
    """Runs the task's step with its updates, on one batch. Replica context."""
    out = self._whole_step(inputs)
    self._means.update(out.loss, out.logs)
    return out

  def watched(self, micro_batches: Sequence[object]) -> WatchedUpdate:
    """The task's step with its updates, on its one batch. Replica context."""
    before = [variable.read_value() for variable in self.variables]
    return WatchedUpdate(before, self.make(micro_batches[0]).loss, None)

  @do_not_convert
  def run(self, micro_batches: Sequence[object]) -> None:
    """Runs a whole step, on one micro-batch."""
    self.make(micro_batches[0])
    self._parts.global_step.assign_add(1)

  run_in_xla = run


def _varying_num_examples(inputs):
  """The number of examples in a micro-batch: float32 scalar; None if all of them have the same."""
  axes = batch_axes.of_spec(inputs)
  varies = any(
    isinstance(part, tf.Tensor) and part.shape.rank and part.shape[0] is None for part in tf.nest.flatten(inputs)
  )
  if axes is None or not varies:
    return None
  return tf.where(axes.agree(inputs), axes.num_examples(inputs), 1.0)


Update = GuardedUpdate | ManualUpdate


class Execution(Protocol):
  """Runs steps. Cross-replica context."""

  def run(self, batches: Sequence[Sequence[object]]) -> None:
    """Runs one step for each element, which has the micro-batches of the step."""


class GraphExecution:
  """Plain and split: the update is in TensorFlow's graph, one step after the other.

  The two differ in the calls of `update`: see `TaskStep.functions`.
  """

  def __init__(self, update: Update, parts: task_step_lib.StepParts):
    """Initializes the execution.

    Args:
      update: of a step.
      parts: the step's.
    """
    self._update = update
    self._strategy = parts.strategy

  @do_not_convert
  def run(self, batches: Sequence[Sequence[object]]) -> None:
    """See `Execution`."""
    for micro_batches in batches:
      self._strategy.run(self._update.run, args=(list(micro_batches),))


class SplitExecution:
  """Runs a step by two programs on each replica: the passes; the guarded update, which XLA compiles.

  Between them the replicas sum one vector of each dtype, which holds all gradients. In a graph, some 40 operations of
  each weight would be started one by one, and a condition would wait for the device in every step.
  """

  def __init__(
    self,
    update: GuardedUpdate,
    parts: task_step_lib.StepParts,
    sparse_rows: Sequence[int | None],
    num_micro_steps: int,
    choose: Callable[..., Any],
    compiles_passes: bool,
  ):
    """Makes the programs; each is compiled when it first runs.

    Args:
      update: of a step.
      parts: the step's.
      sparse_rows: see `TaskStep`.
      num_micro_steps: micro-batches of one step.
      choose: see `TaskStep.functions`.
      compiles_passes: whether XLA compiles the passes. If not, replicas may meet in them.
    """
    self._update = update
    self._strategy = parts.strategy
    rows = [None if number is None else number * num_micro_steps for number in sparse_rows]
    self._packing = _Packing(update.variables, rows, parts.strategy.num_replicas_in_sync)
    self._traced_passes: Callable[..., Any] = self._packed_passes
    if compiles_passes:
      self._traced_passes = tf.function(self._packed_passes, jit_compile=True, autograph=False)
    self._passes = choose(self._traced_passes, self._packed_passes)
    self._finish = tf.function(self._finish_step, jit_compile=True, autograph=False)

  @do_not_convert
  def run(self, batches: Sequence[Sequence[object]]) -> None:
    """See `Execution`."""
    for micro_batches in batches:
      self._strategy.run(self._on_replica, args=(list(micro_batches),))

  @do_not_convert
  def _on_replica(self, micro_batches):
    packed, passes = self._passes(micro_batches)
    self._finish(sum_over_replicas(packed), passes)

  def update_error(self, input_specs: Sequence[object]) -> str:
    """Why XLA cannot compile the update; '' if it can. See `before_update`."""
    finish = lambda arguments: self._finish_step(*arguments)
    return self.before_update(input_specs, lambda specs: task_step_lib.compiler_error(finish, specs))

  def before_update(self, input_specs: Sequence[object], inspect: Callable[[Any], Any]) -> Any:
    """Traces the passes, and returns the result of `inspect`. Runs nothing. Cross-replica context.

    Args:
      input_specs: type specs of the micro-batches of one replica.
      inspect: called on the first replica with the type specs of the update's arguments.
    """
    found: list[Any] = []

    def on_replica(*micro_batches):
      arguments = self._traced_passes(list(micro_batches))
      if not found:  # Only on the first replica.
        found.append(inspect(tf.nest.map_structure(tf.type_spec_from_value, arguments)))

    run = lambda *micro_batches: self._strategy.run(on_replica, args=micro_batches)
    tf.function(run, autograph=False).get_concrete_function(*input_specs)
    return found[0]

  def _packed_passes(self, micro_batches):
    """(the values to sum; the other results) of a replica's passes."""
    passes = self._update.passes(micro_batches)
    return self._packing.pack(passes.gradients, passes.shares), passes._replace(gradients=[], shares=())

  def _finish_step(self, summed, passes):
    gradients, shares, dense = self._packing.unpack(summed)
    with self._update.updates_here():
      self._update.finish_in_xla(self._update.output(passes, gradients, shares, dense))


class _Packing:
  """Packs the gradients of a step, on each replica, into one vector of each dtype, to sum.

  A sparse gradient stays one, because some optimizers leave the slots of other rows. Its rows have a place for each
  replica, in which the others have zeros; or all rows of the variable are summed, if these are fewer, each with a mark.
  """

  def __init__(self, variables: Sequence[tf.Variable], sparse_rows: Sequence[int | None], num_replicas: int):
    """Makes it.

    Args:
      variables: of the gradients.
      sparse_rows: for each, the rows of its sparse gradient, 0 if their number is not known; None if it is dense.
      num_replicas: the replicas.
    """
    self._variables = list(variables)
    self._num_replicas = num_replicas
    fewer = lambda v, rows: rows if v.dtype == tf.float32 and rows * num_replicas < v.shape[0] else 0
    self._rows = [None if rows is None else fewer(v, rows) for v, rows in zip(variables, sparse_rows, strict=True)]
    self._dtypes = [tf.float32, *dict.fromkeys(v.dtype for v in variables if v.dtype != tf.float32)]

  def pack(self, gradients: Sequence[Any], shares: tf.Tensor) -> list[tf.Tensor]:
    """The vectors of a replica's gradients and `shares`, a float32 vector."""
    vectors: dict[tf.DType, list[tf.Tensor]] = {dtype: [] for dtype in self._dtypes}
    for variable, gradient, rows in zip(self._variables, gradients, self._rows, strict=True):
      if rows is None:
        vector = tf.convert_to_tensor(gradient)
      else:
        vector = self._placed_rows(gradient) if rows else self._marked_rows(gradient, variable)
      vectors[variable.dtype].append(tf.reshape(vector, [-1]))
    vectors[tf.float32].append(shares)
    return [tf.concat(parts, 0) for parts in vectors.values()]

  def _placed_rows(self, gradient):
    """float32 [num_replicas, rows, numbers of a row + 2]: indices have two columns, whose sums are exact."""
    indices = tf.cast(gradient.indices, tf.int64)
    columns = tf.cast(tf.stack([indices // 2**16, indices % 2**16], 1), tf.float32)
    block = tf.concat([tf.reshape(gradient.values, [tf.size(indices), -1]), columns], 1)
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    is_here = tf.equal(tf.range(self._num_replicas), replica)
    return tf.where(is_here[:, tf.newaxis, tf.newaxis], block, 0.0)

  def _marked_rows(self, gradient, variable):
    """[rows of the variable, numbers of a row + 1]: the mark is above 0 if the gradient has the row."""
    num_rows = variable.shape[0]
    values = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, num_rows)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(gradient.indices, tf.float32), gradient.indices, num_rows)
    marks = tf.cast(counts > 0, values.dtype)
    return tf.concat([tf.reshape(values, [num_rows, -1]), marks[:, tf.newaxis]], 1)

  def unpack(self, summed: Sequence[tf.Tensor]) -> tuple[list[Any], tf.Tensor, list[tf.Tensor]]:
    """(gradients without duplicates; shares; vectors of all numbers of the gradients, [] if some are sparse)."""
    vectors, starts = dict(zip(self._dtypes, summed, strict=True)), dict.fromkeys(self._dtypes, 0)

    def take(variable, shape):
      dtype, start = variable.dtype, starts[variable.dtype]
      starts[dtype] += math.prod(shape)
      return tf.reshape(vectors[dtype][start : starts[dtype]], shape)

    gradients: list[Any] = []
    for variable, rows in zip(self._variables, self._rows):
      if rows is None:
        gradients.append(take(variable, variable.shape))
        continue
      num_rows, *row_shape = variable.shape.as_list()
      width = math.prod(row_shape)
      if rows:
        placed = take(variable, [rows * self._num_replicas, width + 2])
        high, low = (tf.cast(placed[:, column], tf.int64) for column in (-2, -1))
        indices = high * 2**16 + low
      else:
        placed = take(variable, [num_rows, width + 1])
        indices = tf.where(placed[:, -1] > 0, tf.range(num_rows, dtype=tf.int64), num_rows)  # A scatter ignores that.
      values = tf.reshape(placed[:, :width], [placed.shape[0], *row_shape])
      gradient = tf.IndexedSlices(values, indices, tf.constant([num_rows, *row_shape], tf.int32))
      gradients.append(gradient_tap.without_duplicates(gradient, in_xla=True) if rows else gradient)
    shares = vectors[tf.float32][starts[tf.float32] :]
    are_dense = all(rows is None for rows in self._rows)
    return gradients, shares, [vectors[dtype][:end] for dtype, end in starts.items() if end] if are_dense else []


class FusedExecution:
  """Runs whole steps in one XLA program, on one replica.

  The program has one step, or a loop: over `plan.steps_per_execution` batches that are stacked, or over any number of
  batches that it gathers by itself. How many are run does not change the result of one of them.
  """

  def __init__(
    self,
    update: Update,
    plan: step_plan.StepPlan,
    parts: task_step_lib.StepParts,
    num_micro_steps: int,
    choose: Callable[..., Any],
    in_memory: batch_reader.InMemoryBatches | None = None,
  ):
    """Makes the programs; each is compiled when it first runs.

    Args:
      update: of a step.
      plan: how many steps a program has, and whether they are unrolled.
      parts: the step's.
      num_micro_steps: micro-batches of one step.
      choose: see `TaskStep.functions`.
      in_memory: computes the batches, if the plan gathers.
    """
    self._update = update
    self._plan = plan
    self._in_memory = in_memory
    self._num_micro_steps = num_micro_steps
    self._strategy = parts.strategy
    compiled = lambda function: tf.function(function, jit_compile=True, autograph=False)
    self._one = choose(compiled(update.run_in_xla), update.run)
    self._many = compiled(self._run_steps)

  @do_not_convert
  def run(self, batches: Sequence[Sequence[object]]) -> None:
    """See `Execution`. `batches` has one or `plan.steps_per_execution` steps."""
    if len(batches) == 1:
      self._strategy.run(self._one, args=(list(batches[0]),))
      return
    flat = [micro_batch for micro_batches in batches for micro_batch in micro_batches]
    stacked = tf.nest.map_structure(lambda *tensors: tf.stack(tensors), *flat)
    self._strategy.run(self._many, args=(stacked,))

  @do_not_convert
  def run_gathering(self, first_batch: tf.Tensor, num_steps: tf.Tensor) -> None:
    """Runs steps that gather their batches. Cross-replica context.

    Args:
      first_batch: int64 scalar, the number of the batch with which they begin.
      num_steps: int32 scalar, at most `plan.steps_per_execution`.
    """
    self._strategy.run(self._many, args=(first_batch, num_steps))

  def _run_steps(self, inputs, num_steps=None):
    """Runs steps on micro-batches stacked, or `num_steps` steps from a number on. Replica context.

    The number of stacked ones is a constant: XLA waits for the device in each round of a loop of unknown length.
    """
    micro_steps = self._num_micro_steps
    num_steps = self._plan.steps_per_execution if num_steps is None else num_steps
    gather = lambda part: part
    if self._in_memory is not None:
      gather = self._in_memory.gather
      inputs = self._in_memory.indices(inputs + tf.range(self._plan.steps_per_execution * micro_steps, dtype=tf.int64))

    def body(step):
      parts = [
        tf.nest.map_structure(lambda tensor, i=i: tensor[step * micro_steps + i], inputs) for i in range(micro_steps)
      ]
      self._update.run_in_xla([gather(part) for part in parts])
      return [step + 1]

    if self._plan.unroll:
      for step in range(self._plan.steps_per_execution):
        body(step)
    else:
      tf.while_loop(lambda step: step < num_steps, body, [tf.constant(0)])
