"""The network, how much arithmetic a token is, and how much processors can do. Imports no framework."""

from collections.abc import Mapping
import dataclasses


@dataclasses.dataclass(frozen=True)
class Sizes:
  """A GPT-2 and its rows.

  Attributes:
    layers: blocks.
    width: of the residual stream.
    heads: of attention.
    vocabulary: tokens; 50,257 are rounded up to a multiple of 128, as nanoGPT does.
    length: tokens of a row.
    steps_per_loop: of the trainer; PyTorch takes as many between two looks at the clock.
  """

  layers: int = 12
  width: int = 768
  heads: int = 12
  vocabulary: int = 50304
  length: int = 1024
  steps_per_loop: int = 10

  @property
  def num_parameters(self) -> int:
    """Weights: of the embeddings, of each block with its biases and two norms, of the last norm. The head is tied."""
    width = self.width
    block = 12 * width**2 + 13 * width
    return (self.vocabulary + self.length) * width + self.layers * block + 2 * width

  @property
  def flops_per_token(self) -> float:
    """Of forward and backward: 6 for each weight but those of positions, and the products of attention.

    Chowdhery et al., 2022 (PaLM), appendix B; nanoGPT counts the same.
    """
    weights = self.num_parameters - self.length * self.width
    return 6.0 * weights + 12.0 * self.layers * self.width * self.length


GPT2 = Sizes()
TINY = Sizes(layers=2, width=64, heads=2, vocabulary=256, length=32, steps_per_loop=2)
LEARNING_RATE, BETA_1, BETA_2, EPSILON, WEIGHT_DECAY, CLIP_NORM = 6e-4, 0.9, 0.95, 1e-8, 0.1, 1.0

# Dense products in bfloat16, FLOP/s, from NVIDIA's data sheets. The first whose words are all in the name counts.
_PEAKS: Mapping[tuple[str, ...], float] = {
  ('H100', 'PCIe'): 756e12,
  ('H100', 'NVL'): 835e12,
  ('H100',): 989e12,
  ('H200',): 989e12,
  ('GH200',): 989e12,
  ('B200',): 2250e12,
  ('A100',): 312e12,
  ('L40S',): 362e12,
  ('L4',): 121e12,
  ('A10G',): 70e12,
  ('A10',): 125e12,
  ('RTX', '4090'): 165e12,
}


def peak_flops(device: str) -> float:
  """The peak of a GPU by its name, such as 'NVIDIA H100 80GB HBM3'; 0 if its name is not known."""
  words = device.replace('-', ' ').split()
  return next((peak for name, peak in _PEAKS.items() if all(word in words for word in name)), 0.0)


def batch_sizes(memory: int, sizes: Sizes) -> list[int]:
  """Rows of a batch that are worth a try in so many bytes, the largest first: powers of two down to 1.

  A token keeps about 34 numbers of two bytes a layer and unit of width (Korthikanti et al., 2022), the scores of
  attention where they are not fused, and its logits in float32 with their gradient.
  """
  token = sizes.layers * (34 * sizes.width + 5 * sizes.heads * sizes.length) + 10 * sizes.vocabulary
  rows = max(1.0, 2 * (memory - 16 * sizes.num_parameters) / (token * sizes.length))  # Twice: it may be fused.
  return [2**power for power in range(min(8, int(rows).bit_length() - 1), -1, -1)]
