"""The inner loop: Model Garden's Trainer, with compiled steps, accumulation, the finite guard and exact input."""

import threading
from typing import Any

import gin
from official.core import config_definitions as cfg
import orbit
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import model_garden_internals
from official_ext.data import pipelines
from official_ext.training.checkpoints import warm_start
from official_ext.training.devices import distribute
from official_ext.training.loop import base_evaluator
from official_ext.training.loop import no_training
from official_ext.training.loop import parameter_server
from official_ext.training.loop import profiling
from official_ext.training.loop import step_inputs
from official_ext.training.loop import synchronous
from official_ext.training.loop import training_input
from official_ext.training.loop import training_speed
from official_ext.training.optimization import parameter_groups
from official_ext.training.step import gradient_tap
from official_ext.training.step import inspection
from official_ext.training.step import step_parts
from official_ext.training.step import step_plan
from official_ext.training.step import step_random
from official_ext.training.step import step_state
from official_ext.training.step import training_step as training_step_lib


@gin.configurable('Trainer', module='official_ext')  # --gin_params="official_ext.Trainer.train = ..."
class Trainer(base_evaluator.Evaluator):
  """Trains any Model Garden task. Replaces `official.core.base_trainer.Trainer`, with all its override points.

  `train_step` runs one update on the batches that `next_train_inputs` takes; how it is compiled is decided when
  training begins (see step_plan.py). A subclass that overrides `train_step` owns the step, and may call this one.

  Attributes:
    training: runs the loops and their steps; chosen by the strategy when the trainer is made.
    profiler: the one that was handed in.
    parameter_groups: the groups of `optimizer_config.parameter_groups`; None if there are none.
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
    profiler: profiling.Profiler | None = None,
  ):
    """Initializes the trainer, inside the strategy's scope.

    Args:
      config: the experiment. One that lacks fields of this library, such as a plain one of Model Garden's, is
        upgraded (see definitions.py): `self.config` is the upgraded copy, and there is no other.
      task: see `official_ext.training.loop.base_task.Task`; any Model Garden task.
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
    self.profiler = profiler or profiling.Profiler()
    self._num_skips_restored = 0
    self._input = training_input.TrainingInput(
      task,
      getattr(self.config.task, 'train_data', None),
      self.gradient_accumulation_steps,
      is_custom=train_dataset is not None,
    )
    groups = getattr(self.config.trainer.optimizer_config, 'parameter_groups', ()) if train else ()
    self.parameter_groups = parameter_groups.install(groups, gradient_tap.inner_optimizer(optimizer), model)
    self.training = self._make_training(train, max_silent_recompilations)

  def _make_training(self, train: bool, max_silent_recompilations: int) -> no_training.NoTraining:
    """Chooses, for good, the part that runs the loops, and makes every part that this one calls."""
    if self._is_async:
      return parameter_server.ParameterServerTraining(self, train)
    if not train:
      return no_training.NoTraining(self)
    settings, seed = self.config.trainer, self.config.runtime.seed
    state = step_state.StepState()
    inputs = step_inputs.StepInputs(self, seed, self.gradient_accumulation_steps)
    step = training_step_lib.TrainingStep(
      step_parts.StepParts(
        task=self.task,
        model=self.model,
        optimizer=self.optimizer,
        metrics=self.train_metrics,
        train_loss=self.train_loss,
        global_step=self.global_step,
        state=state,
        strategy=self.strategy,
      ),
      step_parts.StepSettings(
        seed, self.gradient_accumulation_steps, settings.loss_spike, self.config.runtime.mesh, settings.sharding
      ),
    )
    inspector = inspection.Inspector(settings.inspect, step, self.optimizer, inputs.take, self.model)
    self.checkpoint.step_state = state
    return synchronous.SynchronousTraining(
      self, step, state, inputs, self._input, self.profiler, inspector, max_silent_recompilations
    )

  def check_parameter_groups(self) -> None:
    """Refuses parameter groups that do not fit the model's variables, which must exist."""
    if self.parameter_groups is not None:
      self.parameter_groups.check(self.model.trainable_variables)

  def check_variables(self) -> None:
    """Refuses averages and parameter groups that do not fit the model's variables, which must exist."""
    if self._ema is not None:
      self._ema.check_covers(self.model)
    self.check_parameter_groups()

  @property
  def owns_step(self) -> bool:
    """Whether `train_step` is this class's own, not a subclass's."""
    return type(self).train_step is Trainer.train_step

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
    """How many updates further than its number a step finds its batches: see `checkpoint_restored`."""
    return self._input.data_offset

  @property
  def steps_are_done(self) -> bool:
    """Whether the last loop has run all of its steps: a later failure has cost none of them."""
    return self.training.steps_are_done

  @property
  def plan(self) -> step_plan.StepPlan | None:
    """How the step is compiled; None before training has begun."""
    return self.training.plan

  @property
  def num_compilations(self) -> int:
    """The number of programs to which the training step was compiled so far."""
    return self.training.num_compilations

  @property
  def guards_updates(self) -> bool:
    """Whether this trainer trains, and skips updates that are not finite. A task's own updates are not tested."""
    return self.training.guards_updates

  @property
  def step_state(self) -> step_state.StepState:
    """The counters of the finite guard."""
    return self.training.state

  @property
  def speed(self) -> training_speed.TrainingSpeed:
    """The speed of training."""
    return self.training.speed

  @property
  def training_step(self) -> training_step_lib.TrainingStep:
    """The training step, of a trainer that trains."""
    return self.training.step

  def distribute_dataset(self, dataset_or_fn, *args, **kwargs):
    """See base class. If the configuration names no data, the error names the field that must."""
    is_validation = bool(args) and args[0] is getattr(self.config.task, 'validation_data', None)
    if callable(dataset_or_fn) and is_validation:
      dataset_or_fn = pipelines.transformed(dataset_or_fn, self._prepared_for_evaluation)
    try:
      with self.inputs['validation_data' if is_validation else 'train_data'].building():
        return self._distribute_dataset(dataset_or_fn, *args, **kwargs)
    except Exception as error:  # Each task fails in its own way.
      mistake = training_input.mistake_in_data(self.config, args[0] if args else None, error)
      if mistake is None:
        raise
      raise mistake from error

  def _prepared_for_evaluation(self, dataset: Any, input_context: tf.distribute.InputContext | None = None) -> Any:
    """The dataset without tf.data's tuning. Notes whether it never ends."""
    if isinstance(dataset, tf.data.Dataset) and tf.executing_eagerly():  # A parameter server makes it in a graph.
      self._evaluation_repeats |= pipelines.never_ends(dataset)
    return pipelines.without_autotune(dataset, input_context)

  def _distribute_dataset(self, dataset_or_fn, *args, **kwargs):
    if callable(dataset_or_fn) and _is_one_cpu(self.strategy):
      # There is nothing to distribute, and a DistributedDataset takes four times as long for a small batch.
      return dataset_or_fn(*args, **kwargs)
    return super().distribute_dataset(dataset_or_fn, *args, **kwargs)

  def initialize(self):
    """Lets the task start from `task.init_checkpoint`: see base class.

    Raises:
      UserError: it cannot; Model Garden's tasks continue without it if the folder is empty, or fail in their own ways.
    """
    path = getattr(self.config.task, 'init_checkpoint', '')
    # What was found, as Model Garden's tasks would go by the file named `checkpoint`, even into another folder.
    found = {'init_checkpoint': warm_start.find(path)} if path else {}
    try:
      with model_garden_internals.task_configured(self.task, **found):
        super().initialize()
    except errors.UserError:
      raise
    except (AssertionError, ValueError, tf.errors.OpError) as error:
      if not path:
        raise
      message = ' '.join(str(error).split())[:300]
      warm_start.hide_unrestored()
      raise errors.UserError(f'task.init_checkpoint: {path}: does not fit the model: {message}') from error

  # Training.

  def train(self, num_steps: tf.Tensor) -> orbit.runner.Output | None:
    """Runs `num_steps` updates: see base class."""
    return self.training.train(num_steps)

  def train_step(self, iterator):
    """One update: see base class."""
    self.training.train_step(iterator)

  def create_train_loop_fn(self):
    """Makes the loop over `train_step`; in the fused execution, over whole programs of steps."""
    return self.training.fused_loop() or super().create_train_loop_fn()

  @property
  def train_loop_fn(self) -> Any:
    """The loop of `create_train_loop_fn`, made once."""
    if self._train_loop_fn is None:
      self._train_loop_fn = self.create_train_loop_fn()
    return self._train_loop_fn

  @property
  def train_iterator(self) -> Any:
    """The iterator from which the next step takes its input; None before `prepare_training`."""
    return self._train_iter

  def examine_step(self, step: int) -> str:
    """What is wrong with the inputs of a step (the first: 1) that was not finite; '' if nothing is found."""
    return self.inputs['train_data'].examine(self._input.batches_of(step), self.model)

  def prepare_training(self) -> None:
    """Makes the input start at this step, and decides how the step is compiled. A second call does nothing."""
    if self._train_iter is None:
      dataset = self._input.after(int(self.global_step.numpy()), self.distribute_dataset)
      if dataset is not None:
        self.train_dataset = dataset
      self._train_iter = tf.nest.map_structure(iter, self.train_dataset)
    if self.owns_step:
      self.training.plan_step()

  def create_variables(self) -> bool:
    """See base class. Also creates the variables of the trainer's optimizer."""
    return self.training.create_variables() and super().create_variables()

  def _counts_batches(self) -> bool:
    """See base class."""
    return self.training.sees_batches and super()._counts_batches()

  def restart_input(self) -> None:
    """Lets the next loop take its input from `global_step` on. Call it when the step was set back."""
    if not self.training.restarts_input:
      return
    # TensorFlow may take a minute to delete an iterator. Not a daemon: it must not run while the process exits.
    iterator, self._train_iter = [self._train_iter], None
    threading.Thread(target=iterator.clear, name='delete_iterator').start()

  def take_batches(self) -> list[Any]:
    """Takes the batches of the next step, for a caller that runs it. Call it after `prepare_training`."""
    return self.training.inputs.take(self._train_iter)

  def take_inputs(self, iterator: Any) -> Any:
    """Calls `next_train_inputs` for the next step, whose number and seeds it may read. Cross-replica context."""
    return self.training.inputs.take_one(iterator)

  def train_loop_end(self):
    """The logs of the loop.

    Returns:
      The training metrics, every scalar that the task's step logs, training_loss, grad_norm (of the reduced gradient,
      before clipping), learning_rate, optimizer_iterations and model_global_step; means over the loop's steps.
    """
    replaced, added = self.training.take_logs()
    logs = super().train_loop_end()
    logs.update(replaced)
    for name, value in added.items():
      logs.setdefault(name, value)
    logs['learning_rate'] = tf.convert_to_tensor(logs['learning_rate'])  # Not the variable, which continues to change.
    if hasattr(self.optimizer, 'iterations'):
      logs['optimizer_iterations'] = self.optimizer.iterations.read_value()
    logs['model_global_step'] = self.global_step.read_value()
    return self.training.end_loop(logs)

  def checkpoint_restored(
    self, keep_hyperparameters: bool = False, data_offset: int = 0, forget_skips: bool = False
  ) -> None:
    """Continues counting and reading from the restored checkpoint. Call it after a restore.

    Args:
      data_offset: how many updates further than its number a step finds its batches.
      forget_skips: whether to count skips anew, because a rollback came after the checkpoint.
      keep_hyperparameters: whether the optimizer's constants (learning rate, momentum, ...) are those of the
        configuration, which has changed since, not those in the checkpoint.
    """
    if keep_hyperparameters:
      self.training.keep_hyperparameters()
    self._input.data_offset = data_offset
    if forget_skips:
      self.training.forget_skips()
    self._num_skips_restored = self.num_skips
    self.restart_input()

  @property
  def num_skips(self) -> int:
    """The number of updates skipped since the start or the last rollback."""
    return self.training.num_skips

  @property
  def num_skips_restored(self) -> int:
    """The number of updates skipped before this process began."""
    return self._num_skips_restored


def _is_one_cpu(strategy: tf.distribute.Strategy) -> bool:
  return isinstance(strategy, tf.distribute.OneDeviceStrategy) and distribute.device_type(strategy) == 'CPU'
