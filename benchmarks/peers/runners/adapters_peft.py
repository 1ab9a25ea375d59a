"""LoRA over weights in NF4 by peft and bitsandbytes, in PyTorch, from the same folder."""

from collections.abc import Mapping

import official_ext as ext  # noqa: F401  It writes the folder.

# isort: split
import os
import pathlib
import tempfile

import peft
import torch
from torch.nn import functional
import transformers

from benchmarks.peers import protocol
from benchmarks.peers.runners import language_models

LAYERS, WIDTH, RANK, ALPHA = 8, 512, 8, 16.0  # Those of adapters.py.


def measurement(work: None) -> protocol.Measurement:
  """Steps."""
  del work
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  rows = language_models.rows()
  packed = transformers.BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type='nf4',
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.float32,
  )
  with tempfile.TemporaryDirectory() as folder:
    language_models.make_folder(pathlib.Path(folder), LAYERS, WIDTH)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=packed)
  config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules='all-linear', task_type='CAUSAL_LM')
  # As transformers' Trainer does. `from_pretrained` returns a model in evaluation mode; there, bitsandbytes packs its
  # weights anew for processors with AVX-512 BF16, and the products with those have no gradient.
  model = peft.get_peft_model(base, config).train()
  trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
  optimizer = torch.optim.AdamW(
    trained, rows.learning_rate, (rows.beta_1, rows.beta_2), rows.epsilon, rows.weight_decay, fused=True
  )
  inputs, labels = torch.as_tensor(rows.inputs).long(), torch.as_tensor(rows.labels).long()
  loss_of = lambda: functional.cross_entropy(model(input_ids=inputs).logits.float().flatten(0, 1), labels.flatten())

  def loss() -> float:
    with torch.no_grad():
      return float(loss_of())

  def run(num_steps: int) -> Mapping[str, float]:
    for _ in range(num_steps):
      loss = loss_of()
      optimizer.zero_grad()
      loss.backward()
      torch.nn.utils.clip_grad_norm_(trained, rows.clip_norm)
      optimizer.step()
    return {'loss': float(loss.detach())}

  return protocol.Measurement(run, 1, sum(parameter.numel() for parameter in trained), loss)
