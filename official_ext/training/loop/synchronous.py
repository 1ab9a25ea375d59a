"""The training of a trainer whose replicas make every update together: loops of planned steps, timed and watched."""

from collections.abc import Callable, Iterator
from concurrent import futures
import contextlib
import dataclasses
import time
from typing import Any

from absl import logging
from official.core import base_trainer as official_trainer
import orbit
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.data import in_memory as in_memory_lib
from official_ext.training.loop import loop_parts
from official_ext.training.loop import no_training
from official_ext.training.loop import profiling
from official_ext.training.loop import step_inputs
from official_ext.training.loop import step_planning
from official_ext.training.loop import training_input
from official_ext.training.loop import training_speed
from official_ext.training.step import gradient_tap
from official_ext.training.step import inspection
from official_ext.training.step import step_plan
from official_ext.training.step import step_state
from official_ext.training.step import task_step
from official_ext.training.step import training_step

_COMPILE_ERRORS = ('XLA', 'Detected unsupported operations')


class SynchronousTraining(no_training.NoTraining):
  """See base class."""

  restarts_input = True

  def __init__(
    self,
    trainer: Any,
    step: training_step.TrainingStep,
    state: step_state.StepState,
    inputs: step_inputs.StepInputs,
    source: training_input.TrainingInput,
    profiler: profiling.Profiler,
    inspector: inspection.Inspector,
    max_silent_recompilations: int,
  ):
    """Initializes the training, inside the strategy's scope, with the parts that it calls.

    Args:
      trainer: the trainer; its override points are called, never replaced.
      step: see attributes; not planned yet.
      state: the step's.
      inputs: takes the step's batches.
      source: knows which batches a step takes.
      profiler: is told of every part of a loop.
      inspector: rehearses steps that must be inspected.
      max_silent_recompilations: how many recompilations of the step pass without a warning.

    Raises:
      UserError: steps must be inspected that a subclass of the trainer owns.
    """
    super().__init__(trainer)
    self.step, self.state = step, state
    self.inputs, self._source = inputs, source
    self._profiler, self._inspector = profiler, inspector
    self._max_silent_recompilations = max_silent_recompilations
    self._params = trainer.config
    if self._params.trainer.inspect.every and not trainer.owns_step:
      raise errors.UserError(
        f'trainer.inspect.every: {type(trainer).__name__} overrides train_step and owns its steps; set it to 0'
      )
    if getattr(trainer.model, 'built', False) and trainer.model.trainable_variables:
      gradient_tap.build(trainer.optimizer, trainer.model.trainable_variables)  # Now a restore finds all variables.
      trainer.check_parameter_groups()
    self._hyperparameters = [variable.numpy() for variable in gradient_tap.hyperparameters(trainer.optimizer)]
    self._agree_fn: Callable[[], None] | None = None
    self._programs_run: set[int] = set()  # Their lengths, in steps.
    data = getattr(self._params.task, 'train_data', None)
    self._batch_size = getattr(data, 'global_batch_size', 0) or 0
    num_examples = trainer.task.num_examples(data) if hasattr(trainer.task, 'num_examples') else None
    self.speed = training_speed.TrainingSpeed(
      examples_per_step=self._batch_size * step.gradient_accumulation_steps, examples_per_epoch=num_examples or 0
    )

  @property
  def plan(self) -> step_plan.StepPlan | None:
    """See base class."""
    return self.step.plan

  @property
  def num_compilations(self) -> int:
    """See base class."""
    return self.step.input_shapes.num_compilations

  @property
  def guards_updates(self) -> bool:
    """See base class. A task's own updates are not tested."""
    return self.plan is None or not self.plan.manual_optimization

  @property
  def num_skips(self) -> int:
    """See base class."""
    return int(self.state.num_skips.numpy())

  # The loop.

  def train(self, num_steps: tf.Tensor) -> orbit.runner.Output | None:
    """See base class."""
    self.steps_are_done = False
    self._trainer.prepare_training()
    self._trainer.train_loop_begin()
    self.speed.start_loop()
    for part in self._parts(int(num_steps)):
      step = self._step_now()
      self.inputs.wait.assign(0.0)
      with self._profiler.tracing(step, part.steps):
        seconds = self.run(part.steps, inspects=self._inspector.is_due(step, part.steps))
      data_wait_seconds = float(self.inputs.wait.numpy())
      if part.compiles:
        self.speed.compile_seconds += seconds
      else:
        self.speed.add(part.steps, seconds, data_wait_seconds)
      self._profiler.add_program(step, part, seconds, data_wait_seconds)
    self._agree_on_statistics()
    self.steps_are_done = True
    return self._trainer.train_loop_end()

  def _parts(self, num_steps: int) -> Iterator[loop_parts.Part]:
    """Cuts a loop around programs that are compiled, which are timed separately, or inspected or profiled."""
    length = self.plan.steps_per_execution if self.plan is not None and self._owns_loop() else 1
    any_number = self._gathers()

    def is_alone(step, num_steps):
      return self._inspector.is_due(step, num_steps) or self._profiler.covers(step, num_steps)

    return loop_parts.cut(self._step_now(), num_steps, length, self._programs_run, is_alone, any_number)

  def _gathers(self) -> bool:
    return self.plan is not None and self.plan.gathers

  def run(self, num_steps: int, inspects: bool = False) -> float:
    """Runs some steps of a loop that has begun.

    Args:
      num_steps: their number.
      inspects: whether these are one program, whose first step must be inspected.

    Returns:
      The seconds that the steps took, without the inspection.

    Raises:
      UserError: the data have ended, or the user's model or data is at fault.
    """
    loop_fn, iterator = self._trainer.train_loop_fn, self._trainer.train_iterator
    start, first_step = time.perf_counter(), self._step_now()
    with self._explained():
      if inspects and not self._gathers():
        self._inspector.run(iterator, num_steps, first_step)
      else:
        if inspects:  # What is in memory is not used up by that.
          self._inspector.look(iterator, first_step)
        loop_fn(iterator, tf.constant(num_steps, tf.int32))
    # Waits for the device. A loop in Python ends without an error when the data end.
    if self._step_now() < first_step + num_steps and self._trainer.owns_step:
      raise self._end_of_data()
    seconds = time.perf_counter() - start
    return seconds - self._inspector.seconds if inspects else seconds

  @contextlib.contextmanager
  def _explained(self) -> Iterator[None]:
    """Turns the exception of a step into a UserError, if it concerns the user's model or data."""
    try:
      yield
    except tf.errors.OutOfRangeError as error:
      raise self._end_of_data() from error
    except (tf.errors.OpError, UnicodeDecodeError) as error:
      explained = self._explain(error)
      if explained is None:
        raise
      raise explained from error

  def _explain(self, error):
    trainer = self._trainer
    if self.plan is not None and self.plan.jit_compile and _is_compile_error(error):
      return errors.UserError(
        f'runtime.enable_xla: XLA cannot compile the step of {type(trainer.task).__name__} '
        f'({task_step.compiler_message(error)}); set it to false'
      )
    step = self._step_now()
    # The counter of steps does not wait for the loss.
    batches = [number for at in (step, step + 1) if at for number in self._source.batches_of(at)]
    return trainer.inputs['train_data'].explain(error, step, trainer.model, batches)

  def _end_of_data(self) -> errors.UserError:
    step = self._step_now()
    if not step and not self._source.data_offset:
      return self._trainer.inputs['train_data'].no_examples(self.speed.examples_per_step)
    return training_input.ended(step)

  def _agree_on_statistics(self):
    """Gives every replica the mean of what each has gathered by itself, such as statistics of batch normalisation.

    A checkpoint holds only that mean, and a run that continues from it must have the same as the uninterrupted one.
    """
    statistics = [v for v in self._trainer.model.variables if isinstance(v, tf_internals.SyncOnReadVariable)]
    if not statistics:
      return
    if self._agree_fn is None:

      def agree():
        for variable in statistics:
          variable.assign(variable.read_value())

      self._agree_fn = tf.function(agree, autograph=False)
    self._agree_fn()

  def _step_now(self) -> int:
    return int(self._trainer.global_step.numpy())

  # The step.

  def plan_step(self) -> None:
    """See base class."""
    self.inputs.begin(self._source.data_offset)
    if self.plan is not None:
      return
    with self._trainer.strategy.scope():
      self._choose_plan()
    self._trainer.check_variables()  # Some models have no variables until their first call.
    logging.info('Training step: %s', self.plan)

  def try_step(self) -> None:
    """See base class. Only a mesh has steps that show what they are by running."""
    if not self._params.runtime.mesh.sizes():
      return
    start = time.perf_counter()
    with self._trainer.strategy.scope(), self._explained():
      self._trainer.prepare_training()
      self.plan_step()  # A trainer that overrides train_step does this later.
      self.step.try_on_mesh(self._batch_size)
    self.speed.compile_seconds += time.perf_counter() - start
    self._trainer.restart_input()

  @tf.autograph.experimental.do_not_convert
  def _plan_inside_a_trace(self):
    """Plans in a thread of its own, because planning traces: tf.init_scope would leave the graph, but pause tapes."""
    with futures.ThreadPoolExecutor(1) as thread:
      thread.submit(self.plan_step).result()

  def _choose_plan(self):
    trainer, step = self._trainer, self.step
    check_xla = self._params.runtime.enable_xla == 'auto'
    traits = step.probe(self.inputs.take_one, trainer.train_iterator, check_xla=check_xla)
    in_memory = self._in_memory()
    traits = dataclasses.replace(traits, in_memory=in_memory is not None)
    if trainer.parameter_groups is not None:  # Frozen variables have slots too: a later run may train them.
      gradient_tap.build(trainer.optimizer, trainer.model.trainable_variables)
    plan = step_planning.choose_plan(
      traits,
      self._params,
      trainer.strategy,
      type(trainer.task).__name__,
      single_trace=step.single_trace,
      owns_loop=self._owns_loop(),
      inputs_by=type(trainer).__name__ if self._trainer_takes_own_inputs() else '',
    )
    step.set_plan(plan, traits, in_memory)
    if self._gathers():  # As it is now: an update that XLA cannot compile is split off.
      self.inputs.in_memory = in_memory

  def _owns_loop(self) -> bool:
    """Whether no subclass overrides a method between the loop and the steps."""
    return self._trainer.owns_step and self._params.trainer.train_tf_while_loop

  def _in_memory(self) -> in_memory_lib.InMemoryBatches | None:
    """The batches as functions of their numbers, if nobody but this class takes them."""
    if not self._owns_loop() or self._trainer_takes_own_inputs() or self._source.is_custom:
      return None
    return in_memory_lib.of(self._trainer.train_dataset)

  def _trainer_takes_own_inputs(self) -> bool:
    """Whether `next_train_inputs` is not Model Garden's, and so may read the step or the model."""
    function = getattr(self._trainer.next_train_inputs, '__func__', None)
    return function is not official_trainer.Trainer.next_train_inputs

  def train_step(self, iterator: Any) -> None:
    """See base class."""
    if self.step.plan is None:  # A subclass owns the loop, and its trace has come here first.
      self._plan_inside_a_trace()
    self.step.run([self.inputs.take(iterator)])

  def fused_loop(self) -> Any | None:
    """See base class."""
    plan = self.plan
    if plan is not None and plan.execution == 'mesh':
      return self._mesh_loop()
    if plan is None or plan.steps_per_execution == 1 or not self._owns_loop():
      return None

    def gathering_loop(iterator, num_steps):
      del iterator
      at_most = plan.steps_per_execution
      for done in tf.range(0, num_steps, at_most):
        with tf.name_scope(''):
          first_batch = self.inputs.first_batch(self._trainer.global_step.read_value())
          self.step.run_gathering(first_batch, tf.minimum(num_steps - done, at_most))

    def fused_loop(iterator, num_steps):
      for _ in tf.range(num_steps // plan.steps_per_execution):
        with tf.name_scope(''):
          self.step.run([self.inputs.take(iterator, i) for i in range(plan.steps_per_execution)])
      for _ in tf.range(num_steps % plan.steps_per_execution):
        with tf.name_scope(''):
          self._trainer.train_step(iterator)

    return tf.function(gathering_loop if plan.gathers else fused_loop)

  def _mesh_loop(self) -> Callable[[Any, tf.Tensor], None]:
    """A loop of Python's: batches come from the host, and are split over the devices between two steps."""

    def take(iterator):
      return self.inputs.take(iterator)

    take_in_graph = tf.function(take)

    def mesh_loop(iterator, num_steps):
      with self.step.on_mesh().running():
        for _ in range(int(num_steps)):
          self.step.run([take_in_graph(iterator)])

    return mesh_loop

  def create_variables(self) -> bool:
    """See base class."""
    trainer = self._trainer
    trainer.prepare_training()
    if self.plan is not None and not self.plan.manual_optimization:
      return True
    # Planning has made nothing for a subclass's step.
    if not self._params.trainer.train_tf_function:
      return False
    tf.function(lambda iterator: trainer.train_step(iterator)).get_concrete_function(trainer.train_iterator)
    return True

  # The end of a loop, and changes after a restore.

  def take_logs(self) -> tuple[dict[str, Any], dict[str, Any]]:
    """See base class. Before the training loss is reset."""
    means = self.step.means
    if means is None:
      return {}, {}
    skipped_loss = means.skipped_loss()
    return {} if skipped_loss is None else {self._trainer.train_loss.name: skipped_loss}, means.take_logs()

  def end_loop(self, logs: dict[str, Any]) -> dict[str, Any]:
    """See base class."""
    if self.plan is not None:
      self.step.input_shapes.count(self._max_silent_recompilations)
    next_batch = self._source.batches_of(self._step_now() + 1)[0]
    report = self._trainer.inputs['train_data']
    return self._trainer.with_skips(logs, report, next_batch * self._batch_size)

  def keep_hyperparameters(self) -> None:
    """See base class."""
    for variable, value in zip(gradient_tap.hyperparameters(self._trainer.optimizer), self._hyperparameters):
      variable.assign(value)

  def forget_skips(self) -> None:
    """See base class."""
    self.state.forget_skips()


def _is_compile_error(error: Exception) -> bool:
  known = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
  return isinstance(error, known) and any(words in str(error) for words in _COMPILE_ERRORS)
