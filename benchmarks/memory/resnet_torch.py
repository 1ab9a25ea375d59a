"""ResNet-50 in PyTorch, written plainly: He et al., 2015, with the stride in the 3x3 convolution, as Model Garden's."""

import torch
from torch import nn
from torch.utils import checkpoint

_GROUPS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # Filters, blocks, stride of the first.
_EXPANSION = 4


def _convolution(before: int, after: int, size: int, stride: int = 1) -> nn.Sequential:
  """A convolution and the normalisation of its result."""
  return nn.Sequential(
    nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(after, momentum=0.01)
  )


class Bottleneck(nn.Module):
  """relu(shortcut(x) + three convolutions of x)."""

  def __init__(self, before: int, filters: int, stride: int):
    super().__init__()
    after = _EXPANSION * filters
    self.body = nn.Sequential(
      _convolution(before, filters, 1),
      nn.ReLU(inplace=True),
      _convolution(filters, filters, 3, stride),
      nn.ReLU(inplace=True),
      _convolution(filters, after, 1),
    )
    self.shortcut = _convolution(before, after, 1, stride) if before != after or stride > 1 else nn.Identity()

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    """[b, before, h, w] to [b, after, h / stride, w / stride]."""
    return torch.relu(self.shortcut(x) + self.body(x))


class Recomputed(nn.Module):
  """A module of which the backward pass keeps the input alone."""

  def __init__(self, module: nn.Module):
    super().__init__()
    self.module = module

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    """The function of the module."""
    return checkpoint.checkpoint(self.module, x, use_reentrant=False)


def resnet50(num_classes: int, recomputed: bool = False) -> nn.Module:
  """Images, float32 [b, 3, h, w], to logits [b, num_classes]."""
  parts: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
  before = 64
  for filters, num_blocks, stride in _GROUPS:
    for number in range(num_blocks):
      block = Bottleneck(before, filters, stride if number == 0 else 1)
      parts.append(Recomputed(block) if recomputed else block)
      before = _EXPANSION * filters
  return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes))
