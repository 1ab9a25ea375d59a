"""The same continuations by transformers, in PyTorch, from the same folder."""

from collections.abc import Mapping

import official_ext as ext  # noqa: F401  It writes the folder.

# isort: split
import os
import pathlib
import tempfile

import torch
import transformers

from benchmarks.peers import protocol
from benchmarks.peers.runners import language_models


def measurement(work: None) -> protocol.Measurement:
  """Tokens, in whole continuations of all prompts."""
  del work
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  with tempfile.TemporaryDirectory() as folder:
    language_models.make_folder(pathlib.Path(folder), layers=4, width=256)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
  device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
  model.to(device)
  prompts = torch.tensor(language_models.prompts(), device=device)
  multiple = language_models.BATCH * language_models.NEW
  options = dict(do_sample=False, max_new_tokens=language_models.NEW, eos_token_id=None, pad_token_id=0)

  def run(num_tokens: int) -> Mapping[str, float]:
    with torch.inference_mode():
      for _ in range(num_tokens // multiple):
        found = model.generate(prompts, attention_mask=torch.ones_like(prompts), **options)[:, language_models.PROMPT :]
    assert found.numel() == multiple, found.shape
    return {'sum_of_tokens': float(found.sum())}

  return protocol.Measurement(run, multiple, sum(parameter.numel() for parameter in model.parameters()))
