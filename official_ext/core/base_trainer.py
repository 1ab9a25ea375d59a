"""The inner loop: Model Garden's Trainer, with compiled steps, accumulation, the finite guard and exact input."""

from concurrent import futures
import dataclasses
import threading
import time
from typing import Any, Callable, Iterator, List, Optional, Set, Tuple

from absl import logging
import gin
import orbit
import tensorflow as tf
from tensorflow.python.distribute import values
from tensorflow.python.framework import config as tf_config

from official.core import config_definitions as cfg
from official_ext.core import base_evaluator
from official_ext.core import compiled_steps
from official_ext.core import config_definitions
from official_ext.core import distribute
from official_ext.core import errors
from official_ext.core import gradient_tap
from official_ext.core import step_plan
from official_ext.core import step_random
from official_ext.core import step_state
from official_ext.core import step_trace
from official_ext.core import warm_start
from official_ext.data import pipelines
from official_ext.data import position


_COMPILE_ERRORS = ('XLA', 'Detected unsupported operations')


@dataclasses.dataclass
class Pace:
  """How fast the last training loop went.

  Attributes:
    steps: steps that were timed.
    seconds: wall time of these steps.
    data_wait_seconds: of these, spent waiting for input.
    compile_seconds: wall time of the first run of each program in this process, which compiles it.
    examples_per_step: examples in one update, 0 where `global_batch_size` is not set.
    examples_per_epoch: examples in the training data, 0 where the task does not know.
  """

  steps: int = 0
  seconds: float = 0.0
  data_wait_seconds: float = 0.0
  compile_seconds: float = 0.0
  examples_per_step: int = 0
  examples_per_epoch: int = 0

  def start_loop(self) -> None:
    """Forgets the loop before."""
    self.steps, self.seconds, self.data_wait_seconds = 0, 0.0, 0.0

  def add(self, steps: int, seconds: float, data_wait_seconds: float) -> None:
    """Adds steps of the present loop."""
    self.steps += steps
    self.seconds += seconds
    self.data_wait_seconds += data_wait_seconds


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
        config_definitions.upgrade(config)
        if isinstance(config, cfg.ExperimentConfig)
        else config_definitions.ExperimentConfig()
    )
    self._max_silent_recompilations = max_silent_recompilations
    self._num_compilations = 1
    self._custom_train_dataset = train_dataset is not None
    self._num_skips_restored = 0
    self.data_offset = 0  # How many updates further than its number a step finds its batches: rollbacks left them out.
    self._input_start = 0  # The batch at which `train_dataset` begins.
    self._agree_fn: Optional[Callable[[], None]] = None
    self._programs_run: Set[int] = set()  # Their lengths, in steps.
    self._step: Optional[compiled_steps.TrainingStep] = None
    if train and not self._is_async:
      self._init_training()

  def _init_training(self):
    if getattr(self.model, 'built', False) and self.model.trainable_variables:
      gradient_tap.build(self.optimizer, self.model.trainable_variables)  # So that a restore finds all its places.
    self._hyperparameters = [variable.numpy() for variable in gradient_tap.hyperparameters(self.optimizer)]
    step_random.key_random_layers(self.model)
    self._step_state = step_state.StepState()
    self._data_wait = tf.Variable(
        0.0, dtype=tf.float64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    data = getattr(self.config.task, 'train_data', None)
    batch_size = getattr(data, 'global_batch_size', 0) or 0
    num_examples = self.task.num_examples(data) if hasattr(self.task, 'num_examples') else None
    self.pace = Pace(
        examples_per_step=batch_size * self.gradient_accumulation_steps, examples_per_epoch=num_examples or 0)
    self._checkpoint.step_state = self._step_state
    self._step = compiled_steps.TrainingStep(
        task=self.task,
        model=self.model,
        optimizer=self.optimizer,
        metrics=self.train_metrics,
        train_loss=self.train_loss,
        global_step=self.global_step,
        state=self._step_state,
        strategy=self.strategy,
        seed=self._settings.runtime.seed,
        gradient_accumulation_steps=self.gradient_accumulation_steps,
        loss_spike_factor=self._settings.trainer.loss_spike.factor,
        loss_spike_window=self._settings.trainer.loss_spike.window,
    )

  @property
  def gradient_accumulation_steps(self) -> int:
    """Batches of `global_batch_size` that make one update."""
    return self._settings.trainer.gradient_accumulation_steps

  @property
  def plan(self) -> Optional[step_plan.StepPlan]:
    """How the step is compiled; None before training has begun."""
    return self._step.plan if self._step is not None and self._step.planned else None

  @property
  def num_compilations(self) -> int:
    """How many programs the training step was compiled to so far."""
    return self._num_compilations

  @property
  def guards_updates(self) -> bool:
    """Whether this trainer trains, and leaves out updates that are not finite. A task's own updates are not tested."""
    return self._step is not None and not (self._step.planned and self._step.plan.manual_optimization)

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
      mistake = _mistake_in_data(self.config, args[0] if args else None, error)
      if mistake is None or isinstance(error, errors.UserError):
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

  def train(self, num_steps: tf.Tensor) -> Optional[orbit.runner.Output]:
    """Runs `num_steps` updates: see base class."""
    if self._is_async:
      return super().train(num_steps)
    self.prepare_training()
    self.train_loop_begin()
    if self._train_loop_fn is None:
      self._train_loop_fn = self.create_train_loop_fn()
    self.pace.start_loop()
    for steps, compiles in self._parts_of_loop(int(num_steps)):
      self._data_wait.assign(0.0)
      seconds = self._run_loop(steps)
      if compiles:
        self.pace.compile_seconds += seconds
      else:
        self.pace.add(steps, seconds, float(self._data_wait.numpy()))
    self._agree_on_statistics()
    return self.train_loop_end()

  def _agree_on_statistics(self):
    """Gives every replica the mean of what each has gathered by itself, such as batch normalisation's statistics.

    A checkpoint holds that mean alone: a run that goes on from it must find what the uninterrupted one has.
    """
    statistics = [v for v in self.model.variables if isinstance(v, values.SyncOnReadVariable)]
    if not statistics:
      return
    if self._agree_fn is None:

      def agree():
        for variable in statistics:
          variable.assign(variable.read_value())

      self._agree_fn = tf.function(agree, autograph=False)
    self._agree_fn()

  def _parts_of_loop(self, num_steps: int) -> Iterator[Tuple[int, bool]]:
    """Cuts a loop where a program is about to run for the first time, and so is compiled: that is timed apart.

    A loop runs whole programs of `steps_per_execution` steps, then what is left over step by step: two programs.

    Yields:
      (steps, whether they are the first run of a program).
    """
    length = self.plan.steps_per_execution if self.plan is not None and self._owns_loop() else 1
    known = 0
    for program, steps in ((length, num_steps - num_steps % length), (1, num_steps % length)):
      if steps and program not in self._programs_run:
        if known:
          yield known, False
        yield program, True
        self._programs_run.add(program)
        known, steps = 0, steps - program
      known += steps
    if known:
      yield known, False

  def _run_loop(self, num_steps: int) -> float:
    """Runs the loop, returns the seconds that it took."""
    start, first_step = time.perf_counter(), int(self.global_step.numpy())
    try:
      self._train_loop_fn(self._train_iter, tf.constant(num_steps, tf.int32))
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

  def _explain(self, error: Exception) -> Optional[errors.UserError]:
    """What a step has raised, where it tells of the user's model or data; None elsewhere."""
    if self.plan is not None and self.plan.jit_compile and _is_compile_error(error):
      return errors.UserError(
          f'runtime.enable_xla: XLA cannot compile the step of {type(self.task).__name__} '
          f'({step_trace.compiler_message(error)}); set it to false')
    step = int(self.global_step.numpy())
    # The counter of steps does not wait for the loss.
    batches = [number for at in (step, step + 1) if at for number in self._batches_of(at)]
    return self.inputs['train_data'].explain(error, step, self.model, batches)

  def _batches_of(self, step: int) -> List[int]:
    """The numbers of the batches that a step (the first: 1) takes."""
    first = (step - 1 + self.data_offset) * self.gradient_accumulation_steps
    return list(range(first, first + self.gradient_accumulation_steps))

  def examine_step(self, step: int) -> str:
    """What is wrong with the inputs of a step (the first: 1) that was not finite; '' where nothing is found."""
    return self.inputs['train_data'].examine(self._batches_of(step), self.model)

  def _end_of_data(self) -> errors.UserError:
    if not self.global_step.numpy() and not self.data_offset:
      return self.inputs['train_data'].no_examples(self.pace.examples_per_step)
    return errors.UserError(
        f'task.train_data: the examples ended at step {int(self.global_step.numpy())}, inside a training loop; let the '
        'dataset repeat, or set trainer.train_steps to what it holds')

  def prepare_training(self) -> None:
    """Makes the input start at this step, and decides how the step is compiled. Does nothing the second time."""
    if self._train_iter is None:
      self._start_input()
      self._train_iter = tf.nest.map_structure(iter, self.train_dataset)
    if type(self).train_step is Trainer.train_step:
      self._plan_step()

  def restart_input(self) -> None:
    """Lets the next loop take its input from `global_step` on. To be called when the step was set back."""
    if self._step is None:
      return
    # TensorFlow may take a minute to delete an iterator. No daemon: it must not run on while the process ends.
    iterator, self._train_iter = [self._train_iter], None
    threading.Thread(target=iterator.clear, name='delete_iterator').start()

  def _start_input(self):
    """Lets the input begin after the batches that the steps so far have used."""
    num_batches = (int(self.global_step.numpy()) + self.data_offset) * self.gradient_accumulation_steps
    if num_batches == self._input_start:
      return
    if self._custom_train_dataset:
      logging.warning('The training dataset was handed to the trainer: it starts from its beginning.')
      return
    params = self.config.task.train_data
    with position.starting_at(num_batches) as start:
      dataset = self.distribute_dataset(self.task.build_inputs, params)
      if not start.honoured and num_batches:
        dataset = self.distribute_dataset(self._skipping_inputs(num_batches), params)
    self.train_dataset = dataset
    self._input_start = num_batches

  def _skipping_inputs(self, num_batches):
    """`build_inputs` whose pipelines leave out what `num_batches` global batches took from them."""
    logging.warning('The input of %s is a tf.data pipeline: it is read again up to batch %d, which costs as long as '
                    'reading these batches did.%s', type(self.task).__name__, num_batches,
                    '' if getattr(self.config.task.train_data, 'deterministic', None) is not False else
                    ' With task.train_data.deterministic=false the order of the examples differs.')

    def skip(dataset, input_context):
      local_replicas = 1
      if input_context is not None:
        local_replicas = input_context.num_replicas_in_sync // input_context.num_input_pipelines
      return dataset.skip(num_batches * local_replicas)

    return pipelines.transformed(self.task.build_inputs, skip)

  def _plan_step(self):
    step = self._step
    if step.planned:
      return
    with self.strategy.scope():
      self._choose_plan(step)
    logging.info('Training step: %s', step.plan)

  @tf.autograph.experimental.do_not_convert
  def _plan_inside_a_trace(self):
    """Plans, which traces too, in a thread of its own: tf.init_scope would leave the graph, but pauses every tape."""
    with futures.ThreadPoolExecutor(1) as thread:
      thread.submit(self._plan_step).result()

  def _choose_plan(self, step):
    runtime, trainer = self._settings.runtime, self._settings.trainer
    traits = step.probe(self.next_train_inputs, self._train_iter, check_xla=runtime.enable_xla == 'auto')
    if traits.num_updates != 1 and self.gradient_accumulation_steps > 1:
      raise errors.UserError(
          f'trainer.gradient_accumulation_steps: {self.gradient_accumulation_steps} needs a task that calls '
          f'optimizer.apply_gradients once a step; {type(self.task).__name__} calls it {traits.num_updates} times on '
          "the trainer's optimizer and owns its updates. Set it to 1, and accumulate in the task")
    if traits.num_updates != 1 and trainer.loss_spike.factor:
      raise errors.UserError(
          f'trainer.loss_spike.factor: {type(self.task).__name__} calls optimizer.apply_gradients {traits.num_updates} '
          'times a step and owns its updates, which cannot be left out. Set it to 0')
    plan = step_plan.choose_plan(
        traits,
        enable_xla=runtime.enable_xla,
        device_type=distribute.device_type(self.strategy),
        single_trace=step.single_trace,
        steps_per_execution=trainer.steps_per_execution if self._owns_loop() else 1,
        steps_per_loop=trainer.steps_per_loop,
        gradient_accumulation_steps=self.gradient_accumulation_steps,
        run_eagerly=not trainer.train_tf_function,
    )
    step.set_plan(plan, traits.static_shapes)
    if plan.shape == 'fused' and traits.sparse_gradients and traits.static_shapes:
      xla_error = step.update_error()
      if xla_error:
        plan = step_plan.without_fused_update(plan, xla_error)
        step.set_plan(plan, traits.static_shapes)

  def _owns_loop(self) -> bool:
    """Whether no subclass stands between the loop and the steps."""
    return type(self).train_step is Trainer.train_step and self._settings.trainer.train_tf_while_loop

  def create_train_loop_fn(self):
    """The loop over `train_step`; in the fused shape over whole programs of steps."""
    plan = self.plan
    if plan is None or plan.steps_per_execution == 1 or not self._owns_loop():
      return super().create_train_loop_fn()

    def fused_loop(iterator, num_steps):
      for _ in tf.range(num_steps // plan.steps_per_execution):
        with tf.name_scope(''):
          self._step.run_many([self._next_micro_batches(iterator) for _ in range(plan.steps_per_execution)])
      for _ in tf.range(num_steps % plan.steps_per_execution):
        with tf.name_scope(''):
          self.train_step(iterator)

    return tf.function(fused_loop)

  def train_step(self, iterator):
    """One update: see base class."""
    if self._is_async:
      super().train_step(iterator)
      return
    if not self._step.planned:  # A subclass owns the loop, and its trace has come here first.
      self._plan_inside_a_trace()
    self._step.run(self._next_micro_batches(iterator))

  def _next_micro_batches(self, iterator):
    """Takes the batches of one update, and notes how long that took. Runs on the host."""
    with tf.control_dependencies([self.global_step.read_value()]):
      start = _timestamp()
    with tf.control_dependencies([start]):
      batches = [self.next_train_inputs(iterator) for _ in range(self.gradient_accumulation_steps)]
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
    all_skipped = self._step is not None and not self.train_loss.count.numpy() and self._step.skipped_loss.count.numpy()
    logs = super().train_loop_end()
    if self._step is not None:
      if all_skipped:
        logs[self.train_loss.name] = self._step.skipped_loss.result()
      for mean in [*self._step.log_means.values(), self._step.grad_norm]:
        if mean.count.numpy():
          logs.setdefault(mean.name, mean.result())
        mean.reset_states()
      self._step.skipped_loss.reset_states()
      self._count_compilations()
    logs['learning_rate'] = tf.convert_to_tensor(logs['learning_rate'])  # Not the variable, which goes on to change.
    if hasattr(self.optimizer, 'iterations'):
      logs['optimizer_iterations'] = self.optimizer.iterations.read_value()
    logs['model_global_step'] = self.global_step.read_value()
    if self._step is not None:
      next_batch = self._batches_of(int(self.global_step.numpy()) + 1)[0]
      size = getattr(getattr(self.config.task, 'train_data', None), 'global_batch_size', 0) or 0
      logs = self._with_skips(logs, self.inputs['train_data'], next_batch * size)
    return logs

  def _count_compilations(self):
    shapes = self._step.input_shapes()
    before, self._num_compilations = self._num_compilations, max(1, len(shapes))
    if self._num_compilations > max(before, self._max_silent_recompilations):
      varying = ', '.join(shapes[:8])
      logging.warning(
          'The training step was compiled %d times, because the shapes of its inputs vary: %s. Pad them to one shape '
          '(drop_remainder, padded_batch), or set runtime.enable_xla=false.', self._num_compilations, varying)

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
    self.data_offset = data_offset
    if forget_skips and self._step is not None:
      self._step_state.forget_skips()
    self._num_skips_restored = int(self._step_state.num_skips.numpy()) if self._step is not None else 0
    self.restart_input()

  @property
  def num_skips_restored(self) -> int:
    """Updates left out before this process began."""
    return self._num_skips_restored


def _mistake_in_data(config: Any, data: Any, error: Exception) -> Optional[errors.UserError]:
  """What in a data configuration has led to an error of Model Garden's; None where nothing is known to be wrong."""
  path = next((f'task.{name}' for name in ('train_data', 'validation_data')
               if data is not None and getattr(config.task, name, None) is data), None)
  if path is None:
    return None
  # A task may bring the examples of our DataConfig itself: its error tells more.
  if isinstance(data, config_definitions.DataConfig) or (
      getattr(data, 'input_path', None) or getattr(data, 'tfds_name', None)):
    return None
  return errors.UserError(
      f'{path}: names no data; set {path}.input_path to files, or {path}.tfds_name and {path}.tfds_split '
      f'({type(error).__name__}: {" ".join(str(error).split())[:150]})')


def _timestamp() -> tf.Tensor:
  """Seconds since 1970: float64 scalar. TensorFlow's own op is refused under op determinism."""
  if tf_config.is_op_determinism_enabled():
    return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
  return tf.timestamp()


def _is_compile_error(error: Exception) -> bool:
  known = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
  return isinstance(error, known) and any(words in str(error) for words in _COMPILE_ERRORS)


def _is_one_cpu(strategy: tf.distribute.Strategy) -> bool:
  return isinstance(strategy, tf.distribute.OneDeviceStrategy) and distribute.device_type(strategy) == 'CPU'
