"""An exception of a user's code ends every command in one line that names its own line: as real processes."""

import re

import pytest

from tests import tiers

TASKS = """
import dataclasses

import numpy as np
from official.core import exp_factory, task_factory
from official_ext.training.tasks import base_task
from official_ext.training.config import definitions as cfg
from official_ext.data import sources, step_indexed
import tensorflow as tf, tf_keras


@dataclasses.dataclass
class BrokenConfig(cfg.TaskConfig):
  how: str = ''
  train_data: cfg.InMemoryDataConfig = dataclasses.field(
      default_factory=lambda: cfg.InMemoryDataConfig(global_batch_size=8, is_training=True))
  validation_data: cfg.InMemoryDataConfig = dataclasses.field(
      default_factory=lambda: cfg.InMemoryDataConfig(global_batch_size=8, is_training=False))


@task_factory.register_task_cls(BrokenConfig)
class Broken(base_task.Task):

  def build_model(self):
    return tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Dense(3)])

  def build_inputs(self, params, input_context=None):
    rng = np.random.default_rng(int(params.is_training))
    y = rng.integers(0, 3, 64) + (self.config.how == 'label')
    source = sources.ArraySource({'x': rng.normal(size=(64, 4)).astype(np.float32), 'y': y})
    return step_indexed.build_dataset(source, params, input_context)

  def forward(self, inputs, model, training):
    logits = model(inputs['x'], training=training)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(inputs['y'], logits))
    if self.config.how == 'raise':
      raise ValueError('there is no such loss')  # raise
    if self.config.how == 'exit':
      raise SystemExit(0)  # exit
    if self.config.how == 'variable':
      loss += tf.Variable(0.0)  # variable
    return loss, {}


@exp_factory.register_config_factory('broken')
def broken():
  return cfg.ExperimentConfig(task=BrokenConfig(), runtime=cfg.RuntimeConfig(enable_xla=False),
      trainer=cfg.TrainerConfig(train_steps=4, steps_per_loop=2, validation_interval=4, checkpoint_interval=4,
          optimizer_config=cfg.OptimizationConfig({
              'optimizer': {'type': 'sgd'}, 'learning_rate': {'type': 'constant'}})))
"""


@pytest.fixture
def broken(tmp_path):
  """broken(how) -> (flags of train.py, file:line as a pattern)."""
  (tmp_path / 'broken_tasks.py').write_text(TASKS)

  def broken(how, *flags):
    line, *_ = [number for number, text in enumerate(TASKS.splitlines(), 1) if text.endswith(f'# {how}')] or [0]
    arguments = ['--experiment=broken', '--registry=broken_tasks', f'--set=task.how={how}', *flags]
    return arguments, rf'(\S*/)?broken_tasks\.py:{line}\b'

  return broken


def the_line(stderr):
  (line,) = [line for line in stderr.splitlines() if line.startswith('error: ')]
  assert 'Traceback' not in stderr, stderr
  return line


def test_training_ends_in_one_line(broken, tmp_path, run_train):
  flags, place = broken('raise', '--mode=train_and_eval', f'--model_dir={tmp_path}/run')
  process = run_train(flags, cwd=tmp_path)
  assert process.returncode == 1
  path = tmp_path / 'run' / 'traceback.txt'
  assert re.fullmatch(
    rf'error: {place}: ValueError: there is no such loss; the traceback is in {re.escape(str(path))}',
    the_line(process.stderr),
  )
  assert 'in user code' in path.read_text()


@tiers.parametrize(
  'how, status, message',
  [
    ('raise', 1, '{place}: ValueError: there is no such loss; the traceback is in '),
    ('label', 2, r'task.train_data: y: 3 is outside of \[0, 3\)'),
  ],
  fast=1,
)
def test_debug_ends_in_one_line(how, status, message, broken, tmp_path, run_train):
  flags, place = broken(how, '--debug')
  process = run_train(flags, cwd=tmp_path)
  assert re.match(f'error: {message.replace("{place}", place)}', the_line(process.stderr))
  assert process.returncode == status


@pytest.mark.slow
@tiers.parametrize(
  'how, message',
  [
    ('variable', 'ValueError: tf.function only supports singleton tf.Variables'),
    ('exit', r': ended the run by sys.exit\(0\)'),
  ],
  fast=1,
)
def test_check_reports_what_fails_before_its_verdict(how, message, broken, tmp_path, start_script):
  flags, place = broken(how)
  process = start_script(f"""
      import os, sys
      from official_ext.cli import main
      os.chdir({str(tmp_path)!r})
      sys.exit(main.main(['check', 'broken', *{flags[1:]!r}]))
      """).finish()
  assert re.match(f'error: {place}:? {message}', the_line(process.stderr))
  assert process.returncode == 2 and 'none found' not in process.stdout
  assert process.stdout.splitlines()[-1].split() == ['mistakes', '1', 'error']
