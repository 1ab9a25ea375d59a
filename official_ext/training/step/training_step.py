"""The training step of a trainer, which is traced, planned, and then run as planned."""

from collections.abc import Callable, Sequence
import threading
from typing import Any

from absl import logging
import tensorflow as tf

from official_ext.data import batch_reader
from official_ext.training.config import definitions
from official_ext.training.devices import mesh as mesh_lib
from official_ext.training.step import gradient_tap
from official_ext.training.step import mesh_execution
from official_ext.training.step import step_plan
from official_ext.training.step import task_step as task_step_lib
from official_ext.training.step import updates

_MAX_NAMED = 8  # Shapes in the warning about compilations.

do_not_convert = tf.autograph.experimental.do_not_convert


class TrainingStep:
  """Traces a task's train_step, and runs it in the planned execution.

  Attributes:
    parts: the objects that it reads and writes.
    plan: how the step is run; None before `set_plan`.
    means: the means of the steps' logs; None before `set_plan`.
    input_shapes: the shapes that a compiled step has seen.
  """

  def __init__(self, parts: task_step_lib.StepParts, config: definitions.ExperimentConfig):
    """Initializes the step; it is not traced yet.

    Args:
      parts: the objects that it reads and writes.
      config: the experiment's.
    """
    self.parts = parts
    self._config = config
    self._task_step = task_step_lib.TaskStep(parts, config)
    self._execution: updates.Execution | None = None
    self._mesh_execution: mesh_execution.MeshExecution | None = None
    self.plan: step_plan.StepPlan | None = None
    self.means: task_step_lib.StepMeans | None = None
    self.input_shapes = InputShapes(parts.strategy)

  # Planning.

  def probe(
    self, next_inputs: Callable[[Any], object], iterator: tf.data.Iterator, compiles_clusters: bool = False
  ) -> step_plan.StepTraits:
    """Traces one step without running it: see `TaskStep.probe`."""
    return self._task_step.probe(next_inputs, iterator, compiles_clusters)

  @property
  def broadcasts(self) -> list[str]:
    """The shapes of labels and predictions that broadcast in the probed step: see `observers.noted_broadcasts`."""
    return self._task_step.broadcasts

  def xla_error(self) -> str:
    """Returns why XLA cannot compile the probed step: see `TaskStep.xla_error`."""
    return self._task_step.xla_error()

  def set_plan(
    self,
    plan: step_plan.StepPlan,
    traits: step_plan.StepTraits,
    in_memory: batch_reader.InMemoryBatches | None = None,
  ) -> None:
    """Fixes how the step is run and makes its parts, after `probe`.

    A fused update that XLA cannot compile, as some optimizers' for sparse gradients, is split off.

    Args:
      plan: how the step is run.
      traits: the results of `probe`.
      in_memory: computes the batches, if the plan gathers; unused otherwise.
    """
    with self.parts.strategy.scope():
      self._build_optimizer(plan)
    self.means = task_step_lib.StepMeans(self.parts, self._task_step.log_dtypes)
    if plan.execution == 'fused' and traits.sparse_gradients:
      xla_error = self._compiler_error(plan)
      plan = step_plan.without_compiled_update(plan, xla_error) if xla_error else plan
    self._execution = self._make_execution(plan, traits, in_memory)

  def _make_execution(self, plan, traits, in_memory) -> updates.Execution:
    """The execution of a plan; of another plan, if XLA cannot compile the update of each replica."""
    self.plan = plan
    num_micro_steps = self._config.trainer.gradient_accumulation_steps
    choose = self.input_shapes.choose
    if plan.jit_compile and not traits.static_shapes:
      self.input_shapes.start(plan.max_shapes, whole_steps=plan.execution == 'fused' or plan.compiles_update)
    if plan.execution != 'fused' and not plan.compiles_update:
      self._task_step.tap.on_cpu = False
    update = self._update(plan, self._task_step.functions(plan, choose))
    if plan.execution == 'fused':
      in_memory = in_memory if plan.gathers else None
      return updates.FusedExecution(update, plan, self.parts, num_micro_steps, choose, in_memory)
    if plan.execution == 'mesh':
      self._mesh_execution = self._make_mesh_execution(update)
      return self._mesh_execution
    if not plan.compiles_update:
      return updates.GraphExecution(update, self.parts)
    assert isinstance(update, updates.GuardedUpdate)
    compiles_passes = plan.execution == 'split'
    execution = updates.SplitExecution(
      update, self.parts, self._task_step.sparse_rows, num_micro_steps, choose, compiles_passes
    )
    xla_error = execution.update_error([self._task_step.input_specs] * num_micro_steps)
    if not xla_error:
      return execution
    return self._make_execution(step_plan.without_compiled_update(plan, xla_error), traits, in_memory)

  def _make_mesh_execution(self, update):
    mesh, sharding = self._config.runtime.mesh, self._config.trainer.sharding
    return mesh_execution.MeshExecution(update, self.parts, sharding, mesh_lib.Mesh(mesh.sizes()), mesh.batch_axis())

  def _build_optimizer(self, plan):
    optimizer = self.parts.optimizer
    if not plan.manual_optimization:
      gradient_tap.build_optimizer(optimizer, self._task_step.variables)
    elif gradient_tap.has_logs(optimizer):
      gradient_tap.build_optimizer(optimizer, self.parts.model.trainable_variables)

  def _update(self, plan, functions) -> updates.Update:
    assert self.means is not None
    if plan.manual_optimization:
      return updates.ManualUpdate(self.parts, functions, self.means)
    return updates.GuardedUpdate(self.parts, self._config.trainer.loss_spike, self._task_step, functions, self.means)

  def _compiler_error(self, plan) -> str:
    """Why XLA cannot compile a whole step; '' if it can, or if its inputs do not show it. Runs nothing."""
    update = self._update(plan, self._task_step.functions(plan, self.input_shapes.choose))
    inputs = step_plan.static_specs(self._task_step.input_specs)
    if inputs is None:
      return ''
    specs = [inputs] * self._config.trainer.gradient_accumulation_steps
    found: list[str] = []
    of_replica = lambda: found.append(task_step_lib.compiler_error(update.run_in_xla, specs))
    tf.function(lambda: self.parts.strategy.run(of_replica), autograph=False).get_concrete_function()
    return found[0]

  # Running.

  @do_not_convert
  def run(self, batches: Sequence[Sequence[object]]) -> None:
    """Runs steps: one, or `plan.steps_per_execution` in one program. Cross-replica context.

    Args:
      batches: for each step its `gradient_accumulation_steps` micro-batches.
    """
    assert self._execution is not None
    for micro_batches in batches:  # One step, if shapes vary.
      self.input_shapes.note(micro_batches)
    self._execution.run(batches)

  def on_mesh(self) -> mesh_execution.MeshExecution:
    """The execution of a plan for a mesh: steps are run by `run`, inside its `running`."""
    assert self._mesh_execution is not None
    return self._mesh_execution

  def try_on_mesh(self, batch_size: int) -> None:
    """Refuses a step that the mesh cannot run: see `MeshExecution.try_step`."""
    self.on_mesh().try_step(self._task_step.input_specs, self._config.trainer.gradient_accumulation_steps, batch_size)

  @do_not_convert
  def run_gathering(self, first_batch: tf.Tensor, num_steps: tf.Tensor) -> None:
    """Runs steps in one program: see `updates.FusedExecution.run_gathering`."""
    assert isinstance(self._execution, updates.FusedExecution)
    self._execution.run_gathering(first_batch, num_steps)

  @do_not_convert
  def rehearse(self, micro_batches: Sequence[object], new_view: Callable[[], object]) -> Any:
    """Makes one update, neither guarded nor compiled, and observes it. Cross-replica context.

    Args:
      micro_batches: of the step.
      new_view: makes an observer of one replica: its context `watch()` surrounds the task's step; its `of_update` is
        called with the weights, their values before the update, the loss, and the gradients, summed over the
        replicas, or None if the task owns its updates.

    Returns:
      The result of `of_update` on the first replica: a structure of tensors.
    """
    assert self.plan is not None
    local = threading.local()  # Replicas that meet in the forward pass run in separate threads.
    update = self._update(self.plan, self._task_step.watched_functions(lambda: local.view.watch()))

    def of_replica(*micro_batches):
      local.view = new_view()
      seen = update.watched(micro_batches)
      return local.view.of_update(update.variables, seen.before, seen.loss, seen.gradients)

    outputs = self.parts.strategy.run(of_replica, args=tuple(micro_batches))
    return tf.nest.map_structure(lambda output: self.parts.strategy.experimental_local_results(output)[0], outputs)


class InputShapes:
  """The shapes of a step's inputs: counts the programs that XLA makes of the step, one for each, and limits them."""

  def __init__(self, strategy: tf.distribute.Strategy):
    """Initializes it; nothing is counted before `start`."""
    self._strategy = strategy
    self._max_shapes, self._whole_steps = 0, False
    self._seen: tf.lookup.experimental.MutableHashTable | None = None  # Shapes -> whether they are compiled, 0 or 1.
    self._is_compiled: tf.Tensor | None = None  # Of the step that is traced.
    self._is_reported = False  # That there are more shapes.
    self.num_compilations = 1

  def start(self, max_shapes: int, whole_steps: bool) -> None:
    """Starts to count. A step whose shapes are fixed does not need it.

    Args:
      max_shapes: see `StepPlan`.
      whole_steps: whether a program takes all micro-batches of a step, or one of them.
    """
    self._max_shapes, self._whole_steps = max_shapes, whole_steps
    with self._strategy.scope():
      self._seen = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)

  def note(self, micro_batches: Sequence[object]) -> None:
    """Remembers the shapes of a step's inputs. Cross-replica context, in a graph or outside."""
    if self._seen is None:
      return
    are_compiled = []
    for inputs in [micro_batches] if self._whole_steps else micro_batches:
      parts = [self._strategy.experimental_local_results(part) for part in tf.nest.flatten(inputs)]
      for replica in range(max(map(len, parts))):
        # A part that is not distributed is the same for all replicas.
        shapes = _text_of_shapes([values[min(replica, len(values) - 1)] for values in parts])
        with tf.device('CPU:0'):  # As the table, or a condition would wait for the device.
          known, count = self._seen.lookup(shapes), self._seen.size()
          is_compiled = tf.equal(known, 1) | (tf.less(known, 0) & ((count < self._max_shapes) | (not self._max_shapes)))
          self._seen.insert(shapes, tf.cast(is_compiled, tf.int64))
        are_compiled.append(is_compiled)
    with tf.device('CPU:0'):
      self._is_compiled = tf.reduce_all(are_compiled)

  def choose(self, compiled: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs `compiled`, but `plain` in a step that has a shape beyond the limit; both compute the same.

    All replicas of this process choose alike, in the order of steps: the limit is met at the same step in each run.
    """
    if not self._max_shapes:
      return compiled
    return lambda *args: tf.cond(self._is_compiled, lambda: compiled(*args), lambda: plain(*args))

  def count(self, max_silent_recompilations: int) -> None:
    """Counts again, and warns of shapes that are new: each compiled too often, or any that is not compiled."""
    if self._seen is None:
      return
    compiled, others = self._shapes(1), self._shapes(0)
    before, self.num_compilations = self.num_compilations, max(1, len(compiled))
    if others and not self._is_reported:
      self._is_reported = True
      logging.warning(
        'task.train_data: batches have more than %d shapes, and XLA compiles the training step for the first ones, not '
        'for %s; pad them to a few lengths (bucket_by_sequence_length with pad_to_bucket_boundary=True)',
        self._max_shapes,
        ', '.join(others[:_MAX_NAMED]),
      )
    elif not self._max_shapes and self.num_compilations > max(before, max_silent_recompilations):
      logging.warning(
        'The training step was compiled %d times, because the shapes of its inputs vary: %s. Pad them to one shape '
        '(drop_remainder, padded_batch), or set runtime.enable_xla=false.',
        self.num_compilations,
        ', '.join(compiled[:_MAX_NAMED]),
      )

  def _shapes(self, value: int) -> list[str]:
    """The shapes seen so far that are compiled (1) or not (0), one string for each combination."""
    assert self._seen is not None
    keys, values = (part.numpy() for part in self._seen.export())
    return sorted(key.decode() for key, each in zip(keys, values) if each == value)


def _text_of_shapes(inputs):
  """The shapes of a structure of tensors, such as '(8, 128) (8)'."""
  return tf.strings.reduce_join(
    [
      tf.strings.join(['(', tf.strings.reduce_join(tf.strings.as_string(tf.shape(part)), separator=', '), ')'])
      for part in tf.nest.flatten(inputs, expand_composites=True)
    ],
    separator=' ',
  )
