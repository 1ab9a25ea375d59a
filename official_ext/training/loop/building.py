"""Builds the trainer of a run and the actions of its events; refuses errors that only a trainer can show."""

from collections.abc import Callable
import functools
import inspect
from typing import Any

from official.core import train_utils
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.training.actions import early_stopping
from official_ext.training.actions import reduce_lr_on_plateau
from official_ext.training.actions import triggers
from official_ext.training.checkpoints import best
from official_ext.training.config import definitions
from official_ext.training.config import trainer_parts
from official_ext.training.devices import workers as workers_lib
from official_ext.training.loop import base_trainer
from official_ext.training.loop import experiment_run
from official_ext.training.loop import loop_task
from official_ext.training.loop import memory_checks
from official_ext.training.loop import profiling
from official_ext.training.loop import required_fields
from official_ext.training.loop import run_checks
from official_ext.training.optimization import learning_rate_scale
from official_ext.training.step import gradient_tap
from official_ext.training.step import keras_version


def build_trainer_and_actions(experiment: experiment_run.Experiment) -> tuple[Any, list[Any]]:
  """Builds (trainer, actions of the run's events); refuses metrics that nothing reports, and steps that cannot run."""
  strategy, task, mode, params = experiment.strategy, experiment.task, experiment.mode, experiment.params
  if isinstance(task, loop_task.LoopTask):
    return _make_owned_loop(experiment), []
  profiler = _make_profiler(experiment)
  trainer = experiment.options.trainer or build_trainer(
    strategy, task, params, experiment.model_dir, experiment.trains, experiment.evaluates, mode, profiler
  )
  run_checks.check_metrics(params.trainer, task, trainer, mode, experiment.evaluates)
  if experiment.trains:
    run_checks.check_learning_rate(experiment, trainer)
    trainer.try_step()
  return trainer, build_event_actions(params.trainer, task, trainer, mode) if experiment.trains else []


def _make_owned_loop(experiment: experiment_run.Experiment) -> loop_task.OwnedLoop:
  """The loop of a task that owns it; refuses options that are for the library's loop."""
  options = experiment.options
  if experiment.params.runtime.mesh.sizes():
    raise errors.UserError(f'runtime.mesh: {type(experiment.task).__name__} trains in a custom loop, without it')
  given = {'checkpoint': options.checkpoint, 'profile_steps': options.profile_steps, 'trainer': options.trainer}
  for name, value in given.items():
    if value:
      raise errors.UserError(f'--{name}: {type(experiment.task).__name__} trains in a custom loop, without it')
  return loop_task.OwnedLoop(
    experiment.task, experiment.strategy, experiment.params, experiment.mode, experiment.model_dir, options.watch
  )


def _make_profiler(experiment: experiment_run.Experiment) -> profiling.Profiler | None:
  """Makes the profiler for the run's trainer; None if it must not profile."""
  steps = experiment.options.profile_steps
  if not steps or not experiment.trains:
    return None
  if experiment.options.trainer is not None:
    raise errors.UserError(
      'RunOptions.profile_steps: a trainer that is handed over has a profiler already; make it with '
      'profiler=profiling.Profiler(steps, model_dir)'
    )
  return profiling.Profiler(steps, experiment.model_dir) if experiment.is_chief else None


def build_trainer(
  strategy: tf.distribute.Strategy,
  task: protocols.Task,
  params: definitions.ExperimentConfig,
  model_dir: str | None,
  train: bool,
  evaluate: bool,
  mode: str = 'train_and_eval',
  profiler: profiling.Profiler | None = None,
) -> base_trainer.Trainer:
  """Builds model, optimizer and trainer inside the strategy's scope; `mode` decides who writes the best checkpoints.

  Raises:
    UserError: a part cannot be built, the task's own trainer does not derive from this library's or takes no
      `profiler`, or the task owns its loop.
  """
  if isinstance(task, loop_task.LoopTask):
    raise errors.UserError(f'--experiment: {type(task).__name__} trains in a custom loop, and has no step to run')
  trainer_cls = getattr(task, 'trainer_cls', None) or base_trainer.Trainer
  experiment_run.check_trainer_class(f'{type(task).__name__}.trainer_cls', trainer_cls)
  if profiler is not None:
    trainer_cls = _with_profiler(trainer_cls, profiler)
  if train and not params.runtime.mesh.sizes():  # A mesh divides them.
    memory_checks.check_least(task, params.trainer.optimizer_config.optimizer.type, strategy)
  exporter = None
  if evaluate:
    exporter = best.maybe_create(
      params.trainer, model_dir, mode, strategy.extended.should_checkpoint, workers_lib.get(strategy)
    )
  with strategy.scope(), required_fields.named(params.task, type(task).__name__), keras_version.building(task):
    trainer = train_utils.create_trainer(
      params,
      task,
      train=train,
      evaluate=evaluate,
      checkpoint_exporter=exporter,
      trainer_cls=trainer_cls,
    )
  if evaluate:
    trainer.check_evaluation_ends(params.trainer.validation_steps)
  return trainer


def _with_profiler(trainer_cls: Callable[..., object], profiler: profiling.Profiler) -> Callable[..., Any]:
  try:
    inspect.signature(trainer_cls).bind_partial(profiler=profiler)
  except TypeError as error:
    raise errors.UserError(
      f'--profile_steps: {getattr(trainer_cls, "__name__", trainer_cls)} takes no argument `profiler`; let its '
      'constructor take **kwargs and hand them on to official_ext.Trainer'
    ) from error
  return functools.partial(trainer_cls, profiler=profiler)


def build_event_actions(
  config: definitions.TrainerConfig, task: protocols.Task, trainer: base_trainer.Trainer, mode: str
) -> list[Any]:
  """Makes the actions that the task and the configuration take at the events of a training."""
  with trainer.strategy.scope():
    found = list(task.build_actions(trainer)) if hasattr(task, 'build_actions') else []
  if config.reduce_lr_on_plateau.metric and mode == 'train_and_eval':
    found.append(make_reduce_lr(config.reduce_lr_on_plateau, trainer))
  if config.early_stopping.metric and 'eval' in mode:
    found.append(early_stopping.EarlyStopping(config.early_stopping))
  for action in found:
    if isinstance(action, triggers.Trigger):
      action.prepare(mode)
  return found


def make_reduce_lr(
  config: trainer_parts.ReduceLROnPlateauConfig, trainer: base_trainer.Trainer
) -> reduce_lr_on_plateau.ReduceLROnPlateau:
  """Puts a factor on the learning rate of the trainer's optimizer, and makes the action that lowers it.

  Raises:
    UserError: the optimizer has a learning rate that cannot be lowered.
  """
  with trainer.strategy.scope():
    try:
      scale = learning_rate_scale.LearningRateScale(gradient_tap.inner_optimizer(trainer.optimizer))
    except (ValueError, AttributeError) as error:
      raise errors.UserError(f'trainer.reduce_lr_on_plateau.metric: {error}') from error
  return reduce_lr_on_plateau.ReduceLROnPlateau(config, scale)
