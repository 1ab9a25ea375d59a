"""The end of a run: weights that callbacks write then, iterators and caches, and the start after each kind of end."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from official_ext.data import pipelines
from official_ext.training.actions import keras_callbacks
from official_ext.training.actions import triggers
from tests.training.loop import small_run


def with_actions(make):
  return type('Task', (small_run.SmallTask,), {'build_actions': lambda self, trainer: make(trainer)})


def saved_bias(folder, step):
  reader = tf.train.load_checkpoint(f'{folder}/ckpt-{step}')
  (name,) = [name for name in reader.get_variable_to_shape_map() if name.startswith('model/') and '/bias/.ATT' in name]
  return reader.get_tensor(name)


class Restores(tf_keras.callbacks.Callback):
  """Sets all weights to 7 at the end, as EarlyStopping sets the best ones."""

  def on_train_end(self, logs=None):
    self.model.set_weights([np.full_like(weight, 7.0) for weight in self.model.get_weights()])


@pytest.mark.parametrize('mode', ['train', 'train_and_eval'])
def test_weights_of_on_train_end_are_in_the_newest_checkpoint(mode, tmp_path):
  """Steps 12 and 6 are saved; the last step is no multiple of checkpoint_interval."""
  task = with_actions(lambda trainer: [keras_callbacks.KerasCallback(Restores(), trainer)])
  small_run.run(tmp_path, mode, task, trainer={'checkpoint_interval': 5})
  assert (saved_bias(tmp_path, 12) == 7).all() and not (saved_bias(tmp_path, 10) == 7).any()


class Stops(tf_keras.callbacks.EarlyStopping):
  """Takes the number of the epoch for the loss: the first one is the best."""

  def on_epoch_end(self, epoch, logs=None):
    super().on_epoch_end(epoch, {**logs, 'val_loss': epoch})


def test_best_weights_of_keras_are_in_the_newest_checkpoint(tmp_path):
  """Evaluated after 6, 12 and 18 steps; stopped after two epochs that are no better."""
  seen = []
  task = with_actions(
    lambda trainer: [
      triggers.OnEvent('eval', lambda logs: seen.append(trainer.model.get_weights()[1])),
      keras_callbacks.KerasCallback(Stops(patience=2, restore_best_weights=True), trainer),
    ]
  )
  small_run.run(tmp_path, task_cls=task, trainer={'train_steps': 60})
  assert small_run.record(tmp_path)['step'] == 18 and len(seen) == 3
  np.testing.assert_array_equal(saved_bias(tmp_path, 18), seen[0])


def test_weights_that_change_after_the_last_checkpoint_are_reported(tmp_path, capsys):
  task = with_actions(
    lambda trainer: [triggers.AtEnd(lambda logs: trainer.model.trainable_variables[1].assign_add([1.0] * 3))]
  )
  small_run.run(tmp_path, 'train', task)
  assert "changed the model's weights, and ckpt-12 has them as they were" in capsys.readouterr().err
  quiet = with_actions(lambda trainer: [triggers.AtEnd(lambda logs: None)])
  small_run.run(tmp_path / 'quiet', 'train', quiet)
  assert 'warning: an action' not in capsys.readouterr().err


def test_a_resume_warns_of_weights_that_a_callback_has_lost(tmp_path, caplog):
  stop = lambda: tf_keras.callbacks.EarlyStopping(patience=50, restore_best_weights=True)
  task = with_actions(lambda trainer: [keras_callbacks.KerasCallback(stop(), trainer)])
  small_run.run(tmp_path, task_cls=task, trainer={'train_steps': 12, 'validation_interval': 4})
  assert 'best_weights' not in caplog.text
  small_run.run(tmp_path, task_cls=task, trainer={'train_steps': 16, 'validation_interval': 4})
  assert 'The weights in EarlyStopping.best_weights are not in the checkpoint' in caplog.text


# Caches.


def lock_files(folder):
  return sorted(path.name for path in folder.glob('*.lockfile'))


_WRITES = """
import os, sys
import tensorflow as tf
from official_ext.data import pipelines
dataset = tf.data.Dataset.range(40).cache(sys.argv[1])
if len(sys.argv) > 2:
  pipelines.own_caches(dataset)
iterator = iter(dataset)
next(iterator)
print('written', flush=True)
sys.stdin.read()
"""


def killed_while_it_writes(path, *arguments):
  process = subprocess.Popen(
    [sys.executable, '-c', _WRITES, str(path), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  )
  assert process.stdout.readline() == 'written\n'
  yield process
  process.send_signal(signal.SIGKILL)
  process.wait()


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_deleted_and_no_other(tmp_path, capsys):
  path = tmp_path / 'cache'
  dataset = tf.data.Dataset.range(40).cache(str(path)).repeat().batch(4)
  assert pipelines.file_caches(dataset) == [str(path)]
  for arguments, is_deleted in ((('owned',), True), ((), False)):
    running = killed_while_it_writes(path, *arguments)
    next(running)
    pipelines.own_caches(dataset)  # It lives.
    pipelines.release_caches()
    assert lock_files(tmp_path) == ['cache_0.lockfile'], arguments
    list(running)
    pipelines.own_caches(dataset)
    assert bool(lock_files(tmp_path)) != is_deleted
    assert ('cache_0.lockfile: deleted' in capsys.readouterr().out) == is_deleted
    pipelines.release_caches()
    assert not (tmp_path / 'cache.owner').exists()
    for leftover in tmp_path.iterdir():
      leftover.unlink()


_MODULE = """
import dataclasses, os, signal
import tensorflow as tf
import official_ext as ext
from tests.training.loop import harness

@dataclasses.dataclass
class Config(ext.TaskConfig):
  train_data: ext.DataConfig = dataclasses.field(
    default_factory=lambda: ext.DataConfig(global_batch_size=4, is_training=True))

@ext.register_task(Config)
class Task(harness.LinearTask):
  def __init__(self, params, logging_dir=None, name=None):
    super().__init__(params, harness.make_data(40))

  def build_inputs(self, params, input_context=None):
    dataset = tf.data.Dataset.from_tensor_slices(self.data).cache(os.environ['CACHE'])
    return dataset.repeat().batch(params.global_batch_size, drop_remainder=True)

  def build_actions(self, trainer):
    def end(logs):
      kind = os.environ['END']
      if kind == 'error':
        raise OSError('out of order')
      if kind in ('SIGTERM', 'SIGINT', 'SIGKILL'):
        os.kill(os.getpid(), getattr(signal, kind))
    return [ext.EveryNSteps(2, end)]

@ext.register_experiment('caches')
def caches():
  optimizer_config = ext.OptimizationConfig({
    'optimizer': {'type': 'sgd'}, 'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.1}}})
  return ext.ExperimentConfig(task=Config(), trainer=ext.TrainerConfig(
    train_steps=4, steps_per_loop=2, checkpoint_interval=2, optimizer_config=optimizer_config))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  ('kind', 'status'), [('finish', 0), ('SIGINT', 75), ('SIGTERM', 75), ('error', 1), ('SIGKILL', -signal.SIGKILL)]
)
def test_a_second_start_trains_after_each_kind_of_end(kind, status, tmp_path):
  """The first one ends in the middle of the first pass over the cache."""
  (tmp_path / 'caches_module.py').write_text(_MODULE)
  (tmp_path / 'cache').mkdir()
  flags = ['--registry=caches_module', '--experiment=caches', '--mode=train', f'--model_dir={tmp_path}/run']
  environment = {
    **os.environ,
    'PYTHONPATH': os.pathsep.join([str(tmp_path), os.getcwd()]),
    'CACHE': f'{tmp_path}/cache/c',
    'CUDA_VISIBLE_DEVICES': '',
  }

  def start(end, *more):
    return subprocess.run(
      [sys.executable, 'train.py', *flags, *more], env={**environment, 'END': end}, capture_output=True, text=True
    )

  first = start(kind)
  assert first.returncode == status, first.stderr
  assert bool(lock_files(tmp_path / 'cache')) == (kind == 'SIGKILL')
  second = start('finish', '--set=train_steps=30')
  assert second.returncode == 0, second.stderr
  assert lock_files(tmp_path / 'cache') == []
