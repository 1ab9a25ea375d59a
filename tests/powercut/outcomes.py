"""The value of a state."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The findings of the next start in a state.

  Attributes:
    progress: how far the work is; of two states the larger one has lost less.
    faults: its errors, in lines.
  """

  progress: tuple[int, ...]
  faults: list[str] = dataclasses.field(default_factory=list)
