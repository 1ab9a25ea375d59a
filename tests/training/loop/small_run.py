"""Whole runs of a small task in this process: parameters, task, run_experiment, and its files."""

import json
import pathlib
from typing import Any

import tf_keras

from official_ext.data import sources
from official_ext.data import step_indexed
from official_ext.training.config import definitions
from official_ext.training.loop import train_lib
from tests.training.loop import harness

NUM_EXAMPLES, BATCH_SIZE = 64, 8


class SmallTask(harness.LinearTask):
  """Softmax regression on 64 examples, of which the task knows the number."""

  def build_inputs(self, params, input_context=None):
    x, y = self.data if params.is_training else self.validation_data
    source = sources.ArraySource({'x': x, 'y': y})
    return step_indexed.build_dataset(source, params, input_context).map(lambda batch: (batch['x'], batch['y']))

  def num_examples(self, params):
    return len(self.data[1])


def make_params(runtime: Any = None, **trainer: Any) -> definitions.ExperimentConfig:
  """An experiment without XLA, which takes longer to compile than these steps to run; 12 steps in loops of 5."""
  defaults = {
    'train_steps': 12,
    'steps_per_loop': 5,
    'summary_interval': 100,
    'checkpoint_interval': 4,
    'validation_interval': 6,
    'optimizer_config': {
      'optimizer': {'type': 'sgd', 'sgd': {'momentum': 0.9}},
      'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.1}},
    },
  }
  return definitions.ExperimentConfig(
    task=definitions.TaskConfig(
      train_data=definitions.DataConfig(global_batch_size=BATCH_SIZE, is_training=True, seed=0),
      validation_data=definitions.DataConfig(global_batch_size=BATCH_SIZE, is_training=False),
    ),
    trainer=definitions.TrainerConfig(**{**defaults, **trainer}),
    runtime=definitions.RuntimeConfig(**{'enable_xla': False, **(runtime or {})}),
  )


def make_task(params: Any, task_cls: Any = SmallTask, replicas: str = 'one') -> SmallTask:
  with harness.strategy(replicas).scope():
    return task_cls(params.task, harness.make_data(NUM_EXAMPLES))


def run(
  folder: Any,
  mode: str = 'train_and_eval',
  task_cls: Any = SmallTask,
  replicas: str = 'one',
  params: Any = None,
  trainer: Any = None,
  run_post_eval: bool = False,
  save_summary: bool = True,
  **options: Any,
) -> Any:
  """`run_experiment` in `folder`; `trainer` overrides fields of params.trainer, other arguments are `RunOptions`."""
  params = params or make_params(**(trainer or {}))
  tf_keras.utils.set_random_seed(getattr(params.runtime, 'seed', 0))
  task = make_task(params, task_cls, replicas)
  return train_lib.run_experiment(
    harness.strategy(replicas),
    task,
    mode,
    params,
    str(folder),
    run_post_eval,
    save_summary,
    options=train_lib.RunOptions(**options),
  )


def events(folder: Any, event: str = '', name: str = 'events.jsonl') -> list[dict[str, Any]]:
  """The lines of events.jsonl as they stand, of one kind or all."""
  lines = (pathlib.Path(folder) / name).read_text().splitlines()
  return [line for line in map(json.loads, lines) if event in ('', line['event'])]


def record(folder: Any, name: str = 'run.json') -> dict[str, Any]:
  return json.loads((pathlib.Path(folder) / name).read_text())
