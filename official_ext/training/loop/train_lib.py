"""Runs an experiment: checks it, builds the parts, and runs the loop of the mode."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import sys
from typing import Any

import orbit
import tensorflow as tf
import tf_keras

from official_ext.base import gin_bindings
from official_ext.base import protocols
from official_ext.base.run_folder import run_lock
from official_ext.base.run_folder import run_status
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.loop import base_trainer
from official_ext.training.loop import building
from official_ext.training.loop import code_identity
from official_ext.training.loop import controller
from official_ext.training.loop import experiment_run
from official_ext.training.loop import loop_building
from official_ext.training.loop import recording
from official_ext.training.loop import run_checks

RunOptions = experiment_run.RunOptions


def run_experiment(
  distribution_strategy: tf.distribute.Strategy,
  task: protocols.Task,
  mode: str,
  params: definitions.ExperimentConfig,
  model_dir: str,
  run_post_eval: bool = False,
  save_summary: bool = True,
  train_actions: Sequence[orbit.Action] | None = None,
  eval_actions: Sequence[orbit.Action] | None = None,
  trainer: base_trainer.Trainer | None = None,
  controller_cls: Callable[..., controller.Controller] | None = None,
  summary_manager: orbit.utils.SummaryManager | None = None,
  eval_summary_manager: orbit.utils.SummaryManager | None = None,
  enable_async_checkpointing: bool | None = None,
  *,
  options: RunOptions | None = None,
) -> tuple[tf_keras.Model, Mapping[str, Any]]:
  """Runs train/eval configured by the experiment params.

  All checks come before anything is written. From then on, run.json has the state of the run. The arguments are those
  of Model Garden's function of this name, and `options`.

  Args:
    distribution_strategy: the strategy.
    task: a Task made inside its scope.
    mode: 'train', 'eval', 'train_and_eval', 'continuous_eval' or 'train_and_post_eval'.
    params: the experiment.
    model_dir: the folder for checkpoints, logs and records.
    run_post_eval: whether to evaluate once after training.
    save_summary: whether to write TensorBoard files.
    train_actions: called with the logs of every training loop.
    eval_actions: called with the logs of every evaluation.
    trainer: an instance of a subclass of `ext.Trainer`, made inside the strategy's scope; None for the task's.
    controller_cls: a subclass of this library's controller; None, or Orbit's own class, for the default.
    summary_manager: writes the logs of every training loop too, beside TensorBoard's files; not without `save_summary`.
    eval_summary_manager: writes the logs of every evaluation too.
    enable_async_checkpointing: replaces `trainer.async_checkpointing`; None keeps it.
    options: further options; None for the defaults.

  Returns:
    (model, logs): the logs of the last evaluation, {} if the mode has none; with skipped_updates, the number of updates
    that the whole run has skipped, if it has skipped any.

  Raises:
    UserError: the configuration cannot be run; nothing was written.
    DivergedError: too many updates were not finite.
    PreemptedError: `options.watch` saw a signal, and the run has saved.
    WorkerError: another worker was lost.
  """
  given = dict(train_actions=train_actions, eval_actions=eval_actions, trainer=trainer, controller_cls=controller_cls)
  options = experiment_run.merged(options, given, summary_manager if save_summary else None, eval_summary_manager)
  params = definitions.upgrade(params)
  if enable_async_checkpointing is not None:
    params = params.replace(trainer={'async_checkpointing': enable_async_checkpointing})
  strategy = distribution_strategy or tf.distribute.get_strategy()
  return _run(experiment_run.Experiment(strategy, task, mode, params, model_dir, run_post_eval, save_summary, options))


def _run(experiment: experiment_run.Experiment) -> tuple[tf_keras.Model, Mapping[str, Any]]:
  """The steps of a run: see `run_experiment`."""
  # Refuse: nothing is written yet.
  with experiment.workers.guarded():
    experiment = _with_start(experiment)
    built, actions = building.build_trainer_and_actions(experiment)
    experiment = dataclasses.replace(experiment, code=_identify_code(experiment, built))
    _warn_of_unused_bindings(experiment, 'while the experiment was built', of_classes=True)
  # Record: from here on, the folder is this run's, and says how it stands.
  with _holding_folder(experiment) as (experiment, lock), recording.recorded(experiment, built, actions, lock) as run:
    with experiment.workers.guarded(), run.hang:
      recording.tell_start(experiment, run)
      # Run.
      mode, config, logs = experiment.mode, experiment.params.trainer, None
      loop: Any = loop_building.build_loop(experiment, run)
      with experiment.strategy.scope():
        if mode in ('train', 'train_and_post_eval'):
          logs = loop.train(steps=config.train_steps)
        elif mode == 'train_and_eval':
          logs = loop.train_and_evaluate(config.train_steps, config.validation_steps, config.validation_interval)
        elif mode == 'continuous_eval':
          has_ended = run_status.TrainingWatch(experiment.model_dir, config.train_steps).has_ended
          logs = loop.evaluate_continuously(config.validation_steps, config.continuous_eval_timeout, has_ended)
        if mode in ('eval', 'train_and_post_eval') or experiment.run_post_eval:
          logs = loop.evaluate(steps=config.validation_steps)
      run.events.end(int(built.global_step.numpy()))
      _warn_of_unused_bindings(experiment, 'in this run', of_classes=False)
  skipped = run.skipped_updates()
  return built.model, {**(logs or {}), **({'skipped_updates': skipped} if skipped else {})}


def _with_start(experiment: experiment_run.Experiment) -> experiment_run.Experiment:
  """The experiment with the start of its run, and its lengths in steps. Refuses one that cannot be run."""
  params = experiment.params
  start = run_checks.check_run(experiment)
  if in_steps := epochs.in_steps(params.trainer, params.task, experiment.task):
    params = params.replace(trainer=in_steps)
  experiment = dataclasses.replace(experiment, start=start, params=params)
  run_checks.check_same_params(experiment)
  return experiment


def _warn_of_unused_bindings(experiment: experiment_run.Experiment, when: str, of_classes: bool) -> None:
  """Prints a line about gin's bindings that no call has used. An evaluation does not use those of a training."""
  line = gin_bindings.warning(when, of_classes) if experiment.trains and experiment.is_chief else ''
  if line:
    print(f'warning: {line}', file=sys.stderr, flush=True)


def _identify_code(experiment: experiment_run.Experiment, trainer: protocols.Trainer) -> Mapping[str, Any]:
  """Returns `code` and `versions` of the run; refuses workers with other packages, code or data than the chief's."""
  options = experiment.options
  versions = code_identity.versions()
  code = code_identity.of_task(experiment.task, type(experiment.params), options.origin)
  data = trainer.data_identity() if hasattr(trainer, 'data_identity') else {}
  flags = {name: (options.origin or {}).get(name) for name in ('experiment', 'registry')}
  flags['run_post_eval'] = experiment.run_post_eval
  run_checks.check_same_on_workers(experiment.workers, flags, versions, code, data)
  return {'code': code, 'versions': versions}


@contextlib.contextmanager
def _holding_folder(
  experiment: experiment_run.Experiment,
) -> Iterator[tuple[experiment_run.Experiment, run_lock.RunLock | None]]:
  """A context for everything that is written. Chooses the start again when nobody else trains in the folder.

  Yields:
    The experiment with its start, and the lock, which the run's record may give back earlier.
  """
  workers = experiment.workers
  with workers.guarded():
    lock = _take_lock(experiment)
  try:
    with workers.guarded():
      start = run_checks.choose_start(experiment, before=experiment.start)
    yield dataclasses.replace(experiment, start=start), lock
  finally:
    if lock is not None:
      lock.release()


def _take_lock(experiment: experiment_run.Experiment) -> run_lock.RunLock | None:
  """Takes the lock that allows training in the folder; None if the mode, or this worker, needs none."""
  if not (experiment.trains and experiment.is_chief):
    return None
  lock, watch = run_lock.RunLock(experiment.model_dir, experiment.mode), experiment.options.watch
  lock.acquire(lambda: watch.requested if watch else None)
  return lock
