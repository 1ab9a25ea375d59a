"""Writes the record of a run, its parameters, its events and the lines of its start."""

from collections.abc import Iterator, Sequence
import contextlib
import sys

from official_ext.base import protocols
from official_ext.base.run_folder import run_lock
from official_ext.base.run_folder import run_status
from official_ext.training.actions import event_actions as event_actions_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.config import checks
from official_ext.training.config import epochs
from official_ext.training.devices import distribute
from official_ext.training.loop import experiment_run
from official_ext.training.loop import recorded_run
from official_ext.training.loop import run_events
from official_ext.training.loop import run_record
from official_ext.training.loop import run_writers
from official_ext.training.writers import tensorboard
from official_ext.training.writers import writer_registry


@contextlib.contextmanager
def recorded(
  experiment: experiment_run.Experiment,
  trainer: protocols.Trainer,
  actions: Sequence[object],
  lock: run_lock.RunLock | None,
) -> Iterator[recorded_run.RecordedRun]:
  """Opens the run's record, and makes its writers; at the end they report how it ended."""
  was_finished = experiment.trains and experiment.workers.from_chief(
    'finished before', lambda: run_status.has_finished(experiment.model_dir, experiment.mode)
  )
  params, is_chief = experiment.params, experiment.is_chief
  devices = distribute.describe(experiment.strategy)
  record = run_record.RunRecord(
    experiment.model_dir, experiment.mode, params.trainer.train_steps, params.runtime.seed, devices, is_chief, lock
  )
  try:
    tell_params(experiment, record, saves=not manifests.paths(experiment.model_dir))
    events = _make_events(experiment, actions, was_finished)
  except BaseException as error:
    record.finish('failed', error)
    raise
  with recorded_run.RecordedRun(
    record, events, trainer, params.runtime.hang_seconds, experiment.model_dir, experiment.workers.index
  ) as run:
    yield run


def _make_events(
  experiment: experiment_run.Experiment, actions: Sequence[object], was_finished: bool
) -> run_events.RunEvents:
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


def tell_params(
  experiment: experiment_run.Experiment, record: run_record.RunRecord, saves: bool, warns: bool = True
) -> None:
  """Notes the origin of the experiment; for a training, writes params.yaml and the task's files beside it, and warns
  of schedules that do not fit.
  """
  record.update(**(experiment.options.origin or {}), code=experiment.code.get('code'))
  tells = experiment.is_chief and experiment.trains
  if tells and saves:
    run_record.save_params(experiment.params.masked_yaml(), experiment.model_dir)
    if hasattr(experiment.task, 'keep_files'):
      experiment.task.keep_files(experiment.model_dir)
  for line in checks.schedule_warnings(experiment.params.trainer) if tells and warns else ():
    print(f'warning: {line}', file=sys.stderr, flush=True)


def tell_start(experiment: experiment_run.Experiment, run: recorded_run.RecordedRun) -> None:
  """Writes the event `start`, and prints a line about each input."""
  if experiment.is_chief and hasattr(run.trainer, 'data_summary'):
    run.events.print_lines(run.trainer.data_summary())
  params = experiment.params
  values = {'mode': experiment.mode, 'devices': run.record.values['devices'], 'seed': params.runtime.seed}
  if batch_size := epochs.effective_batch_size(params.trainer, params.task):
    values['effective_batch_size'] = batch_size
  run.events.tell('start', int(run.trainer.global_step.numpy()), values)
