"""Runs an experiment: `run_experiment` checks it, builds the trainer, holds the folder, and runs the loop of the mode.

The parts of that procedure follow in its order: checks, which also choose the start; the trainer and the actions; the
folder and the run's record; the outer loop.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import inspect
import os
import sys
from typing import Any

from absl import logging
from official.core import train_utils
import orbit
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import model_garden_internals
from official_ext.base import protocols
from official_ext.base import tf_internals
from official_ext.base import tracebacks
from official_ext.base.files import paths
from official_ext.base.run_folder import run_lock
from official_ext.base.run_folder import run_log
from official_ext.base.run_folder import run_status
from official_ext.training.actions import plateau
from official_ext.training.actions import triggers
from official_ext.training.checkpoints import best
from official_ext.training.checkpoints import contents
from official_ext.training.checkpoints import exported_weights
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import training_lines
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.devices import cluster
from official_ext.training.devices import distribute
from official_ext.training.devices import workers as workers_lib
from official_ext.training.loop import base_trainer
from official_ext.training.loop import controller
from official_ext.training.loop import recovery
from official_ext.training.loop import run_checks
from official_ext.training.loop import run_options
from official_ext.training.model_parts import model_size
from official_ext.training.optimization import schedules
from official_ext.training.record import code_identity
from official_ext.training.record import profiling
from official_ext.training.record import run_events
from official_ext.training.record import run_record
from official_ext.training.step import gradient_tap
from official_ext.training.step import keras_version
from official_ext.training.tasks import loop_task
from official_ext.training.tasks import model_garden
from official_ext.training.writers import builtin
from official_ext.training.writers import notifications
from official_ext.training.writers import progress
from official_ext.training.writers import registry
from official_ext.training.writers import system_metrics
from official_ext.training.writers import tensorboard
from official_ext.training.writers import writers as writers_lib

RunOptions = run_options.RunOptions


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
    mode: 'train', 'eval', 'train_and_eval', 'continuous_eval' or 'train_and_post_eval'; one that evaluates in the
      evaluator of TF_CONFIG.
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

  Example:

    >>> import tempfile, types
    >>> from experiments import digits_mlp
    >>> settings = ['train_steps=20', 'steps_per_loop=20', 'runtime.enable_xla=false']
    >>> params = ext.parse_configuration(types.SimpleNamespace(experiment='digits_mlp', set=settings))
    >>> tf_keras.utils.set_random_seed(params.runtime.seed)
    >>> strategy = ext.get_strategy(params.runtime)
    >>> with strategy.scope():
    ...   task = digits_mlp.DigitsMlpTask(params.task)
    >>> model, logs = ext.run_experiment(strategy, task, 'train_and_eval', params, model_dir=tempfile.mkdtemp())
    Training data (task.train_data): 1437 examples
    ...
    finished 20/20
    >>> sorted(logs)
    ['accuracy', 'validation_loss']
  """
  tracebacks.shorten_uncaught()
  given = dict(train_actions=train_actions, eval_actions=eval_actions, trainer=trainer, controller_cls=controller_cls)
  options = run_options.merged(options, given, summary_manager if save_summary else None, eval_summary_manager)
  params = distribute.with_policy(definitions.upgrade(params))
  if enable_async_checkpointing is not None:
    params = params.replace(trainer={'async_checkpointing': enable_async_checkpointing})
  if options.origin is None:
    options = dataclasses.replace(options, origin=run_options.origin_by_flag())
  strategy, model_dir = distribution_strategy or tf.distribute.get_strategy(), paths.local(model_dir)
  cluster.check_mode(mode)
  workers_lib.check_cluster(strategy)
  task = model_garden.adapt_task(task)
  return _run(run_options.Experiment(strategy, task, mode, params, model_dir, run_post_eval, save_summary, options))


def _run(experiment: run_options.Experiment) -> tuple[tf_keras.Model, Mapping[str, Any]]:
  """The steps of a run: see `run_experiment`."""
  # Refuse: nothing is written yet.
  with experiment.workers.guarded():
    experiment = _with_start(experiment)
    built, actions = build_trainer_and_actions(experiment)
    experiment = dataclasses.replace(experiment, code=_identify_code(experiment, built))
    _warn_of_unused_bindings(experiment, 'while the experiment was built', of_classes=True)
  # Record: from here on, the folder is this run's, and says how it stands.
  with _holding_folder(experiment) as (experiment, lock), recorded(experiment, built, actions, lock) as run:
    with contextlib.closing(built), experiment.workers.guarded(), run.hang:
      report_start(experiment, run)
      # Run.
      mode, config, logs = experiment.mode, experiment.params.trainer, None
      loop: Any = build_loop(experiment, run)
      with experiment.strategy.scope():
        if mode in ('train', 'train_and_post_eval'):
          logs = loop.train(steps=config.train_steps)
        elif mode == 'train_and_eval':
          interval = _interval(experiment, 'validation_interval')
          logs = loop.train_and_evaluate(config.train_steps, config.validation_steps, interval)
        elif mode == 'continuous_eval':
          has_ended = run_status.TrainingWatch(experiment.model_dir, config.train_steps).has_ended
          logs = loop.evaluate_continuously(config.validation_steps, config.continuous_eval_timeout, has_ended)
        if mode in ('eval', 'train_and_post_eval') or experiment.run_post_eval:
          logs = loop.evaluate(steps=config.validation_steps)
        loop.end()
      _warn_of_unused_bindings(experiment, 'in this run', of_classes=False)
  skipped = run.skipped_updates()
  return built.model, {**(logs or {}), **({'skipped_updates': skipped} if skipped else {})}


# Checks, before anything is written.


def _with_start(experiment: run_options.Experiment) -> run_options.Experiment:
  """The experiment with the start of its run, and its lengths in steps. Refuses one that cannot be run."""
  params = experiment.params
  start = run_checks.check_run(experiment)
  step, before, zero_start = experiment.workers.from_chief(
    'notes of the start', lambda: _noted_at_start(experiment, start)
  )
  params = _with_start_of_averages(params, zero_start, experiment.is_chief)
  lengths = epochs.lengths(params.trainer, params.task, experiment.task, step, before)
  if in_steps := epochs.in_steps(params.trainer, params.task, experiment.task, lengths):
    params = params.replace(trainer=in_steps)
  experiment = dataclasses.replace(
    experiment, start=start, params=params, epochs_so_far=(step, before), lengths=lengths
  )
  run_checks.check_same_params(experiment)
  return experiment


def _noted_at_start(experiment: run_options.Experiment, start: training_lines.Start) -> list[Any]:
  """The notes of the checkpoint with which a training starts.

  Returns:
    Its step; `Lengths.to_json` of the run up to there; whether its averages began at 0, None if it keeps none. Versions
    without `ema_zero_start` began there.
  """
  path = start.checkpoint or next(reversed(manifests.complete_paths(experiment.model_dir)), None)
  if not experiment.trains or path is None or not manifests.has_manifest(path):
    return [0, None, None]
  notes = manifests.entries(path)
  optimizer = notes.get('optimizer_config') or {}
  zero_start = optimizer.get('ema_zero_start', True) if optimizer.get('ema') else None
  return [manifests.step_of(path), notes.get(contents.EPOCHS), zero_start]


def _with_start_of_averages(
  params: definitions.ExperimentConfig, zero_start: bool | None, is_chief: bool
) -> definitions.ExperimentConfig:
  """The configuration with the start of averages of the run that is resumed; None: there is no such run."""
  config = params.trainer.optimizer_config
  if zero_start is None or not config.ema or zero_start == vars(config).get('ema_zero_start'):
    return params
  if is_chief:
    print(f'trainer.optimizer_config.ema_zero_start: {str(zero_start).lower()}, as the run began', flush=True)
  return params.replace(trainer={'optimizer_config': {'ema_zero_start': zero_start}})


def _interval(experiment: run_options.Experiment, name: str) -> epochs.Ends | int:
  """The ends of an interval of the trainer's configuration; 0 for none."""
  return experiment.lengths.ends(name, vars(experiment.params.trainer)[name]) or 0


def _identify_code(experiment: run_options.Experiment, trainer: Any) -> Mapping[str, Any]:
  """Returns `code` and `versions` of the run; refuses workers with other packages, code or data than the chief's."""
  options = experiment.options
  versions = code_identity.versions()
  code = code_identity.of_task(experiment.task, type(experiment.params), options.origin)
  data = trainer.data_identity()
  flags = {name: (options.origin or {}).get(name) for name in ('experiment', 'registry')}
  flags['run_post_eval'] = experiment.run_post_eval
  run_checks.check_same_on_workers(experiment.workers, flags, versions, code, data)
  return {'code': code, 'versions': versions}


def _warn_of_unused_bindings(experiment: run_options.Experiment, when: str, of_classes: bool) -> None:
  """Prints a line about gin's bindings that no call has used. An evaluation does not use the bindings of a training."""
  line = (
    model_garden_internals.unused_bindings_warning(when, of_classes)
    if experiment.trains and experiment.is_chief
    else ''
  )
  if line:
    print(f'warning: {line}', file=sys.stderr, flush=True)


# The trainer and the actions of the events.


def build_trainer_and_actions(experiment: run_options.Experiment) -> tuple[Any, list[Any]]:
  """Builds (trainer, actions of the run's events); refuses metrics that nothing reports, and steps that cannot run."""
  strategy, task, mode, params = experiment.strategy, experiment.task, experiment.mode, experiment.params
  if isinstance(task, loop_task.LoopTask):
    return _make_owned_loop(experiment), []
  profiler = _make_profiler(experiment)
  trainer = experiment.options.trainer or build_trainer(
    strategy, task, params, experiment.model_dir, experiment.trains, experiment.evaluates, mode, profiler
  )
  run_checks.check_log_names(task, trainer, mode, experiment.evaluates)
  run_checks.check_metrics(params.trainer, task, trainer, mode, experiment.evaluates)
  if experiment.trains:
    trainer.speed.lengths = _known_lengths(experiment, trainer)
    line = epochs.position_line(params, trainer.speed.lengths, experiment.epochs_so_far[0])
    if line and experiment.is_chief:
      print(line, flush=True)
    run_checks.check_learning_rate(experiment, trainer)
    trainer.try_step()
  return trainer, build_event_actions(params.trainer, task, trainer, mode) if experiment.trains else []


def _known_lengths(experiment: run_options.Experiment, trainer: base_trainer.Trainer) -> epochs.Lengths:
  """The lengths in epochs of a training whose trainer is made, and so knows the number of its examples."""
  if experiment.lengths.epochs is not None:
    return experiment.lengths
  config, num_examples = experiment.params, trainer.speed.examples_per_epoch
  return epochs.lengths(
    config.trainer, config.task, experiment.task, *experiment.epochs_so_far, num_examples=num_examples
  )


def _make_owned_loop(experiment: run_options.Experiment) -> loop_task.OwnedLoop:
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


def _make_profiler(experiment: run_options.Experiment) -> profiling.Profiler | None:
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
  task = model_garden.adapt_task(task)
  trainer_cls: Callable[..., Any] = task.trainer_cls or base_trainer.Trainer
  run_options.check_trainer_class(f'{type(task).__name__}.trainer_cls', trainer_cls)
  if profiler is not None:
    trainer_cls = _with_profiler(trainer_cls, profiler)
  if train and not params.runtime.mesh.sizes():  # A mesh divides them.
    run_checks.check_memory(task, params.trainer.optimizer_config.optimizer.type, strategy)
  exporter = None
  if evaluate:
    exporter = best.maybe_create(
      params.trainer, model_dir, mode, strategy.extended.should_checkpoint, workers_lib.get(strategy)
    )
  with strategy.scope(), keras_version.building(task):
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
    found = list(task.build_actions(trainer))
  if config.reduce_lr_on_plateau.metric and mode == 'train_and_eval':
    found.append(make_reduce_lr(config.reduce_lr_on_plateau, trainer))
  if config.early_stopping.metric and 'eval' in mode:
    found.append(plateau.EarlyStopping(config.early_stopping))
  for action in found:
    if isinstance(action, triggers.Trigger):
      action.prepare(mode)
  return found


def make_reduce_lr(
  config: definitions.ReduceLROnPlateauConfig, trainer: base_trainer.Trainer
) -> plateau.ReduceLROnPlateau:
  """Puts a factor on the learning rate of the trainer's optimizer, and makes the action that lowers it.

  Raises:
    UserError: the optimizer has a learning rate that cannot be lowered.
  """
  with trainer.strategy.scope():
    try:
      scale = schedules.LearningRateScale(gradient_tap.inner_optimizer(trainer.optimizer))
    except (ValueError, AttributeError) as error:
      raise errors.UserError(f'trainer.reduce_lr_on_plateau.metric: {error}') from error
  return plateau.ReduceLROnPlateau(config, scale)


# The folder, and the run's record in it.


@contextlib.contextmanager
def _holding_folder(
  experiment: run_options.Experiment,
) -> Iterator[tuple[run_options.Experiment, run_lock.RunLock | None]]:
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


def _take_lock(experiment: run_options.Experiment) -> run_lock.RunLock | None:
  """Takes the lock that allows training in the folder; None if the mode, or this worker, needs none."""
  if not (experiment.trains and experiment.is_chief):
    return None
  lock, watch = run_lock.RunLock(experiment.model_dir, experiment.mode), experiment.options.watch
  lock.acquire(lambda: watch.requested if watch else None)
  return lock


@contextlib.contextmanager
def recorded(
  experiment: run_options.Experiment,
  trainer: protocols.Trainer,
  actions: Sequence[object],
  lock: run_lock.RunLock | None,
) -> Iterator[run_record.RecordedRun]:
  """Opens the run's record, and makes its writers; at the end they report how it ended."""
  was_finished = experiment.trains and experiment.workers.from_chief(
    'finished before', lambda: run_status.has_finished(experiment.model_dir, experiment.mode)
  )
  params, is_chief = experiment.params, experiment.is_chief
  devices = distribute.describe(experiment.strategy, experiment.params.runtime)
  record = run_record.RunRecord(
    experiment.model_dir, experiment.mode, params.trainer.train_steps, _seed(params.runtime), devices, is_chief, lock
  )
  run_log.begin(experiment.model_dir, experiment.mode, record.values['attempt'], is_chief)
  try:
    report_params(experiment, record, saves=not manifests.complete_paths(experiment.model_dir))
    events = _make_events(experiment, actions, was_finished)
  except BaseException as error:
    record.finish('failed', error)
    raise
  with run_record.RecordedRun(
    record, events, trainer, params.runtime.hang_seconds, experiment.model_dir, experiment.workers.index
  ) as run:
    with contextlib.ExitStack() as stack:
      if experiment.trains and is_chief:
        step = lambda: None if record.is_anothers else record.values['step']
        stack.enter_context(system_metrics.SystemMetrics(experiment.model_dir, step))
      yield run


def _make_events(
  experiment: run_options.Experiment, actions: Sequence[object], was_finished: bool
) -> run_events.RunEvents:
  params, is_chief = experiment.params, experiment.is_chief
  classes = tuple(experiment.task.class_names)
  run_info = registry.RunInfo(experiment.model_dir, experiment.mode, params, classes)
  writes_summaries = experiment.save_summary and is_chief and 'tensorboard' in params.trainer.writers
  summaries = tensorboard.make(run_info) if writes_summaries else None
  return run_events.RunEvents(
    _make_writers(run_info, summaries, is_chief),
    triggers.EventActions(actions, experiment.workers.from_chief, summaries),
    was_finished,
  )


def _make_writers(
  run_info: registry.RunInfo, summaries: tensorboard.TensorBoardWriter | None, is_chief: bool
) -> writers_lib.Writer:
  """Makes the writers of a run: events.jsonl, progress, those that the configuration names. Only for the chief.

  A mode that does not train writes `events.{mode}.jsonl`: it may run during a training in the same folder.
  """
  if not is_chief:
    return writers_lib.Writers([])
  trainer, model_dir = run_info.params.trainer, run_info.model_dir
  name = 'events.jsonl' if run_info.trains else f'events.{run_info.mode}.jsonl'
  writers: list[writers_lib.Writer] = [writers_lib.EventsWriter(os.path.join(model_dir, name))]
  writers.append(progress.ProgressWriter(trainer.train_steps if run_info.trains else 0, bar=trainer.progress_bar))
  if summaries is not None:
    writers.append(summaries)
  for name in trainer.writers:
    if name != 'tensorboard':
      try:
        writers.append(builtin.make(name, run_info))
      except Exception as error:  # pylint: disable=broad-except  # As for one that fails later.
        logging.exception('The writer %s cannot be made; the run continues without it: %s', name, error)
  if trainer.notifications.urls:
    writers.append(notifications.make(trainer.notifications, model_dir))
  return writers_lib.Writers(writers)


def report_params(
  experiment: run_options.Experiment, record: run_record.RunRecord, saves: bool, warns: bool = True
) -> None:
  """Notes the origin of the experiment; for a training, writes params.yaml and the task's files next to it, and warns
  of schedules that do not fit, of a seed that is not set, and of an unknown direction of the best checkpoint's metric.
  """
  record.update(**(experiment.options.origin or {}), code=experiment.code.get('code'))
  writes_params = experiment.is_chief and experiment.trains
  if writes_params and saves:
    run_record.save_params(experiment.params.masked_yaml(), experiment.model_dir)
    experiment.task.keep_files(experiment.model_dir)
  lines = []
  if experiment.trains:
    lines += [*checks.schedule_warnings(experiment.params.trainer), *_seed_warnings(experiment.params.runtime)]
    lines += run_checks.object_warnings(experiment.params.task)
  if experiment.evaluates and experiment.mode != 'eval':  # Which never writes the best checkpoints.
    lines += checks.direction_warnings(experiment.params.trainer)
  for line in lines if experiment.is_chief and warns else ():
    print(f'warning: {line}', file=sys.stderr, flush=True)


def _seed(runtime: definitions.RuntimeConfig) -> int | None:
  """`runtime.seed`, if this process has it: a custom driver may set none, or another."""
  return runtime.seed if tf_internals.global_seed() == runtime.seed else None


def _seed_warnings(runtime: definitions.RuntimeConfig) -> list[str]:
  """A line if initial weights and the order of a pipeline do not follow from `runtime.seed`; else []."""
  found = tf_internals.global_seed()
  if found == runtime.seed:
    return []
  state = 'no seed' if found is None else f'the seed {found}'
  return [
    f'runtime.seed: is {runtime.seed}, and this driver has set {state}: another start may have other initial weights '
    'and another order of examples; call tf_keras.utils.set_random_seed(params.runtime.seed) before the task is made '
    '("Seed of a driver" in docs/getting_started/from_model_garden.md)'
  ]


def report_start(experiment: run_options.Experiment, run: run_record.RecordedRun) -> None:
  """Writes the event `start`, and prints a line about each input, and the first example."""
  if experiment.is_chief:
    run.events.print_lines(run.trainer.data_summary())
    run.record.update(balance=run.trainer.data_balance())
  if experiment.is_chief and experiment.trains:
    run.events.print_lines(experiment.task.example_lines())
  params = experiment.params
  seed = _seed(params.runtime)
  values = {'mode': experiment.mode, 'devices': run.record.values['devices'], 'seed': 'unset' if seed is None else seed}
  if batch_size := epochs.effective_batch_size(params.trainer, params.task):
    values['effective_batch_size'] = batch_size
  run.events.report('start', int(run.trainer.global_step.numpy()), values)


def report_model(experiment: run_options.Experiment, run: run_record.RecordedRun) -> None:
  """Notes and prints the size of the model, once its variables exist, and the memory that training it takes."""
  optimizer = run.trainer.optimizer if experiment.trains else None
  size = model_size.of(run.trainer.model, optimizer)
  if size is None:
    return
  run.record.update(model=dataclasses.asdict(size))
  lines = [f'Model: {size.describe()}']
  memory = run_checks.estimate_memory(experiment, size, run.trainer.model) if experiment.trains else None
  if memory is not None:
    run.record.update(memory={**dataclasses.asdict(memory), 'peak': memory.peak})
    lines.append(f'Memory: {memory.describe()}')
  if experiment.is_chief:
    run.events.print_lines(lines)
    if memory is not None and (warning := memory.warning()):
      print(f'warning: {warning}', file=sys.stderr, flush=True)


# The outer loop.


def _build_checkpoint_manager(experiment: run_options.Experiment, trainer: Any) -> manager_lib.CheckpointManager:
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
    trains=experiment.trains,
    is_chief=experiment.is_chief,
    workers=experiment.workers,
    notes=contents.RunNotes(
      config.optimizer_config.as_dict(),
      trainer.data_identity(),
      experiment.code,
      code_identity.describe_changes,
      trainer.speed.lengths.to_json(),
    ),
    create_variables=trainer.create_variables,
  )


def _was_trained(model_dir: str) -> bool:
  """Whether events.jsonl contains steps. It is synced before each manifest; run.json may be lost in a power cut."""
  path = os.path.join(model_dir, 'events.jsonl')
  return paths.exists(path) and any(event['step'] for event in writers_lib.read_events(path))


def build_loop(
  experiment: run_options.Experiment, run: run_record.RecordedRun
) -> controller.Controller | loop_task.OwnedLoop:
  """Builds the outer loop around the run's trainer; nothing is restored yet."""
  trainer, config, options = run.trainer, experiment.params.trainer, experiment.options
  if isinstance(trainer, loop_task.OwnedLoop):
    return trainer.in_run(run)
  manager = _build_checkpoint_manager(experiment, trainer)
  run.checkpoint = manager.checkpoint
  records_summaries = experiment.save_summary and experiment.is_chief
  resumes = bool(manifests.complete_paths(experiment.model_dir))

  def on_restored():
    # The damaged are set aside. A checkpoint of Model Garden has no manifest, but a step.
    is_new = not (
      manifests.complete_paths(experiment.model_dir) or experiment.start.checkpoint or trainer.global_step.numpy()
    )
    _begin_line(experiment, run, manager)
    if experiment.trains and is_new and (run.record.values['attempt'] > 1 or _was_trained(experiment.model_dir)):
      run.events.report_fresh_start()
    # Only now are the variables known to fit the checkpoint's model.
    report_params(experiment, run.record, saves=resumes, warns=False)
    report_model(experiment, run)

  return options.controller_cls(
    strategy=experiment.strategy,
    trainer=trainer if experiment.trains else None,
    evaluator=trainer,
    global_step=trainer.global_step,
    boundaries=controller.Boundaries(
      train_steps=config.train_steps,
      steps_per_loop=config.steps_per_loop,
      checkpoint_interval=_interval(experiment, 'checkpoint_interval'),
      intervals=(_interval(experiment, 'summary_interval'), *run.events.actions.intervals),
      saves_at_start=recovery.may_roll_back(config),
    ),
    checkpoint_manager=manager,
    checkpoint=experiment.start.checkpoint,
    summary_interval=_interval(experiment, 'summary_interval') if records_summaries else None,
    train_actions=_train_actions(experiment, run, manager),
    eval_actions=_eval_actions(experiment, trainer),
    events=run.events,
    on_restored=on_restored,
    on_stage=run.enter_stage,
    heartbeat=run.hang.beat,
    watch=options.watch,
  )


def _train_actions(
  experiment: run_options.Experiment, run: run_record.RecordedRun, manager: manager_lib.CheckpointManager
) -> list[orbit.Action]:
  if not experiment.trains:
    return list(experiment.options.train_actions)
  return [
    *experiment.options.train_actions,
    *recovery.get_train_actions(experiment.params.trainer, run.trainer, experiment.model_dir, manager, run.events),
  ]


def _eval_actions(experiment: run_options.Experiment, trainer: protocols.Trainer) -> list[orbit.Action]:
  owns, from_chief = best.ownership(experiment.mode, experiment.model_dir), experiment.workers.from_chief
  return [
    *experiment.options.eval_actions,
    *recovery.get_eval_actions(
      experiment.params.trainer.max_to_keep,
      trainer,
      experiment.model_dir,
      lambda: owns is None or from_chief('owner of averages', owns),
    ),
  ]


def _begin_line(
  experiment: run_options.Experiment, run: run_record.RecordedRun, manager: manager_lib.CheckpointManager
) -> None:
  """Notes where a line of training starts, when that checkpoint is restored. Call it on all workers."""
  start, model_dir, trainer = experiment.start, experiment.model_dir, run.trainer
  subfolders = (experiment.params.trainer.best_checkpoint_export_subdir, exported_weights.EMA_FOLDER)
  branched = experiment.workers.from_chief(
    'line of training', lambda: training_lines.begin_line(model_dir, start, subfolders)
  )
  if branched:  # The previous line's rollbacks are not this one's.
    assert start.checkpoint is not None
    manager.rollbacks.read()
    trainer.checkpoint_restored(**manager.continuation(start.checkpoint))
  if not experiment.trains:
    return
  if trainer.guards_updates:
    run.count_skips(manager.rollbacks)
  origins = start.origins or [dataclasses.asdict(origin) for origin in training_lines.read_origin(model_dir)]
  run.record.update(evaluates=experiment.evaluates, started_from=origins[-1]['checkpoint'] if origins else None)
