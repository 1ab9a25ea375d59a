"""The same fine-tuning by TRL's SFTTrainer, DPOTrainer and GRPOTrainer, in PyTorch, from the same folder."""

import collections
from collections.abc import Mapping
import os
import pathlib
import queue
import tempfile
import threading
from typing import Any

import datasets
import peft
import torch
from torch.nn import functional
import transformers
import trl

from benchmarks.peers import protocol
from benchmarks.peers.work import fine_tuning


class _Turns(transformers.TrainerCallback):
  """Makes the trainer's thread do the requested steps, and then wait.

  It waits in `on_log`, which comes after each loop's steps: the loss of the loop is there, and no step has begun.
  """

  def __init__(self, trainer: Any, steps_per_loop: int):
    self._trainer, self._steps_per_loop = trainer, steps_per_loop
    self._loops: queue.Queue[int] = queue.Queue()
    self._done: queue.Queue[dict[str, float] | BaseException] = queue.Queue()
    self._left = 0
    trainer.add_callback(self)
    threading.Thread(target=self._train, daemon=True).start()

  def run(self, num_steps: int) -> Mapping[str, float]:
    """Does steps, in whole loops. Returns the mean loss of the last loop, and its mean reward if there is one."""
    self._loops.put(num_steps // self._steps_per_loop)
    found = self._done.get()
    if isinstance(found, BaseException):
      raise found
    return found

  def _train(self) -> None:
    try:
      self._trainer.train()
    except BaseException as error:  # pylint: disable=broad-except  # `run` raises it.
      self._done.put(error)

  def on_train_begin(self, *_: Any, **__: Any) -> None:
    """Waits for the first turn."""
    self._left = self._loops.get()

  def on_log(self, *_: Any, logs: Mapping[str, float], **__: Any) -> None:
    """Ends a turn after its last loop, and waits for the next."""
    self._left -= 1
    if not self._left:
      self._done.put({name: logs[name] for name in ('loss', 'reward') if name in logs})
      self._left = self._loops.get()


def _trainer(
  work: fine_tuning.Tuning, folder: pathlib.Path, records: pathlib.Path, steps_per_loop: int, bfloat16: bool
) -> Any:
  """TRL's trainer; fields that are not set here have TRL's defaults."""
  options: dict[str, Any] = {
    'output_dir': str(folder / 'trl'),
    'max_steps': 10**9,
    'per_device_train_batch_size': work.num_records * work.num_generations,
    'learning_rate': work.learning_rate,
    'lr_scheduler_type': 'constant',
    'max_grad_norm': work.clip_norm,
    'logging_steps': steps_per_loop,
    'gradient_checkpointing': False,
    'bf16': bfloat16,
    'use_cpu': not torch.cuda.is_available(),
    'save_strategy': 'no',
    'report_to': [],
    'disable_tqdm': True,
  }
  if work.method == 'grpo':
    lengths = {'max_completion_length': work.answer_tokens, 'num_generations': work.num_generations}
    config = trl.GRPOConfig(**options, **lengths, loss_type='grpo', temperature=1.0)
    own = {'reward_funcs': lambda completions, **columns: fine_tuning.reward(completions)}
  else:
    config = {'sft': trl.SFTConfig, 'dpo': trl.DPOConfig}[work.method](**options, max_length=work.length)
    own = {}
  adapters = peft.LoraConfig(r=work.lora_rank, lora_alpha=2 * work.lora_rank, target_modules='all-linear')
  data = datasets.load_dataset('json', data_files=str(records), split='train', cache_dir=str(folder / 'cache'))
  return {'sft': trl.SFTTrainer, 'dpo': trl.DPOTrainer, 'grpo': trl.GRPOTrainer}[work.method](
    model=str(folder),
    args=config,
    train_dataset=data,
    peft_config=adapters if work.lora_rank else None,
    **own,
  )


def measurement(work: fine_tuning.Tuning, steps_per_loop: int, bfloat16: bool = False) -> protocol.Measurement:
  """Steps, in multiples of the loop, whose mean loss is logged; with `bfloat16` under the trainer's autocast."""
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  place = tempfile.TemporaryDirectory()
  folder = pathlib.Path(place.name)
  records = work.write(folder)
  trainer = _trainer(work, folder, records, steps_per_loop, bfloat16)
  rows = torch.as_tensor(work.check_rows()).long()

  def loss() -> float:
    model = trainer.model.eval()
    with torch.no_grad():
      found = functional.cross_entropy(model(input_ids=rows[:, :-1]).logits.flatten(0, 1), rows[:, 1:].flatten())
    model.train()
    return float(found)

  products = collections.Counter[str]()
  linear = next(module for module in trainer.model.modules() if isinstance(module, torch.nn.Linear))
  linear.register_forward_hook(lambda module, args, output: products.update([str(output.dtype)]))
  note = lambda: 'products in ' + ', '.join(f'{name} ({count} calls)' for name, count in products.items())
  turns = _Turns(trainer, steps_per_loop)
  parameters = sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad)
  return protocol.Measurement(turns.run, steps_per_loop, parameters, loss, note, bfloat16, place.cleanup)
