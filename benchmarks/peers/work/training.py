"""A training that every framework can do: data, first weights and an optimizer, as numbers."""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Work:
  """Classification by a network, with AdamW and clipping by the global norm. The loss is the mean cross-entropy.

  Attributes:
    architecture: 'mlp', 'conv' or 'decoder': a runner knows how its framework builds it.
    sizes: of the architecture.
    inputs: [n, ...], the examples.
    labels: int32 [n] or [n, t].
    batch_size: examples of a step.
    weights: the first values, by name, in the order of a forward pass. Matrices are [in, out], filters [h, w, in, out].
    counts_accuracy: whether trainers count it in each step, as such an experiment does.
    learning_rate: of AdamW, constant.
    weight_decay: of AdamW, of all weights.
    beta_1: of AdamW.
    beta_2: of AdamW.
    epsilon: of AdamW.
    clip_norm: to which the gradient is clipped.
  """

  architecture: str
  sizes: Mapping[str, Any]
  inputs: np.ndarray
  labels: np.ndarray
  batch_size: int
  weights: Mapping[str, np.ndarray]
  counts_accuracy: bool = True
  learning_rate: float = 1e-3
  weight_decay: float = 0.01
  beta_1: float = 0.9
  beta_2: float = 0.999
  epsilon: float = 1e-7
  clip_norm: float = 1.0

  @property
  def num_parameters(self) -> int:
    """Of the network."""
    return sum(weight.size for weight in self.weights.values())

  @property
  def check_batch(self) -> tuple[np.ndarray, np.ndarray]:
    """The batch whose loss at the first weights is compared: the first examples."""
    return self.inputs[: self.batch_size], self.labels[: self.batch_size]

  def batches(self, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches without end, from epochs that are shuffled; incomplete batches are left out."""
    rng = np.random.default_rng(seed)
    while True:
      order = rng.permutation(len(self.inputs))
      for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
        rows = order[start : start + self.batch_size]
        yield self.inputs[rows], self.labels[rows]


class Weights:
  """Draws first weights, in the order in which they are requested."""

  def __init__(self, seed: int = 0):
    self._rng = np.random.default_rng(seed)
    self.drawn: dict[str, np.ndarray] = {}

  def normal(self, name: str, shape: tuple[int, ...], scale: float) -> None:
    """Adds normal numbers with this standard deviation."""
    self.drawn[name] = (scale * self._rng.standard_normal(shape)).astype(np.float32)

  def constant(self, name: str, size: int, value: float) -> None:
    """Adds a vector."""
    self.drawn[name] = np.full([size], value, np.float32)
