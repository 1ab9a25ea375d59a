"""Writes the record of a run, its parameters, its events and the lines of its start."""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import os
import sys

from absl import logging

from official_ext.base import protocols
from official_ext.base import tf_internals
from official_ext.base.run_folder import run_lock
from official_ext.base.run_folder import run_status
from official_ext.training.actions import event_actions as event_actions_lib
from official_ext.training.checkpoints import manifests
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.devices import distribute
from official_ext.training.loop import experiment_run
from official_ext.training.loop import memory_checks
from official_ext.training.loop import recorded_run
from official_ext.training.loop import run_events
from official_ext.training.loop import run_record
from official_ext.training.model_parts import model_size
from official_ext.training.writers import events_writer
from official_ext.training.writers import named_writers
from official_ext.training.writers import notifications
from official_ext.training.writers import progress
from official_ext.training.writers import system_metrics
from official_ext.training.writers import tensorboard
from official_ext.training.writers import writer_registry
from official_ext.training.writers import writers as writers_lib


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
  devices = distribute.describe(experiment.strategy, experiment.params.runtime)
  record = run_record.RunRecord(
    experiment.model_dir, experiment.mode, params.trainer.train_steps, _seed(params.runtime), devices, is_chief, lock
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
    with contextlib.ExitStack() as stack:
      if experiment.trains and is_chief:
        step = lambda: None if record.is_anothers else record.values['step']
        stack.enter_context(system_metrics.SystemMetrics(experiment.model_dir, step))
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
    _make_writers(run_info, summaries, is_chief),
    event_actions_lib.EventActions(actions, experiment.workers.from_chief, summaries),
    was_finished,
  )


def _make_writers(
  run_info: writer_registry.RunInfo, summaries: tensorboard.TensorBoardWriter | None, is_chief: bool
) -> writers_lib.Writer:
  """Makes the writers of a run: events.jsonl, progress, those that the configuration names. Only for the chief.

  A mode that does not train writes `events.{mode}.jsonl`: it may run beside a training in the same folder.
  """
  if not is_chief:
    return writers_lib.Writers([])
  trainer, model_dir = run_info.params.trainer, run_info.model_dir
  name = 'events.jsonl' if run_info.trains else f'events.{run_info.mode}.jsonl'
  writers: list[writers_lib.Writer] = [events_writer.EventsWriter(os.path.join(model_dir, name))]
  writers.append(progress.ProgressWriter(trainer.train_steps if run_info.trains else 0, bar=trainer.progress_bar))
  if summaries is not None:
    writers.append(summaries)
  for name in trainer.writers:
    if name != 'tensorboard':
      try:
        writers.append(named_writers.make(name, run_info))
      except Exception as error:  # pylint: disable=broad-except  # As for one that fails later.
        logging.exception('The writer %s cannot be made; the run continues without it: %s', name, error)
  if trainer.notifications.urls:
    writers.append(notifications.make(trainer.notifications, model_dir))
  return writers_lib.Writers(writers)


def tell_params(
  experiment: experiment_run.Experiment, record: run_record.RunRecord, saves: bool, warns: bool = True
) -> None:
  """Notes the origin of the experiment; for a training, writes params.yaml and the task's files beside it, and warns
  of schedules that do not fit and of a seed that is not set.
  """
  record.update(**(experiment.options.origin or {}), code=experiment.code.get('code'))
  tells = experiment.is_chief and experiment.trains
  if tells and saves:
    run_record.save_params(experiment.params.masked_yaml(), experiment.model_dir)
    if hasattr(experiment.task, 'keep_files'):
      experiment.task.keep_files(experiment.model_dir)
  lines = [*checks.schedule_warnings(experiment.params.trainer), *_seed_warnings(experiment.params.runtime)]
  for line in lines if tells and warns else ():
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


def tell_start(experiment: experiment_run.Experiment, run: recorded_run.RecordedRun) -> None:
  """Writes the event `start`, and prints a line about each input, and the first example."""
  if experiment.is_chief and hasattr(run.trainer, 'data_summary'):
    run.events.print_lines(run.trainer.data_summary())
  if experiment.is_chief and experiment.trains and hasattr(experiment.task, 'example_lines'):
    run.events.print_lines(experiment.task.example_lines())
  params = experiment.params
  seed = _seed(params.runtime)
  values = {'mode': experiment.mode, 'devices': run.record.values['devices'], 'seed': 'unset' if seed is None else seed}
  if batch_size := epochs.effective_batch_size(params.trainer, params.task):
    values['effective_batch_size'] = batch_size
  run.events.tell('start', int(run.trainer.global_step.numpy()), values)


def tell_model(experiment: experiment_run.Experiment, run: recorded_run.RecordedRun) -> None:
  """Notes and prints the size of the model, once its variables exist, and the memory that training it takes."""
  optimizer = run.trainer.optimizer if experiment.trains else None
  size = model_size.of(run.trainer.model, optimizer)
  if size is None:
    return
  run.record.update(model=dataclasses.asdict(size))
  lines = [f'Model: {size.describe()}']
  memory = memory_checks.estimate(experiment, size, run.trainer.model) if experiment.trains else None
  if memory is not None:
    run.record.update(memory={**dataclasses.asdict(memory), 'peak': memory.peak})
    lines.append(f'Memory: {memory.describe()}')
  if experiment.is_chief:
    run.events.print_lines(lines)
    if memory is not None and (warning := memory.warning()):
      print(f'warning: {warning}', file=sys.stderr, flush=True)
