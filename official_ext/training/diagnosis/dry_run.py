"""--dry_run: runs the whole life of an experiment once, small, in a temporary folder."""

import dataclasses
import os
import sys
import tempfile
import time

import numpy as np
from official.core import train_utils
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.base import tracebacks
from official_ext.training.checkpoints import manifests
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import epochs
from official_ext.training.devices import distribute
from official_ext.training.diagnosis import findings
from official_ext.training.diagnosis import task_checks
from official_ext.training.loop import run_checks
from official_ext.training.loop import train_lib
from official_ext.training.model_parts import model_size
from official_ext.training.step import keras_version
from official_ext.training.tasks import base_task
from official_ext.training.tasks import loop_task
from official_ext.training.tasks import model_garden

_STEPS_OF_OWNED_LOOP = 2


@dataclasses.dataclass
class Rehearsal:
  """The result of a rehearsal.

  Attributes:
    warnings: mistakes that may be intended.
    mistakes: all others, as lines `WHERE: WHAT; HOW`.
  """

  warnings: list[findings.Finding]
  mistakes: list[str]


def run(params: definitions.ExperimentConfig) -> None:
  """Looks for mistakes; trains a step, evaluates a step, saves, restores, compares; prints the plan of a run.

  The verdict comes last: every failure counts as a mistake.

  Args:
    params: the experiment.

  Raises:
    UserError: the experiment cannot run; or the last of the errors in its task, after the others are printed.
  """
  found = rehearse(params)
  for line in found.mistakes[:-1]:
    print(f'error: {line}', file=sys.stderr)
  if found.mistakes:
    raise errors.UserError(found.mistakes[-1])


def rehearse(params: definitions.ExperimentConfig) -> Rehearsal:
  """Does the same as `run`, but returns the mistakes, and prints no errors."""
  found: list[findings.Finding] = []
  mistakes: list[str] = []
  try:
    _live(params, found)
  except (Exception, SystemExit) as error:  # pylint: disable=broad-except  # Anything may be in a task.
    mistakes.append(_explain(error))
  return _report(found, mistakes)


def _live(params: definitions.ExperimentConfig, found: list[findings.Finding]) -> None:
  """Runs the life of an experiment. Adds the findings about its task to `found`; if one is an error, ends there."""
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  _print_row('devices', distribute.describe(strategy, params.runtime))
  with tempfile.TemporaryDirectory(prefix='dry_run-') as folder:
    with strategy.scope():
      task = model_garden.make_task(params.task, logging_dir=folder)
    params = params.replace(trainer=epochs.in_steps(params.trainer, params.task, task))
    _print_row('task', type(task).__name__)
    if isinstance(task, loop_task.LoopTask):
      _rehearse_loop(task, params, folder)
      return
    # Patterns are for the names of a run, which builds one model.
    with tf_internals.layer_names_given_back():
      _build_parts(strategy, task, params)
    with tf_internals.layer_names_given_back():
      found += task_checks.find_in_task(params, folder)
    if any(finding.level == 'error' for finding in found):
      _print_row('life', 'not tried: the errors below come first')
      return
    trainer = train_lib.build_trainer(strategy, task, params, folder, train=True, evaluate=True)
    run_checks.check_log_names(task, trainer, 'train_and_eval')
    run_checks.check_metrics(params.trainer, task, trainer, 'train_and_eval')
    train_lib.build_event_actions(params.trainer, task, trainer, 'train_and_eval')
    with strategy.scope():
      trainer.initialize()
      _train_step(trainer)
      _eval_step(trainer)
      _save_and_restore(trainer, folder)
    if isinstance(task, base_task.Task):
      for line in task.check_result(trainer.model, os.path.join(folder, 'result')):
        _print_row('result', line)
  _print_row('would', _intention(params))
  for line in (*checks.schedule_warnings(params.trainer), *checks.direction_warnings(params.trainer)):
    _print_row('warning', line)


def _rehearse_loop(task: loop_task.LoopTask, params: definitions.ExperimentConfig, folder: str) -> None:
  """Lets a task that owns its loop train as a run would, for some steps; looks at its checkpoints."""
  run = loop_task.LoopRun(params, folder, stop_after=_STEPS_OF_OWNED_LOOP, show=_print_row)
  task.run_loop(run)
  if not run.step:
    raise errors.UserError('the trainer has ended without a step that it has reported: a run could not be followed')
  for line in task.check_result(run.model, os.path.join(folder, 'result')):
    _print_row('result', line)
  _print_row('would', f'train {run.train_steps or "an unknown number of"} steps')


def _print_row(name: str, text: object) -> None:
  print(f'{name:<14} {text}', flush=True)


def _explain(error: BaseException) -> str:
  """Describes a failure in one line."""
  if isinstance(error, SystemExit):
    return tracebacks.describe_exit(error)
  refusal = error if isinstance(error, errors.UserError) else tracebacks.refusal_in(error)
  if refusal is not None:
    return tracebacks.text_of(refusal)
  finding = findings.explain_step(error)
  if finding is not None:
    return str(finding)
  path = tracebacks.save_traceback(error)
  return tracebacks.describe(error) + (f'; the traceback is in {path}' if path else '')


def _report(found: list[findings.Finding], mistakes: list[str]) -> Rehearsal:
  """Prints warnings and the verdict."""
  warnings = [finding for finding in found if finding.level == 'warning']
  mistakes = [*(str(finding) for finding in found if finding.level == 'error'), *mistakes]
  for finding in warnings:
    _print_row('warning', finding)
  counts = [
    f'{len(group)} {name}{"" if len(group) == 1 else "s"}'
    for name, group in (('error', mistakes), ('warning', warnings))
    if group
  ]
  _print_row('mistakes', ', '.join(counts) or 'none found')
  return Rehearsal(warnings, mistakes)


def _build_parts(strategy, task, params):
  """Builds the model and the optimizer alone, which needs no data."""
  with strategy.scope():
    with keras_version.building(task):
      model = task.build_model()
    keras_version.check_model(task, model)
    optimizer = train_utils.create_optimizer(task, params)
    keras_version.check_optimizer(task, optimizer)
  size = model_size.of(model)
  contents = 'whose variables its first step makes' if size is None else size.describe()
  _print_row('model', f'{type(model).__name__}, {contents}')
  _print_row('optimizer', type(optimizer).__name__)


def _train_step(trainer):
  logs = trainer.train(tf.constant(1, tf.int32))
  start = time.perf_counter()
  trainer.train(tf.constant(1, tf.int32))
  seconds = time.perf_counter() - start
  loss = float(logs[trainer.train_loss.name])
  _print_row('step', trainer.plan)
  if not np.isfinite(loss):
    raise errors.UserError(f'task: the loss of the first step is {loss}; --debug looks for the operation')
  _print_row(
    'train step',
    f'training_loss {loss:.4g}; compiled in {trainer.speed.compile_seconds:.1f} s, then {seconds * 1e3:.1f} ms',
  )


def _eval_step(trainer):
  logs = trainer.evaluate(tf.constant(1, tf.int32))
  scalars: dict[str, float] = {}
  for name, value in logs.items():
    value = np.asarray(value)
    if value.size == 1 and value.dtype.kind in 'fiu':
      scalars[name] = float(value.reshape(()))
  _print_row('eval step', ', '.join(f'{name} {value:.4g}' for name, value in scalars.items()))


def _save_and_restore(trainer, folder):
  """Saves, overwrites all variables of the model, restores, and compares every value."""
  checkpoint = trainer.checkpoint
  path = checkpoint.write(os.path.join(folder, 'ckpt'))
  size = sum(tf.io.gfile.stat(name).length for name in manifests.files_of(path))
  frozen_ids = {id(variable) for variable in model_size.constants(trainer.model)}
  variables = [variable for variable in tf_internals.variables_of(trainer.model) if id(variable) not in frozen_ids]
  before = [variable.numpy() for variable in variables]
  for variable in variables:
    variable.assign(tf.zeros_like(variable))
  checkpoint.read(path).assert_existing_objects_matched()
  for variable, value in zip(variables, before):
    if not np.array_equal(variable.numpy(), value, equal_nan=variable.dtype.is_floating):
      raise errors.UserError(f'the checkpoint does not hold {variable.name}: restored, it has other values')
  beside = f'; {len(frozen_ids)} frozen ones come from where the model does' if frozen_ids else ''
  _print_row('checkpoint', f'{size / 2**20:,.1f} MiB, saved and restored, {len(variables)} variables equal{beside}')


def _intention(params) -> str:
  trainer = params.trainer
  batch_size = epochs.effective_batch_size(trainer, params.task)
  return (
    f'train {trainer.train_steps} steps{f" of {batch_size} examples" if batch_size else ""}, evaluate every '
    f'{trainer.validation_interval}, save every {trainer.checkpoint_interval}'
  )
