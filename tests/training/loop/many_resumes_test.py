"""One run that is stopped after each of its steps and resumed by the same command, many times: only logs grow."""

import contextlib
import os
import pathlib
import signal
import time

import numpy as np
import pytest

from official_ext.base import errors
from official_ext.training.devices import signals
from tests.soak import comparison
from tests.training.loop import small_run


def trainer(num_steps):
  return {
    'train_steps': num_steps,
    'steps_per_loop': 1,
    'checkpoint_interval': 1,
    'validation_interval': 2,
    'summary_interval': 1,
    'max_to_keep': 3,
    'writers': ('tensorboard', 'csv'),
    'best_checkpoint_export_subdir': 'best',
    'best_checkpoint_eval_metric': 'validation_loss',
    'best_checkpoint_metric_comp': 'lower',
  }


def stop(output):
  del output
  os.kill(os.getpid(), signal.SIGTERM)


def names(folder):
  """The names of a run's files, without the number of each checkpoint, and how many event files there are."""
  found = [path.name for path in folder.iterdir() if path.is_file()]
  return sorted(name.partition('-')[0] if name.startswith('ckpt-') else name for name in found), len(
    list(folder.rglob('*tfevents*'))
  )


def start_and_stop(folder, num_steps):
  """One start of the command, which a signal stops after its first step; returns its seconds."""
  begin = time.perf_counter()
  with signals.PreemptionWatch() as watch, contextlib.suppress(errors.PreemptedError):
    small_run.run(folder, trainer=trainer(num_steps), watch=watch, train_actions=[stop])
  return time.perf_counter() - begin


def check(tmp_path, num_steps):
  """Stops and resumes at every step; returns the seconds of each start."""
  folder, straight = tmp_path / 'run', tmp_path / 'straight'
  small_run.run(straight, trainer=trainer(num_steps))
  seconds, files, sizes = [], [], []
  for _ in range(num_steps):
    seconds.append(start_and_stop(folder, num_steps))
    files.append(names(folder))
    sizes.append((folder / 'events.jsonl').stat().st_size)
  small_run.run(folder, trainer=trainer(num_steps))  # With the evaluation of the last step.
  assert comparison.differences(folder, straight) == []
  record = small_run.record(folder)
  assert (record['attempt'], record['step']) == (num_steps + 1, num_steps)
  _check_growth(num_steps, folder, files, sizes)
  return seconds


def _check_growth(num_steps, folder: pathlib.Path, files, sizes):
  settled = num_steps // 2
  assert files[-1][0] == files[settled][0]  # No file is added, also no params.N.yaml.
  assert files[-1][1] <= 2 * num_steps + 2  # TensorFlow begins an event file at each start that logs, and evaluates.
  per_start = np.diff(sizes)
  assert max(per_start) < 6_000, 'bytes of events.jsonl in one start'
  steps = [int(line.split(',')[0]) for line in (folder / 'train.csv').read_text().splitlines()[1:]]
  assert steps == list(range(1, num_steps + 1))


@pytest.mark.slow
def test_six_resumes(tmp_path):
  check(tmp_path, 6)


@pytest.mark.soak
def test_a_thousand_resumes(tmp_path):
  resumed = np.median(check(tmp_path, 1000)[-20:])
  # The process has grown, too: the cost of the folder is the difference to a new one.
  new = np.median([start_and_stop(tmp_path / f'new-{number}', 1000) for number in range(20)])
  print(f'a start takes {resumed:.2f} s after a thousand resumes, {new:.2f} s in a new folder')
  assert resumed < 2 * new + 0.2
