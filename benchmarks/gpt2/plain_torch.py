"""The training in PyTorch, as nanoGPT does it: autocast, fused attention, fused AdamW, TF32 for float32."""

from collections.abc import Mapping
import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.gpt2 import sizes as sizes_lib
from benchmarks.peers import protocol


class Block(nn.Module):
  """x + attention(norm(x)), then x + mlp(norm(x))."""

  def __init__(self, width: int, heads: int):
    super().__init__()
    self._heads = heads
    self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
    self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
    self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    """[b, t, width], and as much out."""
    batch, length, width = x.shape
    y = self.qkv(self.norm_1(x)).view(batch, length, 3, self._heads, width // self._heads)
    y = functional.scaled_dot_product_attention(*y.permute(2, 0, 3, 1, 4), is_causal=True)
    x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
    return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate='tanh'))


class GPT2(nn.Module):
  """Token ids, int64 [b, t], to logits; the head is the embedding."""

  def __init__(self, sizes: sizes_lib.Sizes):
    super().__init__()
    self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
    self.positions = nn.Embedding(sizes.length, sizes.width)
    self.blocks = nn.Sequential(*(Block(sizes.width, sizes.heads) for _ in range(sizes.layers)))
    self.norm = nn.LayerNorm(sizes.width)
    for parameter in self.parameters():
      if parameter.ndim > 1:
        nn.init.normal_(parameter, std=0.02)

  def forward(self, ids: torch.Tensor) -> torch.Tensor:
    """[b, t, vocabulary]."""
    x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
    return functional.linear(self.norm(self.blocks(x)), self.tokens.weight)


def device() -> tuple[str, int]:
  """(name, bytes of memory) of the GPU; ('', 0) without one."""
  if not torch.cuda.is_available():
    return '', 0
  found = torch.cuda.get_device_properties(0)
  return found.name, found.total_memory


def measurement(sizes: sizes_lib.Sizes, batch_size: int, compiled: bool = False) -> protocol.Measurement:
  """Tokens, in whole loops.

  Args:
    sizes: the network.
    batch_size: rows of a batch.
    compiled: whether by `torch.compile`.
  """
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  torch.manual_seed(0)
  torch.set_float32_matmul_precision('high')
  where = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
  model = GPT2(sizes).to(where)
  optimizer = torch.optim.AdamW(
    model.parameters(),
    sizes_lib.LEARNING_RATE,
    betas=(sizes_lib.BETA_1, sizes_lib.BETA_2),
    eps=sizes_lib.EPSILON,
    weight_decay=sizes_lib.WEIGHT_DECAY,
    fused=True,
  )
  drawn = np.random.default_rng(0).integers(0, sizes.vocabulary, [4 * batch_size, sizes.length + 1])
  rows = torch.as_tensor(drawn).to(where)
  forward = torch.compile(model) if compiled else model
  multiple = sizes.steps_per_loop * batch_size * sizes.length
  done = 0

  def run(num_tokens: int) -> Mapping[str, float]:
    nonlocal done
    for _ in range(num_tokens // multiple * sizes.steps_per_loop):
      batch = rows[done % 4 * batch_size :][:batch_size]
      done += 1
      with torch.autocast(where.type, dtype=torch.bfloat16):
        logits = forward(batch[:, :-1])
      loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
      del logits
      optimizer.zero_grad(set_to_none=True)
      loss.backward()
      nn.utils.clip_grad_norm_(model.parameters(), sizes_lib.CLIP_NORM)
      optimizer.step()
    return {'loss': loss.item()}  # Waits.

  parameters = sum(parameter.numel() for parameter in model.parameters())
  return protocol.Measurement(run, multiple, parameters, is_reduced=True)
