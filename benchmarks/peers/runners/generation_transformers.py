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
from benchmarks.peers.work import generation as generation_work


def measurement(work: generation_work.Continuations) -> protocol.Measurement:
  """Tokens, in whole continuations of all prompts."""
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  with tempfile.TemporaryDirectory() as folder:
    language_models.make_folder(pathlib.Path(folder), layers=4, width=256)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
  device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
  model.to(device)
  prompts = torch.tensor(work.prompts(), device=device)
  options = {'max_new_tokens': work.new_tokens, 'eos_token_id': None, 'pad_token_id': 0, 'do_sample': False}
  if work.temperature:
    drawn = {'do_sample': True, 'temperature': work.temperature, 'top_k': work.top_k, 'top_p': work.top_p}
    options.update(drawn)

  def run(num_tokens: int) -> Mapping[str, float]:
    with torch.inference_mode():
      for _ in range(num_tokens // work.num_tokens):
        found = model.generate(prompts, attention_mask=torch.ones_like(prompts), **options)[:, work.prompt_tokens :]
    assert found.numel() == work.num_tokens, found.shape
    return {'sum_of_tokens': float(found.sum())}

  return protocol.Measurement(run, work.num_tokens, sum(parameter.numel() for parameter in model.parameters()))
