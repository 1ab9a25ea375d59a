"""The inner loop: Model Garden's Trainer, with compiled steps, accumulation, the finite guard and exact input."""

from collections.abc import Callable, Iterator
from concurrent import futures
import threading
import time
from typing import Any

from absl import logging
import gin
from official.core import base_trainer as official_trainer
from official.core import config_definitions as cfg
import orbit
import tensorflow as tf

from official_ext import errors
from official_ext import tf_internals
from official_ext.checkpoints import warm_start
from official_ext.config import definitions
from official_ext.core import base_evaluator
from official_ext.core import loop_parts
from official_ext.core import pace
from official_ext.core import profiling
from official_ext.core import training_input
from official_ext.data import pipelines
from official_ext.optimization import parameter_groups
from official_ext.runtime import distribute
from official_ext.step import gradient_tap
from official_ext.step import inspection
from official_ext.step import step_parts
from official_ext.step import step_plan
from official_ext.step import step_random
from official_ext.step import step_state
from official_ext.step import task_step
from official_ext.step import training_step as training_step_lib

_COMPILE_ERRORS = ('XLA', 'Detected unsupported operations')


@gin.configurable('Trainer', module='official_ext')  # --gin_params="official_ext.Trainer.train = ..."
class Trainer(base_evaluator.Evaluator):
  """Trains any Model Garden task. Stands in for `official.core.base_trainer.Trainer`, with all its override points.

  `train_step` runs one update on the batches that `next_train_inputs` takes; how it is compiled is decided when
  training begins (see step_plan.py). A subclass that overrides `train_step` owns the step, and may call this one.
  """

  def __init__(
    self,
    config: cfg.ExperimentConfig,
    task: Any,
    model: Any,
    optimizer: Any,
    train: bool = True,
    evaluate: bool = True,
    train_dataset: Any = None,
    validation_dataset: Any = None,
    checkpoint_exporter: Any = None,
    max_silent_recompilations: int = 3,
  ):
    """Initializes the trainer, inside the strategy's scope.

    Args:
      config: the experiment; a plain Model Garden one gets the defaults of the fields that it lacks.
      task: see `official_ext.core.base_task.Task`; any Model Garden task.
      model: the task's model.
      optimizer: a tf_keras optimizer, legacy or new.
      train: whether the trainer will train.
      evaluate: whether it will evaluate.
      train_dataset: instead of the task's own; under tf.distribute a DistributedDataset.
      validation_dataset: likewise.
      checkpoint_exporter: has `maybe_export_checkpoint(checkpoint, logs, step)` and `best_ckpt_logs`.
      max_silent_recompilations: how many recompilations of the step pass without a warning.
    """
    super().__init__(
      config,
      task,
      model,
      optimizer,
      train=train,
      evaluate=evaluate,
      train_dataset=train_dataset,
      validation_dataset=validation_dataset,
      checkpoint_exporter=checkpoint_exporter,
    )
    self._settings = (
      definitions.upgrade(config) if isinstance(config, cfg.ExperimentConfig) else definitions.ExperimentConfig()
    )
    self._max_silent_recompilations = max_silent_recompilations
    self.profiler = profiling.Profiler()  # Whoever wants a profile puts another one here.
    self._input = training_input.TrainingInput(
      task,
      getattr(self.config.task, 'train_data', None),
      self.gradient_accumulation_steps,
      is_custom=train_dataset is not None,
    )
    self._num_skips_restored = 0
    self._steps_are_done = False
    self._agree_fn: Callable[[], None] | None = None
    self._programs_run: set[int] = set()  # Their lengths, in steps.
    self._step: training_step_lib.TrainingStep | None = None
    groups = getattr(self._settings.trainer.optimizer_config, 'parameter_groups', ()) if train else ()
    self._parameter_groups = parameter_groups.install(groups, gradient_tap.inner_optimizer(optimizer), model)
    if train and self._settings.trainer.inspect.every:
      self._check_inspectable()
    if train and self._is_async and getattr(model, 'built', False):
      self._check_parameter_groups()
    if train and not self._is_async:
      self._init_training()

  def _init_training(self):
    if getattr(self.model, 'built', False) and self.model.trainable_variables:
      gradient_tap.build(self.optimizer, self.model.trainable_variables)  # So that a restore finds all its places.
      self._check_parameter_groups()
    self._hyperparameters = [variable.numpy() for variable in gradient_tap.hyperparameters(self.optimizer)]
    self._step_state = step_state.StepState()
    self._data_wait = tf.Variable(
      0.0, dtype=tf.float64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
    )
    data = getattr(self.config.task, 'train_data', None)
    batch_size = getattr(data, 'global_batch_size', 0) or 0
    num_examples = self.task.num_examples(data) if hasattr(self.task, 'num_examples') else None
    self.pace = pace.Pace(
      examples_per_step=batch_size * self.gradient_accumulation_steps, examples_per_epoch=num_examples or 0
    )
    self._checkpoint.step_state = self._step_state
    settings = self._settings
    self._step = training_step_lib.TrainingStep(
      step_parts.StepParts(
        task=self.task,
        model=self.model,
        optimizer=self.optimizer,
        metrics=self.train_metrics,
        train_loss=self.train_loss,
        global_step=self.global_step,
        state=self._step_state,
        strategy=self.strategy,
      ),
      step_parts.StepSettings(settings.runtime.seed, self.gradient_accumulation_steps, settings.trainer.loss_spike),
    )
    self._inspector = inspection.Inspector(
      self._settings.trainer.inspect, self._step, self.optimizer, self._next_micro_batches, self.model
    )

  def _check_inspectable(self):
    if self._is_async:
      raise errors.UserError('trainer.inspect.every: parameter servers run the steps by themselves; set it to 0')
    if type(self).train_step is not Trainer.train_step:
      raise errors.UserError(
        f'trainer.inspect.every: {type(self).__name__} overrides train_step and owns its steps; set it to 0'
      )

  def _check_parameter_groups(self):
    if self._parameter_groups is not None:
      self._parameter_groups.check(self.model.trainable_variables)

  @property
  def gradient_accumulation_steps(self) -> int:
    """Batches of `global_batch_size` that make one update."""
    return self._settings.trainer.gradient_accumulation_steps

  @property
  def data_offset(self) -> int:
    """How many updates further than its number a step finds its batches: see `checkpoint_restored`."""
    return self._input.data_offset

  @property
  def steps_are_done(self) -> bool:
    """Whether the last loop has run all of its steps: what fails after that has cost none of them."""
    return self._steps_are_done

  @property
  def plan(self) -> step_plan.StepPlan | None:
    """How the step is compiled; None before training has begun."""
    return self._step.plan if self._step is not None else None

  @property
  def num_compilations(self) -> int:
    """How many programs the training step was compiled to so far."""
    return self._step.input_shapes.num_compilations if self._step is not None else 1

  @property
  def guards_updates(self) -> bool:
    """Whether this trainer trains, and leaves out updates that are not finite. A task's own updates are not tested."""
    return self._step is not None and not (self.plan is not None and self.plan.manual_optimization)

  @property
  def step_state(self) -> step_state.StepState:
    """Counters of the finite guard."""
    return self._step_state

  def distribute_dataset(self, dataset_or_fn, *args, **kwargs):
    """See base class. Where the configuration names no data, says which field does."""
    is_validation = bool(args) and args[0] is getattr(self.config.task, 'validation_data', None)
    if callable(dataset_or_fn) and is_validation:
      dataset_or_fn = pipelines.transformed(dataset_or_fn, pipelines.without_autotune)
    try:
      with self.inputs['validation_data' if is_validation else 'train_data'].building():
        return self._distribute_dataset(dataset_or_fn, *args, **kwargs)
    except Exception as error:  # Each task fails in its own way.
      mistake = training_input.mistake_in_data(self.config, args[0] if args else None, error)
      if mistake is None:
        raise
      raise mistake from error

  def _distribute_dataset(self, dataset_or_fn, *args, **kwargs):
    if callable(dataset_or_fn) and _is_one_cpu(self.strategy):
      # Nothing is to be distributed, and a DistributedDataset takes four times as long to give a small batch.
      return dataset_or_fn(*args, **kwargs)
    return super().distribute_dataset(dataset_or_fn, *args, **kwargs)

  def initialize(self):
    """Lets the task start from `task.init_checkpoint`: see base class.

    Raises:
      UserError: it cannot; Model Garden's tasks go on without where the folder is empty, or fail in their own ways.
    """
    path = getattr(self.config.task, 'init_checkpoint', '')
    if path:
      warm_start.find(path)
    try:
      super().initialize()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
      if not path or isinstance(error, errors.UserError):
        raise
      message = ' '.join(str(error).split())[:300]
      raise errors.UserError(f'task.init_checkpoint: {path}: does not fit the model: {message}') from error

  # Training.

  def train(self, num_steps: tf.Tensor) -> orbit.runner.Output | None:
    """Runs `num_steps` updates: see base class."""
    if self._is_async:
      return super().train(num_steps)
    self._steps_are_done = False
    self.prepare_training()
    self.train_loop_begin()
    if self._train_loop_fn is None:
      self._train_loop_fn = self.create_train_loop_fn()
    self.pace.start_loop()
    for part in self._parts_of_loop(int(num_steps)):
      self._data_wait.assign(0.0)
      step = int(self.global_step.numpy())
      seconds = self._run_part(part, step)
      data_wait_seconds = float(self._data_wait.numpy())
      if part.compiles:
        self.pace.compile_seconds += seconds
      else:
        self.pace.add(part.steps, seconds, data_wait_seconds)
      self.profiler.add_program(step, part, seconds, data_wait_seconds)
    self._agree_on_statistics()
    self._steps_are_done = True
    return self.train_loop_end()

  def _agree_on_statistics(self):
    """Gives every replica the mean of what each has gathered by itself, such as batch normalisation's statistics.

    A checkpoint holds that mean alone: a run that goes on from it must find what the uninterrupted one has.
    """
    statistics = [v for v in self.model.variables if isinstance(v, tf_internals.SyncOnReadVariable)]
    if not statistics:
      return
    if self._agree_fn is None:

      def agree():
        for variable in statistics:
          variable.assign(variable.read_value())

      self._agree_fn = tf.function(agree, autograph=False)
    self._agree_fn()

  def _parts_of_loop(self, num_steps: int) -> Iterator[loop_parts.Part]:
    """Cuts a loop where a program is compiled, which is timed apart, and where one is looked at."""
    length = self.plan.steps_per_execution if self.plan is not None and self._owns_loop() else 1

    def is_alone(step, num_steps):
      return self._inspector.is_due(step, num_steps) or self.profiler.covers(step, num_steps)

    return loop_parts.cut(int(self.global_step.numpy()), num_steps, length, self._programs_run, is_alone)

  def _run_part(self, part: loop_parts.Part, step: int) -> float:
    """Runs a part of the loop, after so many steps; returns the seconds that its own steps took."""
    if not part.alone:
      return self._run_loop(part.steps)
    with self.profiler.tracing(step, part.steps):
      if not self._inspector.is_due(step, part.steps):
        return self._run_loop(part.steps)
      seconds = self._run_loop(part.steps, lambda: self._inspector.run(self._train_iter, part.steps, step))
      return seconds - self._inspector.seconds

  def _run_loop(self, num_steps: int, run: Callable[[], None] | None = None) -> float:
    """Runs the loop, or `run` in its place; returns the seconds that it took."""
    start, first_step = time.perf_counter(), int(self.global_step.numpy())
    try:
      if run is None:
        self._train_loop_fn(self._train_iter, tf.constant(num_steps, tf.int32))
      else:
        run()
    except tf.errors.OutOfRangeError as error:
      raise self._end_of_data() from error
    except (tf.errors.OpError, UnicodeDecodeError) as error:
      explained = self._explain(error)
      if explained is None:
        raise
      raise explained from error
    # Waits for the device. A loop in Python ends without a word where the data end.
    if int(self.global_step.numpy()) < first_step + num_steps and type(self).train_step is Trainer.train_step:
      raise self._end_of_data()
    return time.perf_counter() - start

  def _explain(self, error: Exception) -> errors.UserError | None:
    """What a step has raised, where it tells of the user's model or data; None elsewhere."""
    if self.plan is not None and self.plan.jit_compile and _is_compile_error(error):
      return errors.UserError(
        f'runtime.enable_xla: XLA cannot compile the step of {type(self.task).__name__} '
        f'({task_step.compiler_message(error)}); set it to false'
      )
    step = int(self.global_step.numpy())
    # The counter of steps does not wait for the loss.
    batches = [number for at in (step, step + 1) if at for number in self._input.batches_of(at)]
    return self.inputs['train_data'].explain(error, step, self.model, batches)

  def examine_step(self, step: int) -> str:
    """What is wrong with the inputs of a step (the first: 1) that was not finite; '' where nothing is found."""
    return self.inputs['train_data'].examine(self._input.batches_of(step), self.model)

  def _end_of_data(self) -> errors.UserError:
    step = int(self.global_step.numpy())
    if not step and not self.data_offset:
      return self.inputs['train_data'].no_examples(self.pace.examples_per_step)
    return training_input.ended(step)

  def prepare_training(self) -> None:
    """Makes the input start at this step, and decides how the step is compiled. Does nothing the second time."""
    if self._train_iter is None:
      dataset = self._input.after(int(self.global_step.numpy()), self.distribute_dataset)
      if dataset is not None:
        self.train_dataset = dataset
      self._train_iter = tf.nest.map_structure(iter, self.train_dataset)
    if type(self).train_step is Trainer.train_step:
      self._plan_step()

  def create_variables(self) -> bool:
    """See base class. Variables of the trainer's optimizer too."""
    if self._step is None or self._is_async:
      return super().create_variables()
    self.prepare_training()
    if self.plan is None or self.plan.manual_optimization:  # Of such a step nothing was made by its plan.
      if not self.config.trainer.train_tf_function:
        return False
      tf.function(lambda iterator: self.train_step(iterator)).get_concrete_function(self._train_iter)
    return super().create_variables()

  def restart_input(self) -> None:
    """Lets the next loop take its input from `global_step` on. To be called when the step was set back."""
    if self._step is None:
      return
    # TensorFlow may take a minute to delete an iterator. No daemon: it must not run on while the process ends.
    iterator, self._train_iter = [self._train_iter], None
    threading.Thread(target=iterator.clear, name='delete_iterator').start()

  def _plan_step(self):
    step = self._step
    if step.plan is not None:
      return
    with self.strategy.scope():
      self._choose_plan(step)
    if self._ema is not None:
      self._ema.check_covers(self.model)
    self._check_parameter_groups()  # Some models have no variables until their first call.
    logging.info('Training step: %s', step.plan)

  @tf.autograph.experimental.do_not_convert
  def _plan_inside_a_trace(self):
    """Plans, which traces too, in a thread of its own: tf.init_scope would leave the graph, but pauses every tape."""
    with futures.ThreadPoolExecutor(1) as thread:
      thread.submit(self._plan_step).result()

  def _choose_plan(self, step):
    runtime, trainer = self._settings.runtime, self._settings.trainer
    traits = step.probe(self.take_inputs, self._train_iter, check_xla=runtime.enable_xla == 'auto')
    if self._parameter_groups is not None:  # The frozen have slots too: a later run may thaw them.
      gradient_tap.build(self.optimizer, self.model.trainable_variables)
    if traits.owns_updates and self.gradient_accumulation_steps > 1:
      raise errors.UserError(
        f'trainer.gradient_accumulation_steps: {self.gradient_accumulation_steps} needs a task that calls '
        f'optimizer.apply_gradients once a step; {type(self.task).__name__} calls it {traits.num_updates} times on '
        f"the trainer's optimizer{_beside(traits)} and owns its updates. Set it to 1, and accumulate in the task"
      )
    if traits.owns_updates and trainer.loss_spike.factor:
      raise errors.UserError(
        f'trainer.loss_spike.factor: {type(self.task).__name__} calls optimizer.apply_gradients {traits.num_updates} '
        f'times a step{_beside(traits)} and owns its updates, which cannot be left out. Set it to 0'
      )
    plan = step_plan.choose_plan(
      traits,
      enable_xla=runtime.enable_xla,
      device_type=distribute.device_type(self.strategy),
      single_trace=step.single_trace,
      steps_per_execution=trainer.steps_per_execution if self._owns_loop() else 1,
      inputs_by=type(self).__name__ if self._takes_own_inputs() else '',
      steps_per_loop=trainer.steps_per_loop,
      gradient_accumulation_steps=self.gradient_accumulation_steps,
      run_eagerly=not trainer.train_tf_function,
    )
    step.set_plan(plan, traits)

  def _owns_loop(self) -> bool:
    """Whether no subclass stands between the loop and the steps."""
    return type(self).train_step is Trainer.train_step and self._settings.trainer.train_tf_while_loop

  def _takes_own_inputs(self) -> bool:
    """Whether `next_train_inputs` is not Model Garden's, and so may read the step or the model."""
    return getattr(self.next_train_inputs, '__func__', None) is not official_trainer.Trainer.next_train_inputs

  def create_train_loop_fn(self):
    """The loop over `train_step`; in the fused shape over whole programs of steps."""
    plan = self.plan
    if plan is None or plan.steps_per_execution == 1 or not self._owns_loop():
      return super().create_train_loop_fn()

    def fused_loop(iterator, num_steps):
      for _ in tf.range(num_steps // plan.steps_per_execution):
        with tf.name_scope(''):
          self._step.run([self._next_micro_batches(iterator, i) for i in range(plan.steps_per_execution)])
      for _ in tf.range(num_steps % plan.steps_per_execution):
        with tf.name_scope(''):
          self.train_step(iterator)

    return tf.function(fused_loop)

  def train_step(self, iterator):
    """One update: see base class."""
    if self._is_async:
      super().train_step(iterator)
      return
    if self._step.plan is None:  # A subclass owns the loop, and its trace has come here first.
      self._plan_inside_a_trace()
    self._step.run([self._next_micro_batches(iterator)])

  def take_batches(self) -> list[Any]:
    """Takes the batches of the next step, for whoever runs that step. After `prepare_training`."""
    return self._next_micro_batches(self._train_iter)

  @property
  def training_step(self) -> training_step_lib.TrainingStep:
    """What runs the steps of a trainer that trains."""
    assert self._step is not None
    return self._step

  def take_inputs(self, iterator: Any, micro_step: int = 0, steps_ahead: int = 0) -> Any:
    """`next_train_inputs`, which may ask for the step and for its seeds. Cross-replica context.

    Args:
      iterator: the training iterator.
      micro_step: for which micro-batch of the step.
      steps_ahead: for which step, counted from the next one.
    """
    with step_random.step_key(self._inputs_key(micro_step, steps_ahead)):
      return self.next_train_inputs(iterator)

  @tf.autograph.experimental.do_not_convert
  def _inputs_key(self, micro_step, steps_ahead):
    return step_random.StepKey(
      seed=self._settings.runtime.seed,
      step=self.global_step.read_value() + steps_ahead,
      micro_step=micro_step,
      num_micro_steps=self.gradient_accumulation_steps,
      purpose='inputs',
    )

  def _next_micro_batches(self, iterator, steps_ahead=0):
    """Takes the batches of one update, and notes how long that took. Runs on the host."""
    with tf.control_dependencies([self.global_step.read_value()]):
      start = _timestamp()
    with tf.control_dependencies([start]):
      batches = [self.take_inputs(iterator, i, steps_ahead) for i in range(self.gradient_accumulation_steps)]
    arrived = [t for t in tf.nest.flatten(batches, expand_composites=True) if tf.is_tensor(t)]
    with tf.control_dependencies(arrived):
      self._data_wait.assign_add(_timestamp() - start)
    return batches

  def train_loop_end(self):
    """The logs of the loop.

    Returns:
      The training metrics, every scalar that the task's step logs, training_loss, grad_norm (of the reduced gradient,
      before clipping), learning_rate, optimizer_iterations and model_global_step; means over the loop's steps.
    """
    means = self._step.means if self._step is not None else None
    skipped_loss = means.skipped_loss() if means is not None else None
    logs = super().train_loop_end()
    if means is not None:
      if skipped_loss is not None:
        logs[self.train_loss.name] = skipped_loss
      for name, value in means.take_logs().items():
        logs.setdefault(name, value)
      self._step.input_shapes.count(self._max_silent_recompilations)
    logs['learning_rate'] = tf.convert_to_tensor(logs['learning_rate'])  # Not the variable, which goes on to change.
    if hasattr(self.optimizer, 'iterations'):
      logs['optimizer_iterations'] = self.optimizer.iterations.read_value()
    logs['model_global_step'] = self.global_step.read_value()
    if self._step is not None:
      next_batch = self._input.batches_of(int(self.global_step.numpy()) + 1)[0]
      size = getattr(getattr(self.config.task, 'train_data', None), 'global_batch_size', 0) or 0
      logs = self._with_skips(logs, self.inputs['train_data'], next_batch * size)
    return logs

  def checkpoint_restored(
    self, keep_hyperparameters: bool = False, data_offset: int = 0, forget_skips: bool = False
  ) -> None:
    """To be called after a restore: counts and reads on from what the checkpoint holds.

    Args:
      data_offset: how many updates further than its number a step finds its batches.
      forget_skips: whether a rollback came after the checkpoint, and skips are counted anew.
      keep_hyperparameters: whether the optimizer's constants (learning rate, momentum, ...) are to be what the
        configuration says, because that has changed since, and not what the checkpoint holds.
    """
    if keep_hyperparameters and self._step is not None:
      for variable, value in zip(gradient_tap.hyperparameters(self.optimizer), self._hyperparameters):
        variable.assign(value)
    self._input.data_offset = data_offset
    if forget_skips and self._step is not None:
      self._step_state.forget_skips()
    self._num_skips_restored = self.num_skips
    self.restart_input()

  @property
  def num_skips(self) -> int:
    """Updates left out since the start or the last rollback."""
    return int(self._step_state.num_skips.numpy()) if self._step is not None else 0

  @property
  def num_skips_restored(self) -> int:
    """Updates left out before this process began."""
    return self._num_skips_restored


def _beside(traits: step_plan.StepTraits) -> str:
  """What is to be said of other optimizers' updates."""
  return f', {traits.num_other_updates} times on others,' if traits.num_other_updates else ''


def _timestamp() -> tf.Tensor:
  """Seconds since 1970: float64 scalar. TensorFlow's own op is refused under op determinism."""
  if tf_internals.is_op_determinism_enabled():
    return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
  return tf.timestamp()


def _is_compile_error(error: Exception) -> bool:
  known = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
  return isinstance(error, known) and any(words in str(error) for words in _COMPILE_ERRORS)


def _is_one_cpu(strategy: tf.distribute.Strategy) -> bool:
  return isinstance(strategy, tf.distribute.OneDeviceStrategy) and distribute.device_type(strategy) == 'CPU'
