"""Continuations of prompts, for this library and for transformers. Without TensorFlow or PyTorch."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Continuations:
  """Prompts of equal lengths that are continued at once, past any end.

  Attributes:
    batch: prompts.
    prompt_tokens: of each.
    new_tokens: of each continuation.
    temperature: 0: the likeliest token.
    top_k: only this many of the likeliest tokens are drawn from; 0 for all.
    top_p: only the likeliest tokens that together have this probability; 1 for all.
  """

  batch: int = 4
  prompt_tokens: int = 16
  new_tokens: int = 96
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0

  @property
  def num_tokens(self) -> int:
    """New tokens of all continuations."""
    return self.batch * self.new_tokens

  def prompts(self) -> list[list[int]]:
    """Token ids below 512."""
    return [[(37 * row + 11 * column) % 512 for column in range(self.prompt_tokens)] for row in range(self.batch)]
