"""--dry_run: the whole life of an experiment once, small, in a temporary folder."""

import contextlib
import os
import sys
import tempfile
import time
from typing import Any, Dict, Iterator, List

import numpy as np
import tensorflow as tf

from official.core import task_factory
from official.core import train_utils
from official_ext.checks import findings
from official_ext.checks import step_errors
from official_ext.checks import task_checks
from official_ext.core import config_checks
from official_ext.core import config_definitions
from official_ext.core import distribute
from official_ext.core import errors
from official_ext.core import train_lib


def run(params: config_definitions.ExperimentConfig) -> None:
  """Looks for mistakes; one train step, one evaluation step, save, restore, compare; prints what it would do.

  Args:
    params: the experiment.

  Raises:
    UserError: with what keeps the experiment from running, or the last of the errors in its task; those before it are
      printed.
  """
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  _say('devices', distribute.describe(strategy))
  with tempfile.TemporaryDirectory(prefix='dry_run-') as folder:
    with strategy.scope():
      task = task_factory.get_task(params.task, logging_dir=folder)
    params = train_lib.resolve_train_steps(params, task)
    _say('task', type(task).__name__)
    _build_parts(strategy, task, params)
    _report(task_checks.find(params, folder))
    trainer = train_lib.build_trainer(strategy, task, params, folder, train=True, evaluate=True)
    train_lib.check_best_metric(params, task, trainer, True)
    train_lib.check_early_stopping(params, task, trainer, 'train_and_eval')
    with strategy.scope():
      with _explained():
        _train_step(trainer)
        _eval_step(trainer)
      _save_and_restore(trainer, folder)
  _say('would', _intention(params))
  for line in config_checks.schedule_warnings(params):
    _say('warning', line)


def _say(name: str, text: Any) -> None:
  print(f'{name:<14} {text}', flush=True)


def _report(found: List[findings.Finding]) -> None:
  """Prints warnings; raises the last of the errors, after those before it are printed."""
  for finding in found:
    if finding.level == 'warning':
      _say('warning', finding)
  mistakes = [finding for finding in found if finding.level == 'error']
  for finding in mistakes[:-1]:
    print(f'error: {finding}', file=sys.stderr)
  if mistakes:
    raise errors.UserError(str(mistakes[-1]))
  _say('mistakes', f'{len(found)} to look at, above' if found else 'none found')


@contextlib.contextmanager
def _explained() -> Iterator[None]:
  """Turns what a step raises into one line, where it is a known mistake of the task's."""
  try:
    yield
  except Exception as error:
    finding = None if isinstance(error, errors.UserError) else step_errors.explain(error)
    if finding is None:
      raise
    raise errors.UserError(str(finding)) from error


def _build_parts(strategy, task, params):
  """Builds model and optimizer by themselves, which needs no data."""
  with strategy.scope():
    model = task.build_model()
    optimizer = train_utils.create_optimizer(task, params)
  variables = getattr(model, 'variables', ())
  if not variables:
    _say('model', f'{type(model).__name__}, whose variables its first step makes')
  else:
    count = sum(int(np.prod(v.shape)) for v in variables)
    megabytes = sum(np.prod(v.shape) * v.dtype.size for v in variables) / 2**20
    _say('model', f'{type(model).__name__}, {count:,} parameters, {megabytes:,.1f} MiB')
  _say('optimizer', type(optimizer).__name__)


def _train_step(trainer):
  logs = trainer.train(tf.constant(1, tf.int32))
  start = time.perf_counter()
  trainer.train(tf.constant(1, tf.int32))
  seconds = time.perf_counter() - start
  loss = float(logs[trainer.train_loss.name])
  _say('step', trainer.plan)
  _say('train step', f'training_loss {loss:.4g}; compiled in {trainer.pace.compile_seconds:.1f} s, then '
       f'{seconds * 1e3:.1f} ms')


def _eval_step(trainer):
  logs = trainer.evaluate(tf.constant(1, tf.int32))
  scalars: Dict[str, float] = {}
  for name, value in logs.items():
    value = np.asarray(value)
    if value.size == 1 and value.dtype.kind in 'fiu':
      scalars[name] = float(value.reshape(()))
  _say('eval step', ', '.join(f'{name} {value:.4g}' for name, value in scalars.items()))


def _save_and_restore(trainer, folder):
  """Saves, spoils all variables of the model, restores, and compares every value."""
  checkpoint = trainer.checkpoint
  path = checkpoint.write(os.path.join(folder, 'ckpt'))
  size = sum(tf.io.gfile.stat(name).length for name in tf.io.gfile.glob(f'{path}*'))
  variables = trainer.model.variables
  before = [variable.numpy() for variable in variables]
  for variable in variables:
    variable.assign(tf.zeros_like(variable))
  checkpoint.read(path).assert_existing_objects_matched()
  for variable, value in zip(variables, before):
    if not np.array_equal(variable.numpy(), value, equal_nan=variable.dtype.is_floating):
      raise errors.UserError(f'the checkpoint does not hold {variable.name}: restored, it has other values')
  _say('checkpoint', f'{size / 2**20:,.1f} MiB, saved and restored, {len(variables)} variables equal')


def _intention(params) -> str:
  trainer = params.trainer
  return (f'train {trainer.train_steps} steps of {train_lib.effective_batch_size(params)} examples, evaluate every '
          f'{trainer.validation_interval}, save every {trainer.checkpoint_interval}')
