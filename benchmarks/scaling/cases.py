"""The decoders, devices and splits of the table. All assumptions are here."""

from collections.abc import Iterator
import types

from benchmarks.scaling import collectives
from benchmarks.scaling import model

# NVIDIA's data sheets of H100 SXM and DGX H100: dense bfloat16, 80 GB, NVLink of 900 GB/s for both directions together,
# a network card of 400 Gbit/s for each GPU. Latencies and utilization are assumptions of the usual size.
H100 = model.Machine(
  flops=989e12,
  utilization=0.5,
  memory=80e9,
  network=collectives.Network(node_size=8, inside=collectives.Link(450e9, 3e-6), between=collectives.Link(50e9, 10e-6)),
)
DEVICES = (1, 8, 64, 512, 4096)

_GPT2 = dict(
  vocab_size=50257,
  hidden_size=768,
  intermediate_size=3072,
  num_hidden_layers=12,
  num_attention_heads=12,
  num_key_value_heads=12,
  head_dim=0,
  max_position_embeddings=1024,
  position_embedding_type='learned',
  norm_type='layer_norm',
  gated_mlp=False,
  mlp_bias=True,
  attention_bias=True,
  attention_out_bias=True,
  tie_word_embeddings=True,
)
_LLAMA_7B = dict(
  vocab_size=32000,
  hidden_size=4096,
  intermediate_size=11008,
  num_hidden_layers=32,
  num_attention_heads=32,
  num_key_value_heads=32,
  head_dim=0,
  max_position_embeddings=4096,
  position_embedding_type='rope',
  norm_type='rms_norm',
  gated_mlp=True,
  mlp_bias=False,
  attention_bias=False,
  attention_out_bias=False,
  tie_word_embeddings=False,
)
GPT2 = model.count(types.SimpleNamespace(**_GPT2), length=1024)
LLAMA_7B = model.count(types.SimpleNamespace(**_LLAMA_7B), length=4096)  # The sizes of Llama 2.
# Name -> decoder, rows of the global batch (half a million and four million tokens), most rows at once, splits.
CASES = {
  'GPT-2 124M': (GPT2, 512, 8, ((model.REPLICATED, 1), (model.SHARDED, 1), (model.REPLICATED, 4))),
  '7B': (LLAMA_7B, 1024, 4, ((model.REPLICATED, 1), (model.SHARDED, 1), (model.SHARDED, 4))),
}
_HEAD = (
  'devices',
  'split',
  'memory, GB',
  'products, s',
  'gradients and weights, s',
  'activations, s',
  'step, s',
  'products of the step',
)


def plans(name: str) -> Iterator[model.Plan]:
  """The plans of a decoder, by the number of devices."""
  _, rows, micro_rows, splits = CASES[name]
  for devices in DEVICES:
    for layout, tensor in splits:
      if devices >= tensor and (devices > 1 or layout == model.REPLICATED):
        groups = devices // tensor
        yield model.Plan(devices, rows, layout, tensor, max(1, min(micro_rows, rows // groups)))


def table(name: str) -> list[str]:
  """Lines of Markdown."""
  decoder = CASES[name][0]
  lines = [f'| {" | ".join(_HEAD)} |', f'|{"---|" * len(_HEAD)}']
  for plan in plans(name):
    split = plan.layout + (f', tensor {plan.tensor}' if plan.tensor > 1 else '')
    reason = plan.why_not(H100)
    if reason:
      cells = [reason, '', '', '', '', '']
    else:
      found, shares = model.step(decoder, plan, H100), model.efficiency(decoder, plan, H100)
      memory = f'{found.memory / 1e9:.3g}' + ('' if found.memory <= H100.memory else ': does not fit')
      seconds = [f'{value:.2g}' for value in (found.compute, found.exchange, found.activations)]
      cells = [memory, *seconds, f'{found.least:.2g} to {found.most:.2g}', f'{shares[0]:.0%} to {shares[1]:.0%}']
    lines.append(f'| {plan.devices} | {split} | {" | ".join(cells)} |')
  return lines
