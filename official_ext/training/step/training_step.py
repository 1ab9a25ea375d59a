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
    if plan.execution == 'fused' and traits.sparse_gradients and traits.static_shapes:
      xla_error = self._compiler_error(plan)
      plan = step_plan.without_compiled_update(plan, xla_error) if xla_error else plan
    self.plan = plan
    if plan.execution != 'fused' and not plan.compiles_update:
      self._task_step.tap.on_cpu = False
    update = self._update(plan, self._task_step.functions(plan))
    if plan.execution == 'fused':
      self._execution = updates.FusedExecution(
        update, plan, self.parts, self._config.trainer.gradient_accumulation_steps, in_memory if plan.gathers else None
      )
    elif plan.execution == 'mesh':
      self._execution = self._mesh_execution = self._make_mesh_execution(update)
    elif plan.compiles_update:
      self._execution = self._split_execution(update, plan)
    else:
      self._execution = updates.GraphExecution(update, self.parts)
    if plan.jit_compile and not traits.static_shapes:
      self.input_shapes.start()

  def _split_execution(self, update, plan):
    """The execution of an update that each replica compiles; another one, and another plan, if XLA cannot."""
    num_micro_steps = self._config.trainer.gradient_accumulation_steps
    execution = updates.SplitExecution(
      update, self.parts, self._task_step.sparse_rows, num_micro_steps, compiles_passes=plan.execution == 'split'
    )
    xla_error = execution.update_error([self._task_step.input_specs] * num_micro_steps)
    if not xla_error:
      return execution
    self.plan = step_plan.without_compiled_update(plan, xla_error)
    self._task_step.tap.on_cpu = False
    return updates.GraphExecution(update, self.parts)

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
    """Why XLA cannot compile a whole step; '' if it can. Runs nothing."""
    update = self._update(plan, self._task_step.functions(plan))
    specs = [self._task_step.input_specs] * self._config.trainer.gradient_accumulation_steps
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
    for micro_batches in batches:
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
  """Counts the programs to which a step is compiled, one for each combination of its inputs' shapes; warns of many."""

  def __init__(self, strategy: tf.distribute.Strategy):
    """Initializes it; nothing is counted before `start`."""
    self._strategy = strategy
    self._seen: tf.lookup.experimental.MutableHashTable | None = None
    self.num_compilations = 1

  def start(self) -> None:
    """Starts to count. A step whose shapes are fixed does not need it."""
    with self._strategy.scope():
      self._seen = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

  def note(self, micro_batches: Sequence[object]) -> None:
    """Remembers the shapes of a step's inputs. Cross-replica context, in a graph or outside."""
    if self._seen is None:
      return
    for inputs in micro_batches:
      local = tf.nest.map_structure(lambda x: self._strategy.experimental_local_results(x)[0], inputs)
      shapes = [
        tf.strings.join(['(', tf.strings.reduce_join(tf.strings.as_string(tf.shape(t)), separator=', '), ')'])
        for t in tf.nest.flatten(local, expand_composites=True)
      ]
      self._seen.insert(tf.strings.reduce_join(shapes, separator=' '), tf.constant(1, tf.int64))

  def count(self, max_silent_recompilations: int) -> None:
    """Counts again, and warns if the step was compiled again, and too often."""
    shapes = self._shapes()
    before, self.num_compilations = self.num_compilations, max(1, len(shapes))
    if self.num_compilations > max(before, max_silent_recompilations):
      varying = ', '.join(shapes[:_MAX_NAMED])
      logging.warning(
        'The training step was compiled %d times, because the shapes of its inputs vary: %s. Pad them to one shape '
        '(drop_remainder, padded_batch), or set runtime.enable_xla=false.',
        self.num_compilations,
        varying,
      )

  def _shapes(self) -> list[str]:
    """The shapes seen so far, one string for each combination."""
    return [] if self._seen is None else sorted(key.decode() for key in self._seen.export()[0].numpy())
