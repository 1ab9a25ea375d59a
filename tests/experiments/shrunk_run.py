"""The experiments of this repository, shrunk, in this process: trainers, whole runs, and resuming from a checkpoint."""

import pathlib
from typing import Any

import numpy as np
from official.core import exp_factory
from official.core import task_factory
import pytest
import tensorflow as tf
import tf_keras

from official_ext.training.config import definitions
from official_ext.training.config import overrides as overrides_lib
from official_ext.training.loop import base_trainer
from official_ext.training.loop import train_lib
from tests.training.loop import harness

# (replicas, enable_xla) for `assert_resumes_bit_for_bit`.
CONTINUATIONS = [
  ('one', False),
  *(pytest.param(*case, marks=pytest.mark.soak) for case in (('one', True), ('two', False))),
]


def make_params(
  experiment: str, *overrides: dict, enable_xla: Any = False, **trainer: Any
) -> definitions.ExperimentConfig:
  """The experiment's own configuration with changes, such as {'task': {'model': {...}}}; 4 steps in loops of 2."""
  params = exp_factory.get_exp_config(experiment)
  lengths = {
    'train_steps': 4,
    'steps_per_loop': 2,
    'summary_interval': 2,
    'validation_interval': 2,
    'checkpoint_interval': 2,
  }
  shrink = {
    'trainer': {**lengths, **trainer},
    'runtime': {'enable_xla': enable_xla},
    'task': {'train_data': {'seed': 0}},
  }
  for changes in (shrink, *overrides):
    overrides_lib.override(params, changes)
  return params


def make_task(params: Any, replicas: str = 'one') -> Any:
  """The task, as a new process makes it."""
  with harness.strategy(replicas).scope():
    return task_factory.get_task(params.task)


def make_trainer(params: Any, replicas: str = 'one', evaluate: bool = False) -> base_trainer.Trainer:
  """A trainer, as a new process makes it; the initial weights are the same every time."""
  tf_keras.utils.set_random_seed(7)
  strategy = harness.strategy(replicas)
  return train_lib.build_trainer(strategy, make_task(params, replicas), params, None, train=True, evaluate=evaluate)


def run(folder: Any, params: Any, replicas: str = 'one', mode: str = 'train_and_eval') -> dict[str, Any]:
  """A whole run; the logs of the last evaluation."""
  tf_keras.utils.set_random_seed(7)
  task = make_task(params, replicas)
  return train_lib.run_experiment(harness.strategy(replicas), task, mode, params, str(folder))[1]


def state(trainer: base_trainer.Trainer, folder: pathlib.Path) -> dict[str, np.ndarray]:
  """All that a checkpoint holds, by name."""
  path = trainer.checkpoint.write(str(folder / f'state-{int(trainer.global_step.numpy())}'))
  reader = tf.train.load_checkpoint(path)
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if not name.startswith('_')}


def assert_resumes_bit_for_bit(params: Any, folder: pathlib.Path, replicas: str = 'one') -> dict[str, np.ndarray]:
  """A trainer that is built again and restored at step 3 ends at step 5 as the one that went straight there.

  Returns:
    The contents of its checkpoint at step 5.
  """
  straight = make_trainer(params, replicas)
  harness.train(straight, 3)
  path = straight.checkpoint.write(str(folder / 'ckpt'))
  logs = harness.train(straight, 2)
  expected = state(straight, folder)

  resumed = make_trainer(params, replicas)
  with resumed.strategy.scope():
    resumed.checkpoint.read(path).assert_existing_objects_matched()
  resumed.checkpoint_restored()
  resumed_logs = harness.train(resumed, 2)
  for found, wanted in ((state(resumed, folder), expected), (resumed_logs, logs)):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
      assert np.asarray(found[name]).tobytes() == np.asarray(value).tobytes(), name
  return expected
