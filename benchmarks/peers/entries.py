"""The rows and tables of the benchmark: see `catalogue`."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

TENSORFLOW = ('tensorflow', 'tf_keras')
GARDEN = (*TENSORFLOW, 'tf-models-official')


@dataclasses.dataclass(frozen=True)
class Peer:
  """One way to do the work.

  Attributes:
    name: on the command line and in tables.
    runner: the module of runners/.
    settings: of its `measurement`.
    packages: that it needs, whose versions are reported.
    environment: a name in `environments.ENVIRONMENTS`.
    environment_variables: set before the framework is imported.
    goal: the ratio of our rate to this peer's that this project wants; None if it has said none.
    limits: the most that values of its turns may be, by name.
    beside: which of our variants takes turns with it; '' for the workload's `ours`.
  """

  name: str
  runner: str
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  packages: tuple[str, ...] = TENSORFLOW
  environment: str = 'project'
  environment_variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
  goal: float | None = None
  limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
  beside: str = ''

  def __post_init__(self):
    defaults = {'TF_CPP_MIN_LOG_LEVEL': '3', 'CUDA_VISIBLE_DEVICES': ''}
    if self.environment == 'project':
      defaults['TF_USE_LEGACY_KERAS'] = '1'
    object.__setattr__(self, 'environment_variables', {**defaults, **self.environment_variables})


@dataclasses.dataclass(frozen=True)
class Final:
  """The fastest of some of our ways beside the fastest of some peers, which the other rows have found.

  Attributes:
    ours: names of our ways.
    theirs: names of peers.
    goal: as of a `Peer`.
  """

  ours: tuple[str, ...]
  theirs: tuple[str, ...]
  goal: float


@dataclasses.dataclass(frozen=True)
class Workload:
  """Something that all its peers do.

  Attributes:
    letter: its row among the goals, which it may share.
    name: on the command line.
    title: in tables.
    unit: of which there are so many a second.
    work: makes the computation.
    ours: this library.
    peers: the others, and ourselves in another way.
    final: a last row, if there is one.
    inverse_unit: if set, tables tell milliseconds for one of these instead of a rate.
    turn_seconds: how long a turn is, unless the command says otherwise.
    most: the largest amount of a turn; 0 for no limit.
    rounds: turns of a peer with a goal, unless the command says otherwise.
    other_rounds: turns of a peer without.
    same_batches: whether all take the same examples in each step, so that losses after as many steps must agree.
    draws_data: whether each library draws a part of these for itself: losses agree, but not how far they have fallen.
    warms_up: whether the first turn is not counted; in it, what is compiled once is compiled.
    same_work: whether all do the same; False for values compared because they differ, such as depths.
  """

  letter: str
  name: str
  title: str
  unit: str
  work: Callable[[], Any]
  ours: Peer
  peers: tuple[Peer, ...]
  final: Final | None = None
  inverse_unit: str = ''
  turn_seconds: float = 1.0
  most: int = 0
  rounds: int = 5
  other_rounds: int = 2
  same_batches: bool = False
  draws_data: bool = False
  warms_up: bool = True
  same_work: bool = True

  def peer(self, name: str) -> Peer:
    """The peer, or ours, with this name."""
    return {peer.name: peer for peer in (self.ours, *self.peers)}[name]

  def rounds_of(self, peer: Peer) -> int:
    """How many turns a peer has."""
    return self.rounds if peer.goal or peer.limits else self.other_rounds
