"""Continuations by this library, all prompts at once, in one XLA program."""

from collections.abc import Mapping

import official_ext as ext

# isort: split
import pathlib
import tempfile

from benchmarks.peers import protocol
from benchmarks.peers.runners import language_models
from official_ext.language.modeling import generation


def measurement(work: None) -> protocol.Measurement:
  """Tokens, in whole continuations of all prompts."""
  del work
  with tempfile.TemporaryDirectory() as folder:
    language_models.make_folder(pathlib.Path(folder), layers=4, width=256)
    model = ext.pretrained.load(folder)
  config = generation.config_of(model, max_new_tokens=language_models.NEW, temperature=0.0, stop_token_ids=())
  generate, prompts = generation.Generator(model, config), language_models.prompts()
  multiple = language_models.BATCH * language_models.NEW

  def run(num_tokens: int) -> Mapping[str, float]:
    for _ in range(num_tokens // multiple):
      found = generate(prompts)
    assert sum(len(continuation.tokens) for continuation in found) == multiple
    return {'sum_of_tokens': sum(sum(continuation.tokens) for continuation in found)}

  parameters = sum(variable.shape.num_elements() for variable in model.trainable_variables)
  return protocol.Measurement(run, multiple, parameters)
