"""The inner loop: Model Garden's Trainer, with compiled steps, accumulation, the finite guard and exact input.

`TrainingSpeed` measures the speed of a loop. `Trainer` chooses how its step is compiled, and runs loops of steps: one
call a step, or several steps in one TensorFlow function if one program runs several.
"""

from collections.abc import Callable, Iterator
from concurrent import futures
import contextlib
import dataclasses
import sys
import time
from typing import Any

from absl import logging
import gin
from official.core import base_trainer as official_trainer
from official.core import config_definitions as cfg
import orbit
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import hardware
from official_ext.base import protocols
from official_ext.base import tf_internals
from official_ext.data import batch_axes
from official_ext.data import batch_reader
from official_ext.data import config_fields
from official_ext.data import pipelines
from official_ext.training.config import epochs
from official_ext.training.loop import base_evaluator
from official_ext.training.loop import training_input
from official_ext.training.optimization import groups as groups_lib
from official_ext.training.record import profiling
from official_ext.training.step import gradient_tap
from official_ext.training.step import inspection
from official_ext.training.step import observers
from official_ext.training.step import step_plan
from official_ext.training.step import step_random
from official_ext.training.step import task_step
from official_ext.training.step import training_step as training_step_lib


@dataclasses.dataclass
class TrainingSpeed:
  """The speed of the last training loop.

  Attributes:
    steps: the number of steps that were timed.
    seconds: the wall time of these steps.
    data_wait_seconds: the part of these seconds spent waiting for input.
    compile_seconds: wall time of the first run of each program in this process, which compiles it.
    examples_per_step: examples in one update, 0 if `global_batch_size` is not set.
    examples_per_epoch: examples in the training data, 0 if the task does not know.
    lengths: the ends of epochs, which a resumed run continues.
  """

  steps: int = 0
  seconds: float = 0.0
  data_wait_seconds: float = 0.0
  compile_seconds: float = 0.0
  examples_per_step: int = 0
  examples_per_epoch: int = 0
  lengths: epochs.Lengths = epochs.Lengths()

  def start_loop(self) -> None:
    """Forgets the loop before."""
    self.steps, self.seconds, self.data_wait_seconds = 0, 0.0, 0.0

  def add(self, steps: int, seconds: float, data_wait_seconds: float) -> None:
    """Adds steps of the present loop."""
    self.steps += steps
    self.seconds += seconds
    self.data_wait_seconds += data_wait_seconds


LoopFn = Callable[[Any, tf.Tensor], None]


def make_loop(
  step: training_step_lib.TrainingStep, inputs: training_input.StepInputs, train_step: Callable[[Any], None]
) -> LoopFn | None:
  """Makes the loop `(iterator, num_steps) -> None` of a planned step; None if steps are run one by one.

  Args:
    step: the step, with its plan.
    inputs: takes the batches of a step.
    train_step: runs one update; the steps that remain after whole programs are run by it.
  """
  assert step.plan is not None
  if step.plan.execution == 'mesh':
    return _mesh_loop(step, inputs)
  if step.plan.steps_per_execution == 1:
    return None
  return tf.function(_gathering_loop(step, inputs) if step.plan.gathers else _fused_loop(step, inputs, train_step))


def _gathering_loop(step: training_step_lib.TrainingStep, inputs: training_input.StepInputs) -> LoopFn:
  assert step.plan is not None
  at_most = step.plan.steps_per_execution

  def gathering_loop(iterator, num_steps):
    del iterator
    for done in tf.range(0, num_steps, at_most):
      with tf.name_scope(''):
        step.run_gathering(inputs.next_batch(), tf.minimum(num_steps - done, at_most))

  return gathering_loop


def _fused_loop(
  step: training_step_lib.TrainingStep, inputs: training_input.StepInputs, train_step: Callable[[Any], None]
) -> LoopFn:
  assert step.plan is not None
  length = step.plan.steps_per_execution

  def fused_loop(iterator, num_steps):
    for _ in tf.range(num_steps // length):
      with tf.name_scope(''):
        step.run([inputs.take(iterator, i) for i in range(length)])
    for _ in tf.range(num_steps % length):
      with tf.name_scope(''):
        train_step(iterator)

  return fused_loop


def _mesh_loop(step: training_step_lib.TrainingStep, inputs: training_input.StepInputs) -> LoopFn:
  """A loop in Python: batches come from the host, and are split over the devices between two steps."""

  def take(iterator):
    return inputs.take(iterator)

  take_in_graph = tf.function(take)

  def mesh_loop(iterator, num_steps):
    with step.on_mesh().running():
      for _ in range(int(num_steps)):
        step.run([take_in_graph(iterator)])

  return mesh_loop


_COMPILE_ERRORS = ('XLA', 'Detected unsupported operations')


@gin.configurable('Trainer', module='official_ext')  # --gin_params="official_ext.Trainer.train = ..."
class Trainer(base_evaluator.Evaluator):
  """Trains any Model Garden task. Replaces `official.core.base_trainer.Trainer`, with all its override points.

  `train_step` runs one update on the batches that `next_train_inputs` takes; how it is compiled is decided when
  training begins (see step_plan.py). A subclass that overrides `train_step` owns the step, and may call this one.

  On parameter servers, Model Garden's own training runs: the coordinator, this process, hands whole loops to the
  workers and waits for the last. It sees no step and no batch, so there is no plan, no guard and no exact input.

  Attributes:
    profiler: the one that was handed in.
    parameter_groups: the groups of `optimizer_config.parameter_groups`; None if there are none.
    steps_are_done: whether the last loop has run all of its steps: a later failure has cost none of them.
    step_inputs: takes the batches of a step. Like the next, only of a trainer whose steps this process runs.
    step_state: the counters of the finite guard.
    speed: the speed of the last loop. It stays empty if other processes run the steps.
    num_skips_restored: the number of updates skipped before this process began.

  Example:

    >>> from experiments import digits_mlp
    >>> class LogsWeights(ext.Trainer):  # The `trainer_cls` of a task.
    ...   def train_loop_end(self):
    ...     norm = tf.linalg.global_norm(self.model.trainable_variables)
    ...     return {**super().train_loop_end(), 'weight_norm': norm}
    >>> params = digits_mlp.digits_mlp()
    >>> params.override({'runtime': {'enable_xla': False}})
    >>> task = digits_mlp.DigitsMlpTask(params.task)
    >>> optimizer = task.create_optimizer(params.trainer.optimizer_config)
    >>> trainer = LogsWeights(params, task, task.build_model(), optimizer, evaluate=False)
    >>> logs = trainer.train(tf.constant(3))
    >>> int(logs['model_global_step']), float(logs['weight_norm']) > 0
    (3, True)
  """

  step_inputs: training_input.StepInputs
  step_state: task_step.StepState

  def __init__(
    self,
    config: cfg.ExperimentConfig,
    task: protocols.Task,
    model: tf_keras.Model,
    optimizer: tf_keras.optimizers.Optimizer,
    train: bool = True,
    evaluate: bool = True,
    train_dataset: object = None,
    validation_dataset: object = None,
    checkpoint_exporter: object = None,
    max_silent_recompilations: int = 3,
    profiler: profiling.Profiler | None = None,
  ):
    """Initializes the trainer, inside the strategy's scope.

    Args:
      config: the experiment. One that lacks fields of this library, such as a plain one of Model Garden's, is
        upgraded (see definitions.py): `self.config` is the upgraded copy, and there is no other.
      task: see `official_ext.training.tasks.base_task.Task`; any Model Garden task.
      model: the task's model.
      optimizer: a tf_keras optimizer, legacy or new.
      train: whether the trainer will train.
      evaluate: whether it will evaluate.
      train_dataset: instead of the task's own; under tf.distribute a DistributedDataset.
      validation_dataset: likewise.
      checkpoint_exporter: has `maybe_export_checkpoint(checkpoint, logs, step)` and `best_ckpt_logs`.
      max_silent_recompilations: how many recompilations of the step pass without a warning.
      profiler: profiles steps; None profiles none.

    Raises:
      UserError: the configuration needs something that this trainer, strategy, model or optimizer cannot do.
    """
    datasets = dict(train_dataset=train_dataset, validation_dataset=validation_dataset)
    others = dict(train=train, evaluate=evaluate, checkpoint_exporter=checkpoint_exporter)
    super().__init__(config, task, model, optimizer, **others, **datasets)
    self.profiler = profiler or profiling.Profiler()
    self.steps_are_done = False
    self.num_skips_restored = 0
    self._is_first_batch_checked = False
    self.speed = TrainingSpeed()
    self._max_silent_recompilations = max_silent_recompilations
    self._step: training_step_lib.TrainingStep | None = None
    self._input = training_input.TrainingInput(
      task,
      config_fields.of_task(self.config.task).train_data,
      self.gradient_accumulation_steps,
      is_custom=train_dataset is not None,
    )
    groups = getattr(self.config.trainer.optimizer_config, 'parameter_groups', ()) if train else ()
    self.parameter_groups = groups_lib.install(groups, gradient_tap.inner_optimizer(optimizer), model)
    if not self._is_async:
      step_random.key_random_layers(model)
    if train:
      self._check_inspection()
      self._build_optimizer()
    if train and not self._is_async:
      self._make_step()

  def _check_inspection(self) -> None:
    if not self.config.trainer.inspect.every:
      return
    if self._is_async:
      raise errors.UserError('trainer.inspect.every: parameter servers run the steps by themselves; set it to 0')
    if not self.owns_step:
      raise errors.UserError(
        f'trainer.inspect.every: {type(self).__name__} overrides train_step and owns its steps; set it to 0'
      )

  def _build_optimizer(self) -> None:
    """Makes the optimizer's slots, if the model has variables already: then a restore finds all of them."""
    if not getattr(self.model, 'built', False):
      return
    if self.model.trainable_variables:
      gradient_tap.build_optimizer(self.optimizer, self.model.trainable_variables)
    if self._is_async or self.model.trainable_variables:
      self.check_parameter_groups()
    optimizer = self.config.trainer.optimizer_config.optimizer
    path = f'{groups_lib.OPTIMIZER}.{optimizer.type}'
    warning = groups_lib.check_exclusions(path, optimizer.get(), self.model)
    if warning and self.strategy.extended.should_checkpoint:
      print(f'warning: {warning}', file=sys.stderr, flush=True)

  def _make_step(self) -> None:
    """Makes the step and every part that the loop calls; the step is planned when training begins."""
    settings, runtime = self.config.trainer, self.config.runtime
    self.step_state = self.checkpoint.step_state = task_step.StepState()
    self.step_inputs = training_input.StepInputs(
      self.next_train_inputs, self.global_step, runtime.seed, self.gradient_accumulation_steps
    )
    self._step = training_step_lib.TrainingStep(
      task_step.StepParts(
        task=self.task,
        model=self.model,
        optimizer=self.optimizer,
        metrics=self.train_metrics,
        train_loss=self.train_loss,
        global_step=self.global_step,
        state=self.step_state,
        strategy=self.strategy,
      ),
      self.config,
    )
    self._inspector = inspection.Inspector(
      settings.inspect, self._step, self.optimizer, self.step_inputs.take, self.model
    )
    self._statistics = gradient_tap.ReplicaStatistics(
      self.model, lambda: () if self._ema is None else self._ema.averages.values()
    )
    self._hyperparameters = [variable.numpy() for variable in gradient_tap.hyperparameters(self.optimizer)]
    self._programs_run: set[int] = set()  # Their lengths, in steps.
    data = config_fields.of_task(self.config.task).train_data
    self._batch_size = config_fields.of_data(data).global_batch_size or 0
    num_examples = self.task.num_examples(data)
    self.speed = TrainingSpeed(
      examples_per_step=self._batch_size * self.gradient_accumulation_steps,
      examples_per_epoch=num_examples or 0,
      lengths=epochs.lengths(settings, self.config.task, self.task, num_examples=num_examples or 0),
    )
    self._check_shapes_of_batches()

  def _check_shapes_of_batches(self) -> None:
    """Refuses training batches of another size than the configuration has. If only the first one shows it, counts it.

    A trainer that takes its own inputs, or was handed a dataset, knows its batches itself.
    """
    spec, num_replicas = self._training_spec, self.strategy.num_replicas_in_sync
    if spec is None or not self._batch_size or self._takes_own_inputs() or self._input.is_custom:
      return
    full = batch_axes.FullBatch(spec, self._batch_size // num_replicas, num_replicas)
    found = full.by_shapes()
    if found is None:
      self.step_inputs.count = full.by_batch
    elif found and found * num_replicas != self._batch_size:
      raise training_input.wrong_batch_size(self.task, self._batch_size, found, num_replicas)

  def check_parameter_groups(self) -> None:
    """Refuses parameter groups that do not fit the model's variables, which must exist."""
    if self.parameter_groups is not None:
      self.parameter_groups.check(self.model.trainable_variables)

  def check_variables(self) -> None:
    """Refuses averages, parameter groups and patterns that do not fit the model's variables, which must exist."""
    if self._ema is not None:
      self._ema.check_covers(self.model)
    self.check_parameter_groups()

  @property
  def owns_step(self) -> bool:
    """Whether `train_step` is this class's own, not a subclass's."""
    return type(self).train_step is Trainer.train_step

  @property
  def owns_loop(self) -> bool:
    """Whether no subclass overrides a method between the loop and the steps."""
    return self.owns_step and self.config.trainer.train_tf_while_loop

  @property
  def gradient_accumulation_steps(self) -> int:
    """The number of batches of `global_batch_size` that make one update."""
    return self.config.trainer.gradient_accumulation_steps

  @property
  def micro_step(self) -> int:
    """Which of the micro-batches of a step `next_train_inputs` is called for, from 0 on."""
    key = step_random.current_key()
    return 0 if key is None else key.micro_step

  @property
  def data_offset(self) -> int:
    """The offset added to the number of a step when its batches are chosen: see `checkpoint_restored`."""
    return self._input.data_offset

  @property
  def training_step(self) -> training_step_lib.TrainingStep:
    """The training step.

    Raises:
      ValueError: the trainer was made with train=False, or parameter servers run the steps.
    """
    if self._step is None:
      raise ValueError('The trainer was made with train=False.')
    return self._step

  @property
  def plan(self) -> step_plan.StepPlan | None:
    """How the step is compiled; None before training has begun."""
    return None if self._step is None else self._step.plan

  @property
  def num_compilations(self) -> int:
    """The number of programs to which the training step was compiled so far."""
    return 1 if self._step is None else self._step.input_shapes.num_compilations

  @property
  def guards_updates(self) -> bool:
    """Whether this trainer trains, and skips updates that are not finite. A task's own updates are not tested."""
    return self._step is not None and (self.plan is None or not self.plan.manual_optimization)

  @property
  def num_skips(self) -> int:
    """The number of updates skipped since the start or the last rollback."""
    return 0 if self._step is None else int(self.step_state.num_skips.numpy())

  def _step_now(self) -> int:
    return int(self.global_step.numpy())

  # The loop.

  def train(self, num_steps: tf.Tensor) -> orbit.runner.Output | None:
    """Runs `num_steps` updates: see base class."""
    self._begin_averages(for_good=True)
    if self._is_async:
      return super().train(num_steps)
    self.steps_are_done = False
    self._prepare_input()
    if self.owns_step:
      self.plan_step()
    self.train_loop_begin()
    self.speed.start_loop()
    for part in self._parts(int(num_steps)):
      step = self._step_now()
      self.step_inputs.wait.assign(0.0)
      with self.profiler.tracing(step, part.steps):
        seconds = self.run_steps(part.steps, inspects=self._inspector.is_due(step, part.steps))
      data_wait_seconds = float(self.step_inputs.wait.numpy())
      if part.compiles:
        self.speed.compile_seconds += seconds
        hardware.release_freed_memory()  # Of tracing and compiling: a tenth of a deep decoder's process.
      else:
        self.speed.add(part.steps, seconds, data_wait_seconds)
      self.profiler.add_program(step, part, seconds, data_wait_seconds)
    self._statistics.agree()
    self.steps_are_done = True
    return self.train_loop_end()

  def _parts(self, num_steps: int) -> Iterator[profiling.Part]:
    """Cuts a loop around programs that are compiled, which are timed separately, or inspected or profiled."""
    length = self.plan.steps_per_execution if self.plan is not None and self.owns_loop else 1
    any_number = self._gathers()

    def is_alone(step, num_steps):
      return self._inspector.is_due(step, num_steps) or self.profiler.covers(step, num_steps)

    return profiling.cut(self._step_now(), num_steps, length, self._programs_run, is_alone, any_number)

  def _gathers(self) -> bool:
    return self.plan is not None and self.plan.gathers

  def run_steps(self, num_steps: int, inspects: bool = False) -> float:
    """Runs some steps of a loop that has begun.

    Args:
      num_steps: their number.
      inspects: whether these are one program, whose first step must be inspected.

    Returns:
      The seconds that the steps took, without the inspection.

    Raises:
      UserError: the data have ended, or the user's model or data is at fault.
    """
    loop_fn, iterator = self.train_loop_fn, self._train_iter
    start, first_step = time.perf_counter(), self._step_now()
    with self._explained():
      if inspects and not self._gathers():
        self._inspector.run(iterator, num_steps, first_step)
      else:
        if inspects:  # Data in memory is not consumed by that.
          self._inspector.look(iterator, first_step)
        loop_fn(iterator, tf.constant(num_steps, tf.int32))
    self._check_first_batch(first_step)
    # Waits for the device. A loop in Python ends without an error when the data end.
    if self._step_now() < first_step + num_steps and self.owns_step:
      raise self._end_of_data()
    seconds = time.perf_counter() - start
    return seconds - self._inspector.seconds if inspects else seconds

  def _check_first_batch(self, step: int) -> None:
    """Compares the first batch of this process with the configuration, once; it was taken after `step` steps.

    Batches of an input without fixed shapes may differ, as in buckets of lengths: then the number is printed. A whole
    global batch on each of several replicas is refused.
    """
    if self.step_inputs.count is None or self._is_first_batch_checked:
      return
    self._is_first_batch_checked = True
    found, num_replicas = int(self.step_inputs.num_seen.numpy()), self.strategy.num_replicas_in_sync
    if found == self._batch_size and num_replicas > 1:
      raise training_input.wrong_batch_size(self.task, self._batch_size, found, num_replicas)
    if found > 0 and found * num_replicas != self._batch_size and not step and self.strategy.extended.should_checkpoint:
      print(
        f'Training data (task.train_data): the first batch has {found * num_replicas} examples, and global_batch_size '
        f'is {self._batch_size}',
        flush=True,
      )

  def create_train_loop_fn(self):
    """Makes the loop over `train_step`; in the fused execution, over whole programs of steps."""
    return self._make_loop() or super().create_train_loop_fn()

  def _make_loop(self) -> LoopFn | None:
    if self.plan is None or not self.owns_loop:
      return None
    return make_loop(self.training_step, self.step_inputs, self.train_step)

  @property
  def train_loop_fn(self) -> Any:
    """The loop of `create_train_loop_fn`, made once."""
    if self._train_loop_fn is None:
      self._train_loop_fn = self.create_train_loop_fn()
    return self._train_loop_fn

  @tf_internals.autograph_unconverted
  def train_step(self, iterator):
    """One update: see base class."""
    if self._is_async:
      tf_internals.autograph_called(super().train_step)(iterator)  # On a worker.
      return
    if self.training_step.plan is None:  # A subclass owns the loop, and its trace has come here first.
      self._plan_inside_a_trace()
    self.training_step.run([self.step_inputs.take(iterator)])

  # Planning.

  def prepare_training(self) -> None:
    """Makes the input start at this step, and decides how the step is compiled. A second call does nothing."""
    self._begin_averages()
    self._prepare_input()
    if self.owns_step and not self._is_async:
      self.plan_step()

  def _prepare_input(self) -> None:
    if self._train_iter is None:
      pipelines.wait_for_caches()
      dataset = self._input.after(self._step_now(), self.distribute_dataset)
      if dataset is not None:
        self.train_dataset = dataset
      self._train_iter = tf.nest.map_structure(iter, self.train_dataset)

  def plan_step(self) -> None:
    """Decides how the step is compiled, if that is not decided yet. Call it when the input has an iterator."""
    step, runtime = self.training_step, self.config.runtime
    self.step_inputs.data_offset.assign(self._input.data_offset)
    if step.plan is not None:
      return
    with self.strategy.scope():
      guess = step_plan.step_may_have_clusters(self.model, runtime, self.strategy)
      traits = step.probe(self.step_inputs.take_one, self._train_iter, guess)
      if step.broadcasts and self.strategy.extended.should_checkpoint:
        place = f'{type(self.task).__name__}.train_step'
        warning = '; '.join(observers.broadcast_warning(step.broadcasts[0]))
        print(f'warning: {place}: {warning}', file=sys.stderr, flush=True)
      in_memory = self._in_memory()
      traits = dataclasses.replace(traits, in_memory=in_memory is not None)
      if self.parameter_groups is not None:  # Frozen variables have slots too: a later run may train them.
        gradient_tap.build_optimizer(self.optimizer, self.model.trainable_variables)
      plan = self._plan_of(traits)
      if runtime.enable_xla == 'auto' and plan.jit_compile:  # Asked last: it takes as long as the trace.
        traits = dataclasses.replace(traits, xla_error=step.xla_error())
        plan = self._plan_of(traits)
      step.set_plan(plan, traits, in_memory)
    if self._gathers():  # The plan may have changed: an update that XLA cannot compile is split off.
      self.step_inputs.in_memory = in_memory
    self.check_variables()  # Some models have no variables until their first call.
    logging.info('Training step: %s', step.plan)

  def _plan_of(self, traits: step_plan.StepTraits) -> step_plan.StepPlan:
    step = self.training_step
    return step_plan.plan_step(
      traits,
      self.config.trainer,
      self.config.runtime,
      self.strategy,
      type(self.task).__name__,
      self._batch_size,
      single_trace=step.parts.single_trace,
      owns_loop=self.owns_loop,
      inputs_by=type(self).__name__ if self._takes_own_inputs() else '',
    )

  @tf.autograph.experimental.do_not_convert
  def _plan_inside_a_trace(self):
    """Plans in a separate thread, because planning traces: tf.init_scope would leave the graph, but pause tapes."""
    with futures.ThreadPoolExecutor(1) as thread:
      thread.submit(self.plan_step).result()

  def _in_memory(self) -> batch_reader.InMemoryBatches | None:
    """The batches as functions of their numbers, if nobody but this class takes them."""
    if not self.owns_loop or self._takes_own_inputs() or self._input.is_custom:
      return None
    return batch_reader.in_memory_batches_of(self.train_dataset)

  def _takes_own_inputs(self) -> bool:
    """Whether `next_train_inputs` is not Model Garden's, and so may read the step or the model."""
    function = getattr(self.next_train_inputs, '__func__', None)
    return function is not official_trainer.Trainer.next_train_inputs

  def try_step(self) -> None:
    """Refuses a step that cannot be run, where that shows only by running one: on a mesh. Changes nothing.

    Raises:
      UserError: it cannot.
    """
    if self._step is None or not self.config.runtime.mesh.sizes():
      return
    start = time.perf_counter()
    with self.strategy.scope(), self._explained():
      self.prepare_training()
      self.plan_step()  # A trainer that overrides train_step does this later.
      self._step.try_on_mesh(self._batch_size)
    self.speed.compile_seconds += time.perf_counter() - start
    self.restart_input()

  def create_variables(self) -> bool:
    """See base class. Also creates the variables of the trainer's optimizer."""
    return self._create_step_variables() and super().create_variables()

  def _create_step_variables(self) -> bool:
    if self._step is None:
      return not self._is_async  # A step cannot be traced on parameter servers.
    self.prepare_training()
    if self.plan is not None and not self.plan.manual_optimization:
      return True
    # Planning has made nothing for a subclass's step.
    if not self.config.trainer.train_tf_function:
      return False
    tf.function(lambda iterator: self.train_step(iterator)).get_concrete_function(self._train_iter)
    return True

  # Errors.

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
    if self.plan is not None and self.plan.jit_compile and _is_compile_error(error):
      return errors.UserError(
        f'runtime.enable_xla: XLA cannot compile the step of {type(self.task).__name__} '
        f'({task_step.compiler_message(error)}); set it to false'
      )
    step = self._step_now()
    # The counter of steps does not wait for the loss.
    batches = [number for at in (step, step + 1) if at for number in self._input.batches_of(at)]
    return self.inputs['train_data'].explain(error, step, self.model, batches)

  def _end_of_data(self) -> errors.UserError:
    step = self._step_now()
    if not step and not self._input.data_offset:
      return self.inputs['train_data'].no_examples(self.speed.examples_per_step)
    return training_input.ended(step)

  def examine_step(self, step: int) -> str:
    """The error in the inputs of a step (the first: 1) that was not finite; '' if nothing is found."""
    return self.inputs['train_data'].examine(self._input.batches_of(step), self.model)

  # Input.

  @property
  def train_iterator(self) -> Any:
    """The iterator from which the next step takes its input; None before `prepare_training`."""
    return self._train_iter

  def _counts_batches(self) -> bool:
    """See base class."""
    return not self._is_async and super()._counts_batches()

  def restart_input(self) -> None:
    """Lets the next loop take its input from `global_step` on. Call it when the step was set back."""
    if self._step is None:
      return
    self._delete_iterators('_train_iter')

  def take_batches(self) -> list[Any]:
    """Takes the batches of the next step, for a caller that runs it. Call it after `prepare_training`."""
    return self.step_inputs.take(self._train_iter)

  def take_inputs(self, iterator: tf.data.Iterator) -> Any:
    """Calls `next_train_inputs` for the next step, whose number and seeds it may read. Cross-replica context."""
    return self.step_inputs.take_one(iterator)

  def close(self) -> None:
    """Destroys the iterators, in the background. The next loop or evaluation makes others."""
    self._delete_iterators('_train_iter', '_eval_iter')

  def _delete_iterators(self, *names: str) -> None:
    iterators = []
    for name in names:
      if vars(self).get(name) is not None:
        iterators.append(vars(self)[name])
        delattr(self, name)  # Or else TensorFlow's tracking of attributes would keep it.
        setattr(self, name, None)
    if iterators:
      pipelines.delete_in_background(iterators)

  # The end of a loop, and changes after a restore.

  def train_loop_end(self):
    """The logs of the loop.

    Returns:
      The training metrics, every scalar that the task's step logs, training_loss, grad_norm (of the reduced gradient,
      before clipping), learning_rate (of the last update), optimizer_iterations and model_global_step; the others are
      means over the loop's steps.
    """
    means = None if self._step is None else self._step.means
    skipped_loss = None if means is None else means.skipped_loss()  # Before the training loss is reset.
    means_of_logs = {} if means is None else means.take_logs()
    logs = super().train_loop_end()
    if skipped_loss is not None:
      logs[self.train_loss.name] = skipped_loss
    for name, value in means_of_logs.items():
      logs.setdefault(name, value)
    rate = logs['learning_rate']
    if hasattr(self.optimizer, 'iterations'):
      iterations = logs['optimizer_iterations'] = self.optimizer.iterations.read_value()
      schedule = self.optimizer.learning_rate
      if callable(schedule):  # A legacy optimizer's: Model Garden logs the rate of the next update.
        rate = schedule(tf.maximum(iterations - 1, 0))
    logs['learning_rate'] = tf.convert_to_tensor(rate)  # Not the variable, which continues to change.
    logs['model_global_step'] = self.global_step.read_value()
    if self._step is None:
      return logs
    if self.plan is not None:
      self._step.input_shapes.count(self._max_silent_recompilations)
    next_batch = self._input.batches_of(self._step_now() + 1)[0]
    return self.with_skips(logs, self.inputs['train_data'], next_batch * self._batch_size)

  def checkpoint_restored(
    self, keep_hyperparameters: bool = False, data_offset: int = 0, forget_skips: bool = False
  ) -> None:
    """Continues counting and reading from the restored checkpoint. Call it after a restore.

    Args:
      data_offset: the offset that is added to the number of a step when its batches are chosen.
      forget_skips: whether to count skips anew, because a rollback came after the checkpoint.
      keep_hyperparameters: whether the optimizer's constants (learning rate, momentum, ...) are those of the
        configuration, which has changed since, not those in the checkpoint.
    """
    if keep_hyperparameters and self._step is not None:
      for variable, value in zip(gradient_tap.hyperparameters(self.optimizer), self._hyperparameters):
        variable.assign(value)
    self._input.data_offset = data_offset
    if forget_skips and self._step is not None:
      self.step_state.forget_skips()
    self.num_skips_restored = self.num_skips
    if self._is_async and self._step_now():
      logging.warning('Parameter servers: the training input starts from its beginning, also after a resume.')
    self.restart_input()


def _is_compile_error(error: Exception) -> bool:
  known = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
  return isinstance(error, known) and any(words in str(error) for words in _COMPILE_ERRORS)
