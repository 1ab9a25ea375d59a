"""Builds the outer loop of a run: its checkpoint manager, its boundaries, its actions."""

import dataclasses
import os
from typing import Any

import orbit
import tensorflow as tf

from official_ext.base import protocols
from official_ext.training.checkpoints import best
from official_ext.training.checkpoints import ema_checkpoints
from official_ext.training.checkpoints import manager as manager_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import run_notes
from official_ext.training.checkpoints import training_lines
from official_ext.training.devices import preemption
from official_ext.training.loop import boundaries
from official_ext.training.loop import code_identity
from official_ext.training.loop import controller
from official_ext.training.loop import experiment_run
from official_ext.training.loop import loop_task
from official_ext.training.loop import recorded_run
from official_ext.training.loop import recording
from official_ext.training.loop import recovery
from official_ext.training.writers import events_writer


def _build_checkpoint_manager(experiment: experiment_run.Experiment, trainer: Any) -> manager_lib.CheckpointManager:
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
  """Whether events.jsonl contains steps. It is synced before each manifest; run.json may be lost in a power cut."""
  path = os.path.join(model_dir, 'events.jsonl')
  return tf.io.gfile.exists(path) and any(event['step'] for event in events_writer.read_events(path))


def build_loop(
  experiment: experiment_run.Experiment, run: recorded_run.RecordedRun
) -> controller.Controller | loop_task.OwnedLoop:
  """Builds the outer loop around the run's trainer; nothing is restored yet."""
  trainer, config, options = run.trainer, experiment.params.trainer, experiment.options
  if isinstance(trainer, loop_task.OwnedLoop):
    return trainer.in_run(run)
  manager = _build_checkpoint_manager(experiment, trainer)
  run.checkpoint = manager.checkpoint
  records_summaries = experiment.save_summary and experiment.is_chief
  goes_on = bool(manifests.paths(experiment.model_dir))

  def on_restored():
    # The damaged are set aside. A checkpoint of Model Garden has no manifest, but a step.
    is_new = not (manifests.paths(experiment.model_dir) or experiment.start.checkpoint or trainer.global_step.numpy())
    _begin_line(experiment, run, manager)
    if experiment.trains and is_new and (run.record.values['attempt'] > 1 or _was_trained(experiment.model_dir)):
      run.events.tell_anew()
    # Only now are the variables known to be those of the checkpoint's model.
    recording.tell_params(experiment, run.record, saves=goes_on, warns=False)
    recording.tell_model(experiment, run)

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
  experiment: experiment_run.Experiment, run: recorded_run.RecordedRun, manager: manager_lib.CheckpointManager
) -> list[orbit.Action]:
  if not experiment.trains:
    return list(experiment.options.train_actions)
  return [
    *experiment.options.train_actions,
    *recovery.get_train_actions(experiment.params.trainer, run.trainer, experiment.model_dir, manager, run.events),
  ]


def _eval_actions(experiment: experiment_run.Experiment, trainer: protocols.Trainer) -> list[orbit.Action]:
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
  experiment: experiment_run.Experiment, run: recorded_run.RecordedRun, manager: manager_lib.CheckpointManager
) -> None:
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
