"""The workloads of fine-tuning: this library's experiments beside TRL's trainers, all else being equal."""

from benchmarks.peers import entries
from benchmarks.peers.work import fine_tuning

_STEPS = 5  # Of a loop here, and between two logs in TRL.
_PACKAGES = ('trl', 'transformers', 'torch', 'peft')


def _workload(name: str, title: str, work: fine_tuning.Tuning, bfloat16: bool = False) -> entries.Workload:
  """A workload; with `bfloat16`, both libraries compute in mixed precision, from and to weights in float32."""
  settings = {'steps_per_loop': _STEPS, 'bfloat16': bfloat16}
  return entries.Workload(
    'l',
    name,
    f'{title}: decoder of 4 layers of 256, family llama, {"mixed bfloat16" if bfloat16 else "float32"}',
    'steps',
    lambda: work,
    entries.Peer('ours', 'fine_tuning', settings, entries.GARDEN),
    (entries.Peer('trl', 'fine_tuning_trl', settings, _PACKAGES, goal=1.2),),
    inverse_unit='step',
    turn_seconds=3.0,
    same_batches=True,
    draws_data=work.method == 'grpo',  # Its completions.
  )


_SFT = fine_tuning.Tuning('sft', num_records=8, prompt_tokens=64, answer_tokens=64)
_DPO = fine_tuning.Tuning('dpo', num_records=8, prompt_tokens=32, answer_tokens=32)
_GRPO = fine_tuning.Tuning('grpo', num_records=4, prompt_tokens=32, answer_tokens=32, num_generations=8)
_SFT_TITLE = 'supervised fine-tuning of all weights, 8 rows of 128 tokens'
_DPO_TITLE = 'DPO of all weights with a reference model, 8 pairs of 64 tokens'
_GRPO_TITLE = 'GRPO of all weights, 4 prompts with 8 completions of 32 tokens each, a reward in Python'

SFT = _workload('sft', _SFT_TITLE, _SFT)
SFT_LORA = _workload(
  'sft_lora',
  'supervised fine-tuning with LoRA of rank 8 on all linear layers, 8 rows of 128 tokens',
  fine_tuning.Tuning('sft', num_records=8, prompt_tokens=64, answer_tokens=64, lora_rank=8),
)
DPO = _workload('dpo', _DPO_TITLE, _DPO)
GRPO = _workload('grpo', _GRPO_TITLE, _GRPO)
SFT_BF16 = _workload('sft_bf16', _SFT_TITLE, _SFT, bfloat16=True)
DPO_BF16 = _workload('dpo_bf16', _DPO_TITLE, _DPO, bfloat16=True)
GRPO_BF16 = _workload('grpo_bf16', _GRPO_TITLE, _GRPO, bfloat16=True)
