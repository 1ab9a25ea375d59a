"""Runs an experiment: the wiring of trainer, checkpoints, controller, records and writers, and nothing else."""

import dataclasses
import difflib
import os
import sys
from typing import Any, List, Mapping, Optional, Tuple

from absl import logging
import orbit
import tensorflow as tf, tf_keras

from official.core import base_task
from official.core import train_lib
from official.core import train_utils
from official_ext.core import recovery
from official_ext.core import base_trainer
from official_ext.checkpoints import best
from official_ext.checkpoints import manager
from official_ext.config import checks
from official_ext.config import definitions
from official_ext.config import trainer_parts
from official_ext.core import controller
from official_ext.runtime import distribute
from official_ext.actions import early_stopping
from official_ext.checkpoints import ema_checkpoints
from official_ext.config import epochs
from official_ext import errors
from official_ext.actions import event_actions as event_actions_lib
from official_ext.runtime import failures
from official_ext.step import gradient_tap
from official_ext.runtime import hang_watch
from official_ext.checkpoints import manifests
from official_ext.runtime import preemption
from official_ext.core import profiling
from official_ext.actions import reduce_lr_on_plateau
from official_ext.runtime import run_lock
from official_ext.core import run_record
from official_ext.runtime import run_status
from official_ext.checkpoints import training_lines
from official_ext.actions import triggers
from official_ext.core import unset_fields
from official_ext.checkpoints import warm_start
from official_ext.runtime import workers as workers_lib
from official_ext.config import yaml_text
from official_ext.monitoring import json_lines
from official_ext.monitoring import named_writers
from official_ext.monitoring import notifications
from official_ext.monitoring import progress
from official_ext.monitoring import tensorboard
from official_ext.monitoring import writer_registry
from official_ext.monitoring import writers as writers_lib
from official_ext.optimization import learning_rate_scale


class OrbitExperimentRunner(train_lib.OrbitExperimentRunner):
  """Model Garden's runner, with this library's trainer, checkpoints and controller: see base class."""

  def __init__(
      self,
      *args: Any,
      writers: Optional[writers_lib.Writer] = None,
      summaries: Optional[tensorboard.TensorBoardWriter] = None,
      record: Optional[run_record.RunRecord] = None,
      checkpoint: Optional[str] = None,
      watch: Optional[preemption.PreemptionWatch] = None,
      hang: Optional[hang_watch.HangWatch] = None,
      **kwargs: Any,
  ):
    self._hang = hang
    self._writers = writers or writers_lib.Writers([])
    self._summaries = summaries
    self._record = record
    self._checkpoint_path = checkpoint
    self._watch = watch
    super().__init__(*args, **kwargs)

  def _build_best_checkpoint_exporter(self):
    return make_exporter(self.strategy, self.params, self.model_dir, self._mode)

  def _maybe_build_checkpoint_manager(self):
    config = self.params.trainer
    return manager.CheckpointManager(
        self.trainer.checkpoint,
        directory=self.model_dir,
        max_to_keep=config.max_to_keep,
        keep_every=config.keep_every,
        step_counter=self.trainer.global_step,
        checkpoint_interval=config.checkpoint_interval,
        init_fn=self.trainer.initialize,
        asynchronous=config.async_checkpointing,
        trains='train' in self._mode,
        is_chief=self.strategy.extended.should_checkpoint,
        workers=workers_lib.of(self.strategy),
        optimizer_config=config.optimizer_config.as_dict(),
        data_identity=self.trainer.data_identity() if 'train' in self._mode else None,
        create_variables=getattr(self.trainer, 'create_variables', None),
    )

  def _build_trainer(self, task, train, evaluate):
    return build_trainer(self.strategy, task, self.params, self.model_dir, train, evaluate, self._mode)

  def _build_controller(
      self,
      trainer,
      evaluator,
      save_summary=True,
      train_actions=None,
      eval_actions=None,
      controller_cls=controller.Controller,
      enable_async_checkpointing=False,
  ):
    train_actions, eval_actions = list(train_actions or ()), list(eval_actions or ())
    if trainer:
      train_actions += recovery.get_train_actions(
          self.params, trainer, self.model_dir, self.checkpoint_manager, self._writers)
    if evaluator:
      owns = best.ownership(self._mode, self.model_dir)
      from_chief = workers_lib.of(self.strategy).from_chief
      eval_actions += recovery.get_eval_actions(
          self.params, evaluator, self.model_dir, lambda: owns is None or from_chief('owner of averages', owns))
    config = self.params.trainer
    return controller_cls(
        strategy=self.strategy,
        trainer=trainer,
        evaluator=evaluator,
        global_step=self.trainer.global_step,
        train_steps=config.train_steps,
        steps_per_loop=config.steps_per_loop,
        intervals=(config.summary_interval, *getattr(self._writers, 'intervals', ())),
        checkpoint_interval=config.checkpoint_interval,
        checkpoint_manager=self.checkpoint_manager,
        checkpoint=self._checkpoint_path,
        watch=self._watch,
        restores=self._mode != 'continuous_eval',
        saves_at_start=recovery.goes_back(config),
        enable_async_checkpointing=enable_async_checkpointing,
        summary_interval=config.summary_interval if save_summary else None,
        train_actions=train_actions,
        eval_actions=eval_actions,
        writers=self._writers,
        summaries=self._summaries if save_summary else None,
        on_stage=self._on_stage,
        heartbeat=self._hang.beat if self._hang is not None else lambda: None,
    )

  def begin_line(self, start: training_lines.Start) -> None:
    """Notes where a line of training starts, when that is restored; to be called on all workers.

    Args:
      start: what was restored.
    """
    subfolders = (self.params.trainer.best_checkpoint_export_subdir, ema_checkpoints.FOLDER)
    branched = workers_lib.of(self.strategy).from_chief(
        'line of training', lambda: training_lines.begin(self.model_dir, start, subfolders))
    if branched:  # The rollbacks of the line before are not this one's.
      self.checkpoint_manager.rollbacks.read()
      if hasattr(self.trainer, 'checkpoint_restored'):
        self.trainer.checkpoint_restored(**self.checkpoint_manager.continuation(start.checkpoint))
    if self._record is not None and 'train' in self._mode:
      origins = start.origins or [dataclasses.asdict(origin) for origin in training_lines.read(self.model_dir)]
      self._record.update(
          evaluates='eval' in self._mode or self._run_post_eval,
          started_from=origins[-1]['checkpoint'] if origins else None)

  def skipped_updates(self) -> Optional[int]:
    """Updates that the whole run has left out, before it was restored or went back too; None where nobody looks."""
    if 'train' not in self._mode or not getattr(self.trainer, 'guards_updates', False):
      return None
    return self.checkpoint_manager.rollbacks.skipped_updates + self.trainer.num_skips

  def _on_stage(self, stage: str, step: int) -> None:
    if self._hang is not None:
      self._hang.enter(stage)
    if self._record is not None:
      self._record.check_lock()
      self._record.update(stage=stage, step=step, skipped_updates=self.skipped_updates())

  def run(self) -> Tuple[Any, Mapping[str, Any]]:
    """Runs the mode.

    Returns:
      (model, logs): the logs of the last evaluation, {} where the mode has none.
    """
    mode, config = self._mode, self.params.trainer
    with self.strategy.scope():
      output = None
      if mode in ('train', 'train_and_post_eval'):
        self.controller.train(steps=config.train_steps)
      elif mode == 'train_and_eval':
        output = self.controller.train_and_evaluate(
            train_steps=config.train_steps,
            eval_steps=config.validation_steps,
            eval_interval=config.validation_interval)
      elif mode == 'eval':
        output = self.controller.evaluate(steps=config.validation_steps)
      elif mode == 'continuous_eval':
        output = self.controller.evaluate_continuously(
            steps=config.validation_steps,
            timeout=config.continuous_eval_timeout,
            timeout_fn=run_status.TrainingWatch(self.model_dir, config.train_steps).has_ended)
      else:
        raise errors.UserError(f'--mode={mode}: no such mode')
      if mode == 'train_and_post_eval' or self._run_post_eval:
        output = self.controller.evaluate(steps=config.validation_steps)
    return self.trainer.model, output or {}


def build_trainer(
    strategy: tf.distribute.Strategy,
    task: Any,
    params: definitions.ExperimentConfig,
    model_dir: Optional[str],
    train: bool,
    evaluate: bool,
    mode: str = 'train_and_eval',
) -> base_trainer.Trainer:
  """Builds model, optimizer and trainer inside the strategy's scope; the best checkpoints are the driver's `mode`'s."""
  exporter = make_exporter(strategy, params, model_dir, mode) if evaluate else None
  with strategy.scope(), unset_fields.named(params.task, type(task).__name__):
    return train_utils.create_trainer(
        params, task, train=train, evaluate=evaluate, checkpoint_exporter=exporter,
        trainer_cls=getattr(task, 'trainer_cls', None) or base_trainer.Trainer)


def make_exporter(
    strategy: tf.distribute.Strategy, params: definitions.ExperimentConfig, model_dir: Optional[str], mode: str
) -> Optional[best.BestCheckpointExporter]:
  """What keeps the best checkpoints; None where the configuration asks for none."""
  is_chief = strategy.extended.should_checkpoint
  return best.maybe_create(params, model_dir, mode, is_chief, workers_lib.of(strategy))


def check_run(
    strategy: tf.distribute.Strategy,
    task: Any,
    mode: str,
    params: definitions.ExperimentConfig,
    model_dir: str,
    checkpoint: Optional[str],
    branch: bool,
) -> Tuple[training_lines.Start, definitions.ExperimentConfig]:
  """Refuses what can be refused before a model is built: see `run_experiment`.

  Returns:
    What the run begins with, and `params` with all that depends on the data resolved.
  """
  workers = workers_lib.of(strategy)
  start = choose_start(workers, mode, model_dir, checkpoint, branch)
  run_record.check_writable(model_dir)
  if 'train' in mode and strategy.extended.should_checkpoint:
    run_lock.check_free(model_dir)
  if 'train' in mode and params.task.init_checkpoint and not manifests.prefixes(model_dir):
    warm_start.find(params.task.init_checkpoint)
  params = resolve_train_steps(definitions.upgrade(params), task)
  run_record.check_places(model_dir, mode, params.trainer)
  checks.check_replicas(params, mode, strategy.num_replicas_in_sync, task)
  workers.check_same('params', _command(params, mode, checkpoint, branch), run_record.params_differences)
  return start, params


def run_experiment(
    distribution_strategy: tf.distribute.Strategy,
    task: Any,
    mode: str,
    params: definitions.ExperimentConfig,
    model_dir: str,
    run_post_eval: bool = False,
    save_summary: bool = True,
    train_actions: Optional[List[orbit.Action]] = None,
    eval_actions: Optional[List[orbit.Action]] = None,
    trainer: Optional[base_trainer.Trainer] = None,
    controller_cls: Any = controller.Controller,
    checkpoint: Optional[str] = None,
    watch: Optional[preemption.PreemptionWatch] = None,
    profile_steps: Optional[Tuple[int, int]] = None,
    branch: bool = False,
    origin: Optional[Mapping[str, Any]] = None,
) -> Tuple[tf_keras.Model, Mapping[str, Any]]:
  """Runs train/eval configured by the experiment params.

  Whatever can be refused is refused before anything is written. From then on run.json tells how the run stands.

  Args:
    distribution_strategy: the strategy.
    task: a Task made inside its scope.
    mode: 'train', 'eval', 'train_and_eval', 'continuous_eval' or 'train_and_post_eval'.
    params: the experiment.
    model_dir: where checkpoints, logs and records go.
    run_post_eval: whether to evaluate once after training.
    save_summary: whether to write TensorBoard files.
    train_actions: called with the logs of every training loop.
    eval_actions: called with the logs of every evaluation.
    trainer: instead of the default one; made inside the strategy's scope.
    controller_cls: a `Controller` subclass.
    checkpoint: path of the checkpoint to evaluate instead of the newest in `model_dir`; where a training starts that
      has no checkpoint of its own yet.
    watch: tells that the process was asked to stop; None watches no signals.
    profile_steps: the first and the last step to profile: see profiling.py.
    branch: whether a training may start at `checkpoint` although `model_dir` holds others: see training_lines.py.
    origin: the `experiment`'s name and the modules of its `registry`, for run.json: so the run's folder tells whoever
      loads its model.

  Returns:
    (model, logs): logs of the last evaluation, {} where the mode has none; with skipped_updates, how many updates the
    whole run has left out, where there were any.

  Raises:
    UserError: the configuration cannot be run; nothing was written.
    DivergedError: too many updates were not finite.
    PreemptedError: `watch` saw a signal, and the run has saved.
    WorkerError: another worker was lost.
  """
  strategy = distribution_strategy or tf.distribute.get_strategy()
  workers = workers_lib.of(strategy)
  with workers.guarded():
    locks = 'train' in mode and strategy.extended.should_checkpoint
    start, params = check_run(strategy, task, mode, params, model_dir, checkpoint, branch)
    evaluates = 'eval' in mode or run_post_eval
    trainer = trainer or build_trainer(strategy, task, params, model_dir, 'train' in mode, evaluates, mode)
    check_best_metric(params, task, trainer, evaluates)
    check_early_stopping(params, task, trainer, mode)
    event_actions = build_event_actions(params, task, trainer, mode) if 'train' in mode else []
    was_finished = 'train' in mode and workers.from_chief(
        'finished before', lambda: run_status.has_finished(model_dir, mode))
    lock = _acquired(run_lock.RunLock(model_dir, mode), watch) if locks else None

  is_chief = strategy.extended.should_checkpoint
  if profile_steps and is_chief and 'train' in mode:
    trainer.profiler = profiling.Profiler(profile_steps, model_dir)
  devices = distribute.describe(strategy)
  record = run_record.RunRecord(model_dir, mode, params, params.runtime.seed, devices, is_chief, lock)
  saves_params, restores = is_chief and 'train' in mode, bool(manifests.prefixes(model_dir))
  run_info = writer_registry.RunInfo(model_dir, mode, params, tuple(getattr(task, 'class_names', ())))
  try:
    _tell_params(params, model_dir, saves_params, not restores, record, origin)
    summaries = tensorboard.make(run_info) if save_summary and 'tensorboard' in params.trainer.writers else None
    plain_writers = make_writers(run_info, summaries, is_chief)
    writers = event_actions_lib.EventActions(
        plain_writers, event_actions, workers.from_chief, was_finished, summaries if is_chief else None)
  except BaseException as error:
    record.finish('failed', error)
    raise
  hang = _hang_watch(params, model_dir, trainer, workers.index, record, plain_writers)
  runner = None
  try:
    with workers.guarded(), hang:
      writers.write('start', int(trainer.global_step.numpy()), {
          'mode': mode,
          'devices': devices,
          'seed': params.runtime.seed,
          'effective_batch_size': effective_batch_size(params),
      })
      runner = OrbitExperimentRunner(
          strategy, task, mode, params, model_dir,
          run_post_eval=run_post_eval,
          save_summary=save_summary and is_chief,
          train_actions=train_actions,
          eval_actions=eval_actions,
          trainer=trainer,
          controller_cls=controller_cls,
          writers=writers,
          summaries=summaries,
          record=record,
          checkpoint=start.checkpoint,
          watch=watch,
          hang=hang,
      )
      runner.begin_line(start)
      # Only now are they known to be those of the checkpoint's model.
      _tell_params(params, model_dir, saves_params and restores, True, record, origin, warns=False)
      model, logs = runner.run()
      writers.end(int(trainer.global_step.numpy()))
  except BaseException as error:
    _end(record, writers, trainer, getattr(error, 'status', 'failed'), error, runner)
    raise
  _end(record, writers, trainer, 'finished', None, runner)
  return model, {**logs, **({'skipped_updates': runner.skipped_updates()} if runner.skipped_updates() else {})}


def _acquired(lock: run_lock.RunLock, watch: Optional[preemption.PreemptionWatch]) -> run_lock.RunLock:
  lock.acquire(lambda: watch.requested if watch else None)
  return lock


def _hang_watch(params, model_dir, trainer, worker_index, record, writers) -> hang_watch.HangWatch:
  """What ends a run that stands still, and tells of it by the parts that do not."""

  def report(error: errors.HungError, step: int) -> None:
    record.update(step=step)
    record.finish(error.status, error)
    writers.write(error.status, step, {'error': str(error)})
    writers.close()

  return hang_watch.HangWatch(
      params.runtime.hang_seconds, trainer.global_step.numpy, model_dir, worker_index, report)


def choose_start(
    workers: workers_lib.Workers, mode: str, model_dir: str, checkpoint: Optional[str], branch: bool
) -> training_lines.Start:
  """What the run begins with: the chief decides. A mode that does not train takes what it was told.

  Raises:
    UserError: there is no such checkpoint, or it would start another line of training.
  """
  if 'train' not in mode:
    manager.check_available(model_dir, mode, checkpoint)
    return training_lines.Start(checkpoint)

  def choose():
    return dataclasses.asdict(training_lines.choose(model_dir, checkpoint, branch))

  start = training_lines.Start(**workers.from_chief('start', choose))
  manager.check_available(model_dir, mode, start.checkpoint)
  if start.message and workers.is_chief:
    print(f'--checkpoint={checkpoint}: {start.message}' if checkpoint else start.message, flush=True)
  return start


def _tell_params(
    params: definitions.ExperimentConfig,
    model_dir: str,
    tells: bool,
    saves: bool,
    record: run_record.RunRecord,
    origin: Optional[Mapping[str, Any]],
    warns: bool = True,
) -> None:
  """Notes where the experiment is from; where this process tells, writes params.yaml and warns of misfit schedules."""
  record.update(**(origin or {}))
  if tells and saves:
    run_record.save_params(params, model_dir)
  for line in checks.schedule_warnings(params) if tells and warns else ():
    print(f'warning: {line}', file=sys.stderr, flush=True)


def _command(params: Any, mode: str, checkpoint: Optional[str], branch: bool) -> str:
  """What all workers must have been told alike, as YAML."""
  return yaml_text.dump({'--mode': mode, '--checkpoint': checkpoint, '--branch': branch, **params.as_dict()})


def _end(record, writers, trainer, status, error, runner):
  step = int(trainer.global_step.numpy())
  try:
    getattr(trainer, 'profiler', profiling.Profiler()).close()
  except Exception as failure:  # pylint: disable=broad-except  # How the run ended is what must be told.
    logging.exception('The profile was not written: %s', failure)
  record.update(step=step, **_plan_record(trainer))
  if writers.stop_reason:
    record.update(early_stopped=writers.stop_reason)
  skipped = runner.skipped_updates() if runner is not None else None
  if skipped is not None:
    record.update(skipped_updates=skipped)
  message = None if error is None else failures.message_of(error)
  record.finish(status, message)
  if writers.nothing_to_do and trainer.strategy.extended.should_checkpoint:
    print(f'finished before, at step {step}: nothing to do', flush=True)
  event = 'failed' if status == 'diverged' else status
  values = {} if error is None else {'error': message}
  if not isinstance(error, errors.LockLostError):
    writers.write(event, step, {**values, 'skipped_updates': skipped} if skipped else values)
  writers.close()


def _plan_record(trainer) -> Mapping[str, Any]:
  plan = getattr(trainer, 'plan', None)
  if plan is None:
    return {}
  return {'step_shape': plan.execution, 'jit_compile': plan.jit_compile,
          'steps_per_execution': plan.steps_per_execution, 'step_shape_reason': plan.reason}


def build_event_actions(
    params: definitions.ExperimentConfig, task: Any, trainer: base_trainer.Trainer, mode: str
) -> List[Any]:
  """What the task and the configuration want to be done at the events of a training."""
  with trainer.strategy.scope():
    found = list(task.build_actions(trainer)) if hasattr(task, 'build_actions') else []
  if params.trainer.reduce_lr_on_plateau.metric and mode == 'train_and_eval':
    found.append(make_reduce_lr(params.trainer.reduce_lr_on_plateau, trainer))
  if params.trainer.early_stopping.metric and 'eval' in mode:
    found.append(early_stopping.EarlyStopping(params.trainer.early_stopping))
  for action in found:
    if isinstance(action, triggers.Trigger):
      action.prepare(mode)
  return found


def make_reduce_lr(
    config: trainer_parts.ReduceLROnPlateauConfig, trainer: base_trainer.Trainer
) -> reduce_lr_on_plateau.ReduceLROnPlateau:
  """Puts a factor on the learning rate of the trainer's optimizer, and what lowers it.

  Raises:
    UserError: the optimizer has a learning rate that cannot be lowered.
  """
  with trainer.strategy.scope():
    try:
      scale = learning_rate_scale.LearningRateScale(gradient_tap.inner_optimizer(trainer.optimizer))
    except (ValueError, AttributeError) as error:
      raise errors.UserError(f'trainer.reduce_lr_on_plateau.metric: {error}') from error
  return reduce_lr_on_plateau.ReduceLROnPlateau(config, scale)


def make_writers(
    run_info: writer_registry.RunInfo, summaries: Optional[tensorboard.TensorBoardWriter], is_chief: bool
) -> writers_lib.Writer:
  """The writers of a run: events.jsonl, progress, those that the configuration names. Of the chief alone.

  A mode that does not train writes `events.{mode}.jsonl`: it may run beside a training in the same folder.
  """
  if not is_chief:
    return writers_lib.Writers([])
  trainer, model_dir = run_info.params.trainer, run_info.model_dir
  name = 'events.jsonl' if run_info.trains else f'events.{run_info.mode}.jsonl'
  writers: List[writers_lib.Writer] = [json_lines.EventsWriter(os.path.join(model_dir, name))]
  writers.append(progress.ProgressWriter(trainer.train_steps if run_info.trains else 0, bar=trainer.progress_bar))
  if summaries is not None:
    writers.append(summaries)
  for name in trainer.writers:
    if name != 'tensorboard':
      try:
        writers.append(named_writers.make(name, run_info))
      except Exception as error:  # pylint: disable=broad-except  # As for one that fails later.
        logging.exception('The writer %s cannot be made; the run goes on without: %s', name, error)
  if trainer.notifications.urls:
    writers.append(notifications.make(trainer.notifications, model_dir))
  return writers_lib.Writers(writers)


def effective_batch_size(params: definitions.ExperimentConfig) -> int:
  """Examples in one update: `global_batch_size` times `gradient_accumulation_steps`; 0 where a task has neither."""
  data = getattr(params.task, 'train_data', None)
  return (getattr(data, 'global_batch_size', 0) or 0) * params.trainer.gradient_accumulation_steps


def resolve_train_steps(params: definitions.ExperimentConfig, task: Any) -> definitions.ExperimentConfig:
  """Turns the lengths and intervals of `trainer` that are given in epochs into steps: see epochs.py.

  Raises:
    UserError: the task does not know how many examples its training data has.
  """
  return epochs.resolve(params, task, effective_batch_size(params))


def check_best_metric(params: Any, task: Any, trainer: Any, evaluates: bool) -> None:
  """Refuses a `best_checkpoint_eval_metric` that no evaluation of the task will report.

  Raises:
    UserError: with the metrics that there are.
  """
  name = params.trainer.best_checkpoint_eval_metric
  if evaluates and params.trainer.best_checkpoint_export_subdir and name:
    _check_reported('trainer.best_checkpoint_eval_metric', name, task, trainer)


def check_early_stopping(params: Any, task: Any, trainer: Any, mode: str) -> None:
  """Refuses an early stopping, and a lowering of the learning rate, that no evaluation could bring about.

  Raises:
    UserError: the mode trains without an evaluation, or the metric is none of the task's.
  """
  for part in ('early_stopping', 'reduce_lr_on_plateau'):
    field, name = f'trainer.{part}.metric', getattr(params.trainer, part).metric
    if name and mode == 'train_and_eval':
      _check_reported(field, name, task, trainer)
    elif name and 'train' in mode:
      raise errors.UserError(f'{field}: {name}: mode {mode} does not evaluate while it trains; use train_and_eval')


def _check_reported(field: str, name: str, task: Any, trainer: Any) -> None:
  """Refuses a metric that no evaluation of the task will report."""
  reports = {metric.name for metric in trainer.validation_metrics} | {trainer.validation_loss.name}
  if name in reports or _reduces_logs(task):
    return
  reports |= set(trainer.validation_log_names())
  if name in reports:
    return
  near = difflib.get_close_matches(name, sorted(reports), n=1)
  hint = f'did you mean {near[0]}? ' if near else ''
  raise errors.UserError(
      f'{field}: {name}: {hint}{type(task).__name__} reports {", ".join(sorted(reports))}')


def _reduces_logs(task: Any) -> bool:
  """Whether the task makes metrics of its own at the end of an evaluation: their names show only then."""
  return type(task).reduce_aggregated_logs is not base_task.Task.reduce_aggregated_logs
