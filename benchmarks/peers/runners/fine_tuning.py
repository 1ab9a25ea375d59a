"""Fine-tuning by this library's experiments `sft`, `preference` and `grpo`."""

from collections.abc import Mapping
import pathlib
import tempfile
import types

import official_ext as ext  # Before tensorflow.

# isort: split
from official.core import task_factory
import tensorflow as tf

from benchmarks.peers import protocol
from benchmarks.peers.work import fine_tuning
from official_ext.training.config import parser
from official_ext.training.devices import distribute
from official_ext.training.loop import train_lib
import registry_imports  # noqa: F401

_EXPERIMENTS = {'sft': 'sft', 'dpo': 'preference', 'grpo': 'grpo'}
_REWARD = 'first_half'


def settings(
  work: fine_tuning.Tuning, folder: pathlib.Path, records: pathlib.Path, steps_per_loop: int, bfloat16: bool = False
) -> list[str]:
  """The command's --set."""
  found = {
    'model_path': folder,
    'dataset_path': records,
    'batch_size': work.num_records,
    'grad_accum_steps': 1,
    'learning_rate': work.learning_rate,
    'schedule': 'constant',
    'warmup_steps': 0,
    'optimizer': 'adamw_torch',
    'max_grad_norm': work.clip_norm,
    'max_steps': 10**9,
    'trainer.steps_per_loop': steps_per_loop,
    'trainer.summary_interval': steps_per_loop,
    'task.validation_share': 0,
    'task.train_data.use_chat_template': 'false',
    'task.use_lora': str(bool(work.lora_rank)).lower(),
  }
  if bfloat16:
    found['runtime.mixed_precision_dtype'] = 'bfloat16'
  if work.lora_rank:
    found |= {'lora_rank': work.lora_rank, 'lora_alpha': 2 * work.lora_rank}
  if work.method == 'grpo':
    found |= {
      'max_input_length': work.prompt_tokens,
      'max_content_length': work.answer_tokens,
      'num_generations': work.num_generations,
      'reward_funcs': f'[{_REWARD}]',
    }
  else:
    found['max_seq_length'] = work.length
  if work.method == 'sft':
    found |= {
      'prompt_input_column': 'prompt',
      'prompt_output_column': 'completion',
      'task.train_data.packing': 'none',
    }
  return [f'{name}={value}' for name, value in found.items()]


def measurement(work: fine_tuning.Tuning, steps_per_loop: int, bfloat16: bool = False) -> protocol.Measurement:
  """Steps, in whole loops; with `bfloat16` in mixed precision."""
  ext.register_reward(_REWARD)(lambda completions, **columns: fine_tuning.reward(completions))
  place = tempfile.TemporaryDirectory()
  folder = pathlib.Path(place.name)
  sets = settings(work, folder, work.write(folder), steps_per_loop, bfloat16)
  flags = types.SimpleNamespace(experiment=_EXPERIMENTS[work.method], set=sets)
  params = parser.parse_configuration(flags, print_return=False)
  distribute.configure(params.runtime)
  strategy = distribute.get_strategy(params.runtime)
  with strategy.scope():
    task = task_factory.get_task(params.task)
  trainer = train_lib.build_trainer(strategy, task, params, None, train=True, evaluate=False)
  rows = work.check_rows()

  def loss() -> float:
    return float(ext.losses.label(trainer.model(tf.constant(rows[:, :-1]), training=False), tf.constant(rows[:, 1:])))

  def run(num_steps: int) -> Mapping[str, float]:
    with strategy.scope():
      for _ in range(num_steps // steps_per_loop):
        logs = trainer.train(tf.constant(steps_per_loop))
    return {name.removeprefix('training_'): float(logs[name]) for name in ('training_loss', 'reward') if name in logs}

  parameters = sum(variable.shape.num_elements() for variable in trainer.model.trainable_variables)
  return protocol.Measurement(run, steps_per_loop, parameters, loss, lambda: str(trainer.plan), bfloat16, place.cleanup)
