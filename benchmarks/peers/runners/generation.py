"""Continuations by this library, all prompts at once, in one XLA program."""

from collections.abc import Mapping

import official_ext as ext

# isort: split
import pathlib
import tempfile

from benchmarks.peers import protocol
from benchmarks.peers.runners import language_models
from benchmarks.peers.work import generation as generation_work
from official_ext.language.modeling import generation


def measurement(work: generation_work.Continuations) -> protocol.Measurement:
  """Tokens, in whole continuations of all prompts."""
  with tempfile.TemporaryDirectory() as folder:
    language_models.make_folder(pathlib.Path(folder), layers=4, width=256)
    model = ext.pretrained.load(folder)
  config = generation.config_of(
    model,
    max_new_tokens=work.new_tokens,
    temperature=work.temperature,
    top_k=work.top_k,
    top_p=work.top_p,
    stop_token_ids=(),
  )
  generate, prompts = generation.Generator(model, config), work.prompts()

  def run(num_tokens: int) -> Mapping[str, float]:
    for _ in range(num_tokens // work.num_tokens):
      found = generate(prompts)
    assert sum(len(continuation.tokens) for continuation in found) == work.num_tokens
    return {'sum_of_tokens': sum(sum(continuation.tokens) for continuation in found)}

  parameters = sum(variable.shape.num_elements() for variable in model.trainable_variables)
  return protocol.Measurement(run, work.num_tokens, parameters)
