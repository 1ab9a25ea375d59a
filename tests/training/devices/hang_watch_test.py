"""Runs that hang: real processes that block in input, evaluation and saves, and some that only seem to."""

import json
import os
import signal
import time

import pytest

from official_ext.training.devices import hang_watch
from tests import tiers

# A run that blocks in one of several places, or is slow there. Arguments: folder, place, seconds, hang_seconds.
SCRIPT = """
import functools, os, sys, time
import numpy as np
import tensorflow as tf
from official_ext.cli import exit_status
from official_ext.cli import train
from tests.training.loop import small_run

folder, place, seconds, hang_seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
counts = {'train': 0, 'eval': 0}

def never_returns(kind, numbers):
  counts[kind] += 1
  if place == f'{kind}:{counts[kind]}' or f'{kind}:*' in place:
    time.sleep(seconds)
  return numbers

class Task(small_run.SmallTask):

  def build_inputs(self, params, input_context=None):
    kind = 'train' if params.is_training else 'eval'
    def pass_on(x, y):
      return tf.ensure_shape(tf.numpy_function(functools.partial(never_returns, kind), [x], x.dtype), x.shape), y
    return super().build_inputs(params, input_context).map(pass_on)

  def forward(self, inputs, model, training):
    if 'trace' in place and training:  # Compilation, as Python sees it.
      time.sleep(4 * seconds)
    return super().forward(inputs, model, training)

if place == 'save':  # Whoever writes to it waits for a reader.
  os.makedirs(folder)
  os.mkfifo(f'{folder}/ckpt-8.manifest.json.tmp')

def main(_):
  small_run.run(folder, task_cls=Task, params=small_run.make_params(
      runtime={'hang_seconds': hang_seconds, 'seed': 1}, train_steps=24, steps_per_loop=2, checkpoint_interval=4))

exit_status.end_process(train.run_main(main, []))
"""


def read(folder):
  events = [json.loads(line) for line in (folder / 'events.jsonl').read_text().splitlines()]
  return json.loads((folder / 'run.json').read_text()), events


@tiers.parametrize(
  ('place', 'stage'),
  [
    ('train:7', 'train'),
    ('save', 'save'),
    *(pytest.param(*case, marks=pytest.mark.soak) for case in [('eval:1', 'eval'), ('train:1', 'train')]),
  ],
  fast=1,
)
def test_a_run_that_hangs_reports_where_and_ends_with_75(place, stage, start_script, tmp_path):
  folder = tmp_path / 'run'
  process = start_script(SCRIPT, [folder, place, '1000', '2']).finish(300)
  assert process.returncode == 75, process.stderr
  assert 'hung: no progress for' in process.stderr and 'Traceback' not in process.stderr
  record, events = read(folder)
  assert (record['status'], record['stage']) == ('hung', stage)
  assert record['finished'] and record['error'].startswith('HungError: no progress for ')
  assert events[-1]['event'] == 'hung' and str(folder / 'hung.worker-0.txt') in events[-1]['error']
  stacks = (folder / 'hung.worker-0.txt').read_text()
  assert stacks.partition('\n\n')[2] in process.stderr
  assert not (folder / 'training.lock').exists()
  assert ('manifests.py' if place == 'save' else 'in never_returns') in stacks
  if place == 'train:7':  # The same command resumes from the newest checkpoint.
    assert start_script(SCRIPT, [folder, 'none', '0', '2']).finish(300).returncode == 0
    record, events = read(folder)
    assert record['status'] == 'finished' and [event['step'] for event in events if event['event'] == 'restored'] == [4]


@pytest.mark.slow
def test_what_is_only_slow_or_stopped_is_left_alone(start_script, tmp_path):
  # Batches that take half of the time that is allowed, a compilation of twice that time, and a process that is stopped
  # for more than that time, as a laptop that sleeps.
  folder = tmp_path / 'run'
  script = start_script(SCRIPT, [folder, 'eval:*,trace', '1', '2'])
  end = time.monotonic() + 300
  while not (folder / 'ckpt-4.manifest.json').exists():
    assert script.process.poll() is None and time.monotonic() < end
    time.sleep(0.05)
  os.kill(script.process.pid, signal.SIGSTOP)
  time.sleep(4)
  os.kill(script.process.pid, signal.SIGCONT)
  process = script.finish(300)
  assert process.returncode == 0, process.stderr
  assert not (folder / 'hung.worker-0.txt').exists()


def test_a_run_that_has_ended_is_not_ended_as_hung(tmp_path):
  """The last moment of a run in which the watch finds it hung."""
  reported = []
  with hang_watch.HangWatch(1.0, lambda: 0, str(tmp_path), report=lambda error, step: reported.append(error)) as watch:
    pass
  watch._end(1.0)  # Before: the process ended.
  assert not reported and not list(tmp_path.iterdir())
