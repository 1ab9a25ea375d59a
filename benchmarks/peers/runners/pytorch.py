"""PyTorch: eager, or compiled; float32, or with products in bfloat16 by autocast. AdamW is the fused one."""

from collections.abc import Mapping
import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers import protocol
from benchmarks.peers.work import decoder as decoder_work
from benchmarks.peers.work import training


def measurement(
  work: training.Work, compiled: bool = False, bfloat16: bool = False, phase: str = 'train'
) -> protocol.Measurement:
  """Steps, or examples of predictions.

  Args:
    work: its computation.
    compiled: whether by `torch.compile`.
    bfloat16: whether under autocast.
    phase: 'train' or 'evaluate'.
  """
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  torch.manual_seed(0)
  model = ARCHITECTURES[work.architecture](work)
  assign_weights(model, work)
  device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
  model.to(device)
  optimizer = adamw(model, work)
  inputs, labels = torch.as_tensor(work.inputs), torch.as_tensor(work.labels).long()
  if work.architecture == 'conv':
    inputs = inputs.permute(0, 3, 1, 2).contiguous()
  inputs, labels = inputs.to(device), labels.to(device)
  forward = torch.compile(model) if compiled else model

  def loss_of(call, rows):
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
      logits = call(inputs[rows])
    return functional.cross_entropy(logits.float().flatten(0, -2), labels[rows].flatten())

  def loss() -> float:
    model.eval()
    with torch.no_grad():
      found = float(loss_of(model, slice(work.batch_size)))
    model.train()
    return found

  def rows_of_batches():
    while True:
      order = torch.randperm(len(inputs), device=device)
      yield from order[: len(order) // work.batch_size * work.batch_size].split(work.batch_size)

  batches = rows_of_batches()

  def run(num_steps: int) -> Mapping[str, float]:
    for _ in range(num_steps):
      loss = loss_of(forward, next(batches))
      optimizer.zero_grad()
      loss.backward()
      nn.utils.clip_grad_norm_(model.parameters(), work.clip_norm)
      optimizer.step()
    return {'loss': float(loss.detach())}

  def evaluate(num_examples: int) -> Mapping[str, float]:
    model.eval()
    with torch.inference_mode():
      for _ in range(num_examples // len(inputs)):
        right = sum(
          (forward(rows).argmax(-1) == wanted).sum()
          for rows, wanted in zip(inputs.split(work.batch_size), labels.split(work.batch_size))
        )
    return {'accuracy': float(right) / len(inputs)}

  function, multiple = (run, 1) if phase == 'train' else (evaluate, len(inputs))
  parameters = sum(parameter.numel() for parameter in model.parameters())
  return protocol.Measurement(function, multiple, parameters, loss, is_reduced=bfloat16)


class _Block(nn.Module):
  """x + attention(norm(x)), then x + mlp(norm(x)); query, key and value in one product, PyTorch's own attention."""

  def __init__(self, width: int, heads: int):
    super().__init__()
    self._heads = heads
    self.input_layernorm = nn.LayerNorm(width, decoder_work.EPSILON)
    self.qkv_proj = nn.Linear(width, 3 * width, bias=False)
    self.o_proj = nn.Linear(width, width, bias=False)
    self.pre_feedforward_layernorm = nn.LayerNorm(width, decoder_work.EPSILON)
    self.up_proj, self.down_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

  def forward(self, x):
    batch, length, width = x.shape
    y = self.qkv_proj(self.input_layernorm(x)).view(batch, length, 3, self._heads, width // self._heads)
    y = functional.scaled_dot_product_attention(*y.permute(2, 0, 3, 1, 4), is_causal=True)
    x = x + self.o_proj(y.transpose(1, 2).reshape(batch, length, width))
    return x + self.down_proj(functional.gelu(self.up_proj(self.pre_feedforward_layernorm(x))))


class _Decoder(nn.Module):
  def __init__(self, work: training.Work):
    super().__init__()
    sizes, width = work.sizes, work.sizes['width']
    self.embed_tokens = nn.Embedding(sizes['vocabulary'], width)
    self.embed_positions = nn.Embedding(sizes['length'], width)
    self.blocks = nn.Sequential(*(_Block(width, sizes['heads']) for _ in range(sizes['layers'])))
    self.norm = nn.LayerNorm(width, decoder_work.EPSILON)
    self.lm_head = nn.Linear(width, sizes['vocabulary'], bias=False)

  def forward(self, ids):
    return self.lm_head(self.norm(self.blocks(self.embed_tokens(ids) + self.embed_positions.weight)))


def _perceptron(work: training.Work) -> nn.Module:
  parts: list[nn.Module] = []
  widths = work.sizes['widths']
  for before, after in zip(widths, widths[1:]):
    parts += [nn.Linear(before, after), nn.ReLU()]
  return nn.Sequential(*parts[:-1])


def _convolutional(work: training.Work) -> nn.Module:
  sizes = work.sizes
  parts: list[nn.Module] = []
  before = 1
  for after in sizes['filters']:
    parts += [nn.Conv2d(before, after, 3, padding='same'), nn.ReLU()]
    before = after
  rate, hidden = sizes['dropout_rate'], sizes['hidden_size']
  parts += [nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(rate), nn.Linear(16 * before, hidden), nn.ReLU()]
  return nn.Sequential(*parts, nn.Dropout(rate), nn.Linear(hidden, 10))


ARCHITECTURES = {'mlp': _perceptron, 'conv': _convolutional, 'decoder': _Decoder}


def adamw(model: nn.Module, work: training.Work) -> torch.optim.Optimizer:
  """The work's optimizer, in PyTorch's fastest form."""
  return torch.optim.AdamW(
    model.parameters(),
    work.learning_rate,
    betas=(work.beta_1, work.beta_2),
    eps=work.epsilon,
    weight_decay=work.weight_decay,
    fused=True,
  )


def assign_weights(model: nn.Module, work: training.Work) -> None:
  """Gives a model the work's first weights."""
  for parameter, value in zip(model.parameters(), _values(model, work), strict=True):
    assert parameter.shape == value.shape, (parameter.shape, value.shape)
    with torch.no_grad():
      parameter.copy_(value)


def _values(model: nn.Module, work: training.Work) -> list[torch.Tensor]:
  """The first weights in the order and layout of the model's parameters."""
  weights: dict[str, Any] = {name: torch.as_tensor(value) for name, value in work.weights.items()}
  if work.architecture == 'decoder':
    return [_of_decoder(weights, name) for name, _ in model.named_parameters()]
  if work.architecture == 'conv':  # Flattened channels first, not last.
    channels, width = work.sizes['filters'][-1], work.sizes['hidden_size']
    kernel = weights['dense_0/kernel'].view(4, 4, channels, width).permute(2, 0, 1, 3)
    weights['dense_0/kernel'] = kernel.reshape(16 * channels, width)
  layouts = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
  return [value.permute(layouts[value.ndim]) for value in weights.values()]


def _of_decoder(weights: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
  """The value of a parameter of `_Decoder`."""
  path, _, attribute = name.rpartition('.')
  if path == 'lm_head':
    return weights['lm_head/kernel'].T
  path = 'decoder/' + path.replace('.', '/')
  if path.endswith('qkv_proj'):
    return torch.cat([weights[path.replace('qkv_proj', f'self_attn/{kind}_proj') + '/kernel'].T for kind in 'qkv'])
  if 'embed' in path:
    return weights[f'{path}/embeddings']
  if 'norm' in path:
    return weights[f'{path}/{"scale" if attribute == "weight" else "bias"}']
  part = path.rpartition('/')[2]
  path = path.replace(part, f'self_attn/{part}' if part == 'o_proj' else f'mlp/{part}')
  return weights[f'{path}/bias'] if attribute == 'bias' else weights[f'{path}/kernel'].T
