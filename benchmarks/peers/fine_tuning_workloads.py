"""The workloads of fine-tuning: this library's experiments beside TRL's trainers, all else being equal."""

from benchmarks.peers import entries
from benchmarks.peers.work import fine_tuning

_STEPS = 5  # Of a loop here, and between two logs in TRL.
_PACKAGES = ('trl', 'transformers', 'torch', 'peft')


def _workload(name: str, title: str, work: fine_tuning.Tuning) -> entries.Workload:
  settings = {'steps_per_loop': _STEPS}
  return entries.Workload(
    'l',
    name,
    f'{title}: decoder of 4 layers of 256, family llama, float32',
    'steps',
    lambda: work,
    entries.Peer('ours', 'fine_tuning', settings, entries.GARDEN),
    (entries.Peer('trl', 'fine_tuning_trl', settings, _PACKAGES, goal=1.2),),
    inverse_unit='step',
    turn_seconds=3.0,
    same_batches=True,
  )


SFT = _workload(
  'sft',
  'supervised fine-tuning of all weights, 8 rows of 128 tokens',
  fine_tuning.Tuning('sft', num_records=8, prompt_tokens=64, answer_tokens=64),
)
SFT_LORA = _workload(
  'sft_lora',
  'supervised fine-tuning with LoRA of rank 8 on all linear layers, 8 rows of 128 tokens',
  fine_tuning.Tuning('sft', num_records=8, prompt_tokens=64, answer_tokens=64, lora_rank=8),
)
DPO = _workload(
  'dpo',
  'DPO of all weights with a reference model, 8 pairs of 64 tokens',
  fine_tuning.Tuning('dpo', num_records=8, prompt_tokens=32, answer_tokens=32),
)
GRPO = _workload(
  'grpo',
  'GRPO of all weights, 4 prompts with 8 completions of 32 tokens each, a reward in Python',
  fine_tuning.Tuning('grpo', num_records=4, prompt_tokens=32, answer_tokens=32, num_generations=8),
)
