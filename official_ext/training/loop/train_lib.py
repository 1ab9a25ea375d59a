"""Runs an experiment: refuses what can be refused, builds the parts, and runs the loop of the mode."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import inspect
import os
import sys
from typing import Any

from official.core import train_utils
import orbit
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base.run_folder import run_lock
from official_ext.base.run_folder import run_status
from official_ext.training.actions import early_stopping
from official_ext.training.actions import event_actions as event_actions_lib
from official_ext.training.actions import reduce_lr_on_plateau
from official_ext.training.actions import triggers
from official_ext.training.checkpoints import best
from official_ext.training.checkpoints import ema_checkpoints
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import run_notes
from official_ext.training.checkpoints import training_lines
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import trainer_parts
from official_ext.training.devices import distribute
from official_ext.training.devices import preemption
from official_ext.training.devices import workers as workers_lib
from official_ext.training.loop import base_trainer
from official_ext.training.loop import boundaries
from official_ext.training.loop import code_identity
from official_ext.training.loop import controller
from official_ext.training.loop import loop_task
from official_ext.training.loop import profiling
from official_ext.training.loop import recorded_run
from official_ext.training.loop import recovery
from official_ext.training.loop import required_fields
from official_ext.training.loop import run_checks
from official_ext.training.loop import run_events
from official_ext.training.loop import run_record
from official_ext.training.loop import run_writers
from official_ext.training.optimization import learning_rate_scale
from official_ext.training.step import gradient_tap
from official_ext.training.writers import events_writer
from official_ext.training.writers import tensorboard
from official_ext.training.writers import writer_registry


@dataclasses.dataclass(frozen=True)
class RunOptions:
  """Options of `run_experiment` that most callers do not need.

  Attributes:
    train_actions: called with the logs of every training loop.
    eval_actions: called with the logs of every evaluation.
    trainer: instead of the default one; made inside the strategy's scope.
    controller_cls: a `Controller` subclass, or what else makes one.
    checkpoint: the path of the checkpoint to evaluate instead of the newest in `model_dir`; or from which a training
      starts that has no checkpoint of its own yet.
    branch: whether a training may start at `checkpoint` although `model_dir` has others: see training_lines.py.
    watch: tells whether the process was asked to stop; None watches no signals.
    profile_steps: the first and the last step to profile: see profiling.py. Not with a `trainer`, which has a profiler.
    origin: the `experiment`'s name and the modules of its `registry`, which run.json keeps for those who load the
      model.
  """

  train_actions: Sequence[orbit.Action] = ()
  eval_actions: Sequence[orbit.Action] = ()
  trainer: base_trainer.Trainer | None = None
  controller_cls: Callable[..., controller.Controller] = controller.Controller
  checkpoint: str | None = None
  branch: bool = False
  watch: preemption.PreemptionWatch | None = None
  profile_steps: tuple[int, int] | None = None
  origin: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class _Experiment:
  """An experiment to run: the checked arguments of `run_experiment`, and the start of the run."""

  strategy: tf.distribute.Strategy
  task: Any
  mode: str
  params: definitions.ExperimentConfig
  model_dir: str
  run_post_eval: bool
  save_summary: bool
  options: RunOptions
  start: training_lines.Start
  code: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def trains(self) -> bool:
    return 'train' in self.mode

  @property
  def evaluates(self) -> bool:
    return 'eval' in self.mode or self.run_post_eval

  @property
  def is_chief(self) -> bool:
    return self.strategy.extended.should_checkpoint

  @property
  def workers(self) -> workers_lib.Workers:
    return workers_lib.get(self.strategy)


def run_experiment(
  distribution_strategy: tf.distribute.Strategy,
  task: Any,
  mode: str,
  params: definitions.ExperimentConfig,
  model_dir: str,
  run_post_eval: bool = False,
  save_summary: bool = True,
  options: RunOptions | None = None,
) -> tuple[tf_keras.Model, Mapping[str, Any]]:
  """Runs train/eval configured by the experiment params.

  Whatever can be refused is refused before anything is written. From then on, run.json has the state of the run.

  Args:
    distribution_strategy: the strategy.
    task: a Task made inside its scope.
    mode: 'train', 'eval', 'train_and_eval', 'continuous_eval' or 'train_and_post_eval'.
    params: the experiment.
    model_dir: the folder for checkpoints, logs and records.
    run_post_eval: whether to evaluate once after training.
    save_summary: whether to write TensorBoard files.
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
  strategy, options = distribution_strategy or tf.distribute.get_strategy(), options or RunOptions()
  with workers_lib.get(strategy).guarded():
    start, params = run_checks.check_run(
      strategy, task, mode, params, model_dir, options.checkpoint, options.branch, run_post_eval
    )
    experiment = _Experiment(strategy, task, mode, params, model_dir, run_post_eval, save_summary, options, start)
    trainer, actions = _build_trainer_and_actions(experiment)
    experiment = dataclasses.replace(experiment, code=_identify_code(experiment, trainer))
  with _holding_folder(experiment) as (experiment, lock), _recorded(experiment, trainer, actions, lock) as run:
    with experiment.workers.guarded(), run.hang:
      _tell_start(experiment, run)
      loop = _build_loop(experiment, run)
      logs = _run_mode(experiment, loop)
      run.events.end(int(trainer.global_step.numpy()))
  skipped = run.skipped_updates()
  return trainer.model, {**logs, **({'skipped_updates': skipped} if skipped else {})}


# Refuse: what needs a trainer to be refused.


def _identify_code(experiment: _Experiment, trainer: Any) -> Mapping[str, Any]:
  """Returns `code` and `versions` of the run; refuses workers with other packages, code or data than the chief's."""
  options = experiment.options
  versions, code = code_identity.versions(), code_identity.of_task(experiment.task, experiment.params, options.origin)
  data = trainer.data_identity() if hasattr(trainer, 'data_identity') else {}
  flags = {name: (options.origin or {}).get(name) for name in ('experiment', 'registry')}
  flags['run_post_eval'] = experiment.run_post_eval
  run_checks.check_same_on_workers(experiment.workers, flags, versions, code, data)
  return {'code': code, 'versions': versions}


def _build_trainer_and_actions(experiment: _Experiment) -> tuple[Any, list[Any]]:
  """Builds (trainer, actions of the run's events); refuses metrics that nothing reports, and steps that cannot run."""
  strategy, task, mode, params = experiment.strategy, experiment.task, experiment.mode, experiment.params
  if isinstance(task, loop_task.LoopTask):
    return _make_owned_loop(experiment), []
  profiler = _make_profiler(experiment)
  trainer = experiment.options.trainer or build_trainer(
    strategy, task, params, experiment.model_dir, experiment.trains, experiment.evaluates, mode, profiler
  )
  run_checks.check_best_metric(params, task, trainer, experiment.evaluates)
  run_checks.check_early_stopping(params, task, trainer, mode)
  if experiment.trains:
    run_checks.check_learning_rate(experiment.workers, params, trainer, experiment.model_dir, experiment.start)
    trainer.try_step()
  return trainer, build_event_actions(params, task, trainer, mode) if experiment.trains else []


def _make_owned_loop(experiment: _Experiment) -> loop_task.OwnedLoop:
  """The loop of a task that owns it; refuses options that are for the library's loop."""
  options = experiment.options
  if experiment.params.runtime.mesh.sizes():
    raise errors.UserError(f'runtime.mesh: {type(experiment.task).__name__} trains in a loop of its own, without it')
  given = {'checkpoint': options.checkpoint, 'profile_steps': options.profile_steps, 'trainer': options.trainer}
  for name, value in given.items():
    if value:
      raise errors.UserError(f'--{name}: {type(experiment.task).__name__} trains in a loop of its own, without it')
  return loop_task.OwnedLoop(
    experiment.task, experiment.strategy, experiment.params, experiment.mode, experiment.model_dir, options.watch
  )


def _make_profiler(experiment: _Experiment) -> profiling.Profiler | None:
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


@contextlib.contextmanager
def _holding_folder(experiment: _Experiment) -> Iterator[tuple[_Experiment, run_lock.RunLock | None]]:
  """A context for everything that is written. Chooses the start again when nobody else trains in the folder.

  Yields:
    The experiment with its start, and the lock, which the run's record may give back earlier.
  """
  workers, options = experiment.workers, experiment.options
  with workers.guarded():
    lock = _take_lock(experiment)
  try:
    with workers.guarded():
      start = run_checks.choose_start(
        workers, experiment.mode, experiment.model_dir, options.checkpoint, options.branch, before=experiment.start
      )
    yield dataclasses.replace(experiment, start=start), lock
  finally:
    if lock is not None:
      lock.release()


def _take_lock(experiment: _Experiment) -> run_lock.RunLock | None:
  """Takes the lock that allows training in the folder; None if the mode, or this worker, needs none."""
  if not (experiment.trains and experiment.is_chief):
    return None
  lock, watch = run_lock.RunLock(experiment.model_dir, experiment.mode), experiment.options.watch
  lock.acquire(lambda: watch.requested if watch else None)
  return lock


# Build.


@contextlib.contextmanager
def _recorded(
  experiment: _Experiment, trainer: Any, actions: Sequence[Any], lock: run_lock.RunLock | None
) -> Iterator[recorded_run.RecordedRun]:
  """Opens the run's record, and makes its writers; at the end they report how it ended."""
  was_finished = experiment.trains and experiment.workers.from_chief(
    'finished before', lambda: run_status.has_finished(experiment.model_dir, experiment.mode)
  )
  params, is_chief = experiment.params, experiment.is_chief
  devices = distribute.describe(experiment.strategy)
  record = run_record.RunRecord(
    experiment.model_dir, experiment.mode, params, params.runtime.seed, devices, is_chief, lock
  )
  try:
    _tell_params(experiment, record, saves=not manifests.paths(experiment.model_dir))
    events = _make_events(experiment, actions, was_finished)
  except BaseException as error:
    record.finish('failed', error)
    raise
  with recorded_run.RecordedRun(
    record, events, trainer, params.runtime.hang_seconds, experiment.model_dir, experiment.workers.index
  ) as run:
    yield run


def _make_events(experiment: _Experiment, actions: Sequence[Any], was_finished: bool) -> run_events.RunEvents:
  params, is_chief = experiment.params, experiment.is_chief
  classes = tuple(getattr(experiment.task, 'class_names', ()))
  run_info = writer_registry.RunInfo(experiment.model_dir, experiment.mode, params, classes)
  writes_summaries = experiment.save_summary and is_chief and 'tensorboard' in params.trainer.writers
  summaries = tensorboard.make(run_info) if writes_summaries else None
  return run_events.RunEvents(
    run_writers.make_writers(run_info, summaries, is_chief),
    event_actions_lib.EventActions(actions, experiment.workers.from_chief, summaries),
    was_finished,
  )


def _tell_params(experiment: _Experiment, record: run_record.RunRecord, saves: bool, warns: bool = True) -> None:
  """Notes the origin of the experiment; for a training, writes params.yaml and what the task keeps beside it, and warns
  of schedules that do not fit.
  """
  record.update(**(experiment.options.origin or {}), code=experiment.code.get('code'))
  tells = experiment.is_chief and experiment.trains
  if tells and saves:
    run_record.save_params(experiment.params, experiment.model_dir)
    if hasattr(experiment.task, 'keep_files'):
      experiment.task.keep_files(experiment.model_dir)
  for line in checks.schedule_warnings(experiment.params) if tells and warns else ():
    print(f'warning: {line}', file=sys.stderr, flush=True)


def _tell_start(experiment: _Experiment, run: recorded_run.RecordedRun) -> None:
  if experiment.is_chief and hasattr(run.trainer, 'data_summary'):
    run.events.print_lines(run.trainer.data_summary())
  values = {
    'mode': experiment.mode,
    'devices': run.record.values['devices'],
    'seed': experiment.params.runtime.seed,
  }
  if batch_size := run_checks.effective_batch_size(experiment.params):
    values['effective_batch_size'] = batch_size
  run.events.tell('start', int(run.trainer.global_step.numpy()), values)


def _build_checkpoint_manager(experiment: _Experiment, trainer: Any) -> manager_lib.CheckpointManager:
  config = experiment.params.trainer
  return manager_lib.CheckpointManager(
    trainer.checkpoint,
    directory=experiment.model_dir,
    max_to_keep=config.max_to_keep,
    keep_every=config.keep_every,
    step_counter=trainer.global_step,
    checkpoint_interval=config.checkpoint_interval,
    init_fn=trainer.initialize,
    asynchronous=config.async_checkpointing,
    role=manager_lib.Role(experiment.trains, experiment.is_chief, experiment.workers),
    notes=run_notes.RunNotes(
      config.optimizer_config.as_dict(),
      trainer.data_identity(),
      experiment.code,
      code_identity.describe_changes,
    ),
    create_variables=getattr(trainer, 'create_variables', None),
  )


def _was_trained(model_dir: str) -> bool:
  """Whether events.jsonl tells of steps. It is synced before each manifest; run.json may be lost in a power cut."""
  path = os.path.join(model_dir, 'events.jsonl')
  return tf.io.gfile.exists(path) and any(event['step'] for event in events_writer.read_events(path))


def _build_loop(experiment: _Experiment, run: recorded_run.RecordedRun) -> controller.Controller | loop_task.OwnedLoop:
  """Builds the outer loop around the run's trainer; nothing is restored yet."""
  trainer, config, options = run.trainer, experiment.params.trainer, experiment.options
  if isinstance(trainer, loop_task.OwnedLoop):
    return trainer.in_run(run)
  manager = _build_checkpoint_manager(experiment, trainer)
  records_summaries = experiment.save_summary and experiment.is_chief
  goes_on = bool(manifests.paths(experiment.model_dir))

  def on_restored():
    is_new = not manifests.paths(experiment.model_dir) and not experiment.start.checkpoint  # The damaged are set aside.
    _begin_line(experiment, run, manager)
    if experiment.trains and is_new and (run.record.values['attempt'] > 1 or _was_trained(experiment.model_dir)):
      run.events.tell_anew()
    # Only now are the variables known to be those of the checkpoint's model.
    _tell_params(experiment, run.record, saves=goes_on, warns=False)

  return options.controller_cls(
    strategy=experiment.strategy,
    trainer=trainer if experiment.trains else None,
    evaluator=trainer,
    global_step=trainer.global_step,
    boundaries=boundaries.Boundaries(
      train_steps=config.train_steps,
      steps_per_loop=config.steps_per_loop,
      checkpoint_interval=config.checkpoint_interval,
      intervals=(config.summary_interval, *run.events.actions.intervals),
      saves_at_start=recovery.may_roll_back(config),
    ),
    checkpoint_manager=manager,
    checkpoint=experiment.start.checkpoint,
    summary_interval=config.summary_interval if records_summaries else None,
    train_actions=_train_actions(experiment, run, manager),
    eval_actions=_eval_actions(experiment, trainer),
    events=run.events,
    observers=controller.Observers(
      on_restored, run.enter_stage, run.hang.beat, options.watch or preemption.PreemptionWatch()
    ),
  )


def _train_actions(
  experiment: _Experiment, run: recorded_run.RecordedRun, manager: manager_lib.CheckpointManager
) -> list[orbit.Action]:
  if not experiment.trains:
    return list(experiment.options.train_actions)
  return [
    *experiment.options.train_actions,
    *recovery.get_train_actions(experiment.params, run.trainer, experiment.model_dir, manager, run.events),
  ]


def _eval_actions(experiment: _Experiment, trainer: Any) -> list[orbit.Action]:
  owns, from_chief = best.ownership(experiment.mode, experiment.model_dir), experiment.workers.from_chief
  return [
    *experiment.options.eval_actions,
    *recovery.get_eval_actions(
      experiment.params, trainer, experiment.model_dir, lambda: owns is None or from_chief('owner of averages', owns)
    ),
  ]


def _begin_line(experiment: _Experiment, run: recorded_run.RecordedRun, manager: manager_lib.CheckpointManager) -> None:
  """Notes where a line of training starts, when that checkpoint is restored. Call it on all workers."""
  start, model_dir, trainer = experiment.start, experiment.model_dir, run.trainer
  subfolders = (experiment.params.trainer.best_checkpoint_export_subdir, ema_checkpoints.FOLDER)
  branched = experiment.workers.from_chief(
    'line of training', lambda: training_lines.begin(model_dir, start, subfolders)
  )
  if branched:  # The previous line's rollbacks are not this one's.
    assert start.checkpoint is not None
    manager.rollbacks.read()
    if hasattr(trainer, 'checkpoint_restored'):
      trainer.checkpoint_restored(**manager.continuation(start.checkpoint))
  if not experiment.trains:
    return
  if getattr(trainer, 'guards_updates', False):
    run.count_skips(manager.rollbacks)
  origins = start.origins or [dataclasses.asdict(origin) for origin in training_lines.read(model_dir)]
  run.record.update(evaluates=experiment.evaluates, started_from=origins[-1]['checkpoint'] if origins else None)


# Loop.


def _run_mode(experiment: _Experiment, loop: Any) -> Mapping[str, Any]:
  """Runs the mode. Returns the logs of the last evaluation, {} if the mode has none."""
  mode, config, output = experiment.mode, experiment.params.trainer, None
  with experiment.strategy.scope():
    if mode in ('train', 'train_and_post_eval'):
      output = loop.train(steps=config.train_steps)
    elif mode == 'train_and_eval':
      output = loop.train_and_evaluate(
        train_steps=config.train_steps, eval_steps=config.validation_steps, eval_interval=config.validation_interval
      )
    elif mode == 'eval':
      output = loop.evaluate(steps=config.validation_steps)
    elif mode == 'continuous_eval':
      output = loop.evaluate_continuously(
        steps=config.validation_steps,
        timeout=config.continuous_eval_timeout,
        timeout_fn=run_status.TrainingWatch(experiment.model_dir, config.train_steps).has_ended,
      )
    else:
      raise errors.UserError(f'--mode={mode}: no such mode')
    if mode == 'train_and_post_eval' or experiment.run_post_eval:
      output = loop.evaluate(steps=config.validation_steps)
  return output or {}


# Parts of a run that others build too.


def build_trainer(
  strategy: tf.distribute.Strategy,
  task: Any,
  params: definitions.ExperimentConfig,
  model_dir: str | None,
  train: bool,
  evaluate: bool,
  mode: str = 'train_and_eval',
  profiler: profiling.Profiler | None = None,
) -> base_trainer.Trainer:
  """Builds model, optimizer and trainer inside the strategy's scope; `mode` decides who writes the best checkpoints.

  Raises:
    UserError: a part cannot be built, the task's own trainer takes no `profiler`, or the task owns its loop.
  """
  if isinstance(task, loop_task.LoopTask):
    raise errors.UserError(f'--experiment: {type(task).__name__} trains in a loop of its own, and has no step to run')
  trainer_cls = getattr(task, 'trainer_cls', None) or base_trainer.Trainer
  if profiler is not None:
    trainer_cls = _with_profiler(trainer_cls, profiler)
  exporter = make_exporter(strategy, params, model_dir, mode) if evaluate else None
  with strategy.scope(), required_fields.named(params.task, type(task).__name__):
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


def _with_profiler(trainer_cls: Callable[..., Any], profiler: profiling.Profiler) -> Callable[..., Any]:
  try:
    inspect.signature(trainer_cls).bind_partial(profiler=profiler)
  except TypeError as error:
    raise errors.UserError(
      f'--profile_steps: {getattr(trainer_cls, "__name__", trainer_cls)} takes no argument `profiler`; let its '
      'constructor take **kwargs and hand them on to official_ext.Trainer'
    ) from error
  return functools.partial(trainer_cls, profiler=profiler)


def make_exporter(
  strategy: tf.distribute.Strategy, params: definitions.ExperimentConfig, model_dir: str | None, mode: str
) -> best.BestCheckpointExporter | None:
  """Makes the exporter of the best checkpoints; None if the configuration asks for none."""
  is_chief = strategy.extended.should_checkpoint
  return best.maybe_create(params, model_dir, mode, is_chief, workers_lib.get(strategy))


def build_event_actions(
  params: definitions.ExperimentConfig, task: Any, trainer: base_trainer.Trainer, mode: str
) -> list[Any]:
  """Makes the actions that the task and the configuration take at the events of a training."""
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
