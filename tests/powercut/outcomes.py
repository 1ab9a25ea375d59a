"""What a state is worth."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What the next start would find in a state.

  Attributes:
    progress: how far the work is; of two states the larger one has lost less.
    faults: what is wrong with it, in lines.
  """

  progress: tuple[int, ...]
  faults: list[str] = dataclasses.field(default_factory=list)
