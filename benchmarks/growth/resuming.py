"""The time to resume a run: from run_experiment in its folder to the end of ten steps more."""

import pathlib
import tempfile
import time
from typing import Any

import official_ext as ext

# isort: split
from benchmarks.growth import curves
from benchmarks.peers.runners import tasks
from benchmarks.peers.work import digits
from official_ext.training.devices import distribute
from official_ext.training.loop import train_lib

_STEPS = 10
_REPEATS = 3


def _params(work: Any, train_steps: int) -> ext.ExperimentConfig:
  params = tasks.experiment(work, steps_per_loop=_STEPS, enable_xla=False, progress_bar=False)
  settings = params.trainer
  settings.train_steps, settings.checkpoint_interval, settings.summary_interval = train_steps, _STEPS, _STEPS
  settings.validation_interval = train_steps
  return params


def _run(work: Any, pipeline: bool, folder: str, train_steps: int, begin: int | None = None) -> float:
  """Seconds until `train_steps` are done; `begin` lets a new run begin at that step instead of at 0."""
  params = _params(work, train_steps)
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  start = time.perf_counter()
  with strategy.scope():
    task = tasks.task_class(work, pipeline=pipeline)(params.task)
  options = None
  if begin is not None:
    trainer = train_lib.build_trainer(strategy, task, params, folder, train=True, evaluate=False)
    trainer.global_step.assign(begin)
    options = train_lib.RunOptions(trainer=trainer)
  ext.run_experiment(strategy, task, 'train', params, folder, options=options)
  return time.perf_counter() - start


def seconds(pipeline: bool, step: int, repeats: int = _REPEATS) -> float:
  """The least of some resumes at a step: each restores the checkpoint, trains ten steps and saves.

  Args:
    pipeline: whether the input is tf.data's, whose position is found by skipping; or this library's.
    step: of the checkpoint.
    repeats: how many resumes.
  """
  work = digits.perceptron()
  with tempfile.TemporaryDirectory(prefix='official_ext-resume-') as temporary:
    folder = str(pathlib.Path(temporary, 'run'))
    # The pipeline's first steps need not be skipped to write a checkpoint that says so: ours writes it.
    _run(work, False, folder, step, begin=step - _STEPS)
    return min(_run(work, pipeline, folder, step + _STEPS * (number + 1)) for number in range(repeats))


def measure_resume(quick: bool) -> curves.Panels:
  """At steps up to a thousand million; of tf.data's pipeline up to a hundred thousand."""
  ours, theirs = (
    ((100, 10**6), (100,)) if quick else ((10**2, 10**4, 10**6, 10**8, 10**9), (10**2, 10**3, 10**4, 10**5))
  )
  repeats = 1 if quick else _REPEATS
  seconds(False, 100, 1)  # Imports and makes the one-time parts.
  return {
    'seconds until ten more steps are done': {
      'input of this library': [(step, seconds(False, step, repeats)) for step in ours],
      'a tf.data pipeline': [(step, seconds(True, step, 1 if step > 10**4 else repeats)) for step in theirs],
    }
  }
