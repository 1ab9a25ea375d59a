"""The states that a power cut can leave between two calls, as far as they are tried."""

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
import functools
import random

from tests.powercut import file_system

CERTAIN = 'only what was synced'
_BLOCK = 512
_NEWEST = 8  # So many of the last changes are kept, and left out, each by itself.


def _lost(kept: bytes, content: bytes) -> bytes:
  del content
  return kept


def _whole(kept: bytes, content: bytes) -> bytes:
  del kept
  return content


def _half(kept: bytes, content: bytes) -> bytes:
  """The first half of the added bytes; if more than the end has changed, of the file."""
  begin = len(kept) if content.startswith(kept) else 0
  return content[: begin + (len(content) - begin) // 2]


def _zeros(kept: bytes, content: bytes) -> bytes:
  """The new size, and zeros in place of unsynced bytes."""
  begin = len(kept) if content.startswith(kept) else 0
  return content[:begin] + bytes(len(content) - begin)


def _torn(kept: bytes, content: bytes) -> bytes:
  """Every other block is the new one, from the second on; of a small file, its second half."""
  size = min(_BLOCK, max(1, len(content) // 2))
  old = kept.ljust(len(content), b'\0')
  blocks = range(0, len(content), size)
  return b''.join((content if number % 2 else old)[begin : begin + size] for number, begin in enumerate(blocks))[
    : len(content)
  ]


FATES: Mapping[str, Callable[[bytes, bytes], bytes]] = {
  'lost': _lost,
  'whole': _whole,
  'half': _half,
  'zeros': _zeros,
  'torn': _torn,
}


@dataclasses.dataclass(frozen=True)
class State:
  """The state after a power cut.

  Attributes:
    after: the number of the last call before it.
    call: that call, in words.
    kind: which of the possible states this is, in words.
    tree: names and contents.
  """

  after: int
  call: str
  kind: str
  tree: file_system.Tree

  def __str__(self) -> str:
    return f'call {self.after} ({self.call}), {self.kind}'


def states(
  model: file_system.FileSystem, rng: random.Random, num_random: int = 6
) -> Iterator[tuple[str, Callable[[], file_system.Tree]]]:
  """(the kind, its maker) of the states that are possible now; some may be equal.

  Args:
    model: the file system before the power cut.
    rng: draws the last ones.
    num_random: how many are drawn.
  """
  everything = range(len(model.pending))
  unsynced = model.unsynced()
  fates = {fate: functools.cache(functools.partial(_contents, model, unsynced, fate)) for fate in FATES}

  def cut(kept: Iterable[int] = (), fate: str = 'whole') -> Callable[[], file_system.Tree]:
    return lambda: model.after_power_cut(list(kept), fates[fate]())

  yield CERTAIN, cut(fate='lost')
  yield 'all of it', model.tree
  removals = {index for index in everything if model.pending[index].kind == 'remove'}
  if removals and len(removals) < len(everything):
    yield 'names without removals', cut(set(everything) - removals)
    yield 'removals without names', cut(removals)
  for fate in FATES:
    if everything:
      yield f'all names, contents {fate}', cut(everything, fate)
    if unsynced and fate != 'lost':
      yield f'no names, contents {fate}', cut(fate=fate)
  for index in everything[-_NEWEST:] if len(everything) > 1 else ():
    yield f'without change {index}', cut(set(everything) - {index})
    yield f'only change {index}', cut({index})
  for number in range(num_random if everything or unsynced else 0):
    kept = {index for index in everything if rng.random() < (0.2, 0.5, 0.8)[number % 3]}
    drawn = {node: rng.choice(list(FATES)) for node in unsynced}
    yield f'drawn: changes {sorted(kept)} of {len(everything)}', functools.partial(_drawn, model, kept, drawn)


def _contents(model: file_system.FileSystem, nodes: Iterable[int], fate: str) -> dict[int, bytes]:
  return {node: FATES[fate](model.kept_content(node), model.content(node)) for node in nodes}


def _drawn(model: file_system.FileSystem, kept: set[int], fates: Mapping[int, str]) -> file_system.Tree:
  contents = {node: FATES[fate](model.kept_content(node), model.content(node)) for node, fate in fates.items()}
  return model.after_power_cut(kept, contents)
