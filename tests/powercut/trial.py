"""One scenario: records it, tries every state that a power cut can leave, and restores from some of them."""

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
import random
import re
import shutil
import time
from typing import Protocol

from tests import train_processes
from tests.powercut import crash_states
from tests.powercut import file_system
from tests.powercut import folders
from tests.powercut import outcomes
from tests.powercut import recording
from tests.powercut import replay

_MAX_PRINTED = 3  # Failures of one kind that are printed.


class Checks(Protocol):
  """The guarantees for every state; without starting anything."""

  def relevant(self, tree: file_system.Tree) -> file_system.Tree:
    """The files of a state that decide; two states that agree in it are looked at once."""

  def relies_on(self, tree: file_system.Tree) -> int | None:
    """The step, last of the progress, that must be certain to be kept if the program has come this far; None: none."""

  def look(self, folder: pathlib.Path) -> outcomes.Outcome:
    """The findings of the next start. May change the folder, as the start would."""


class Scenario(Protocol):
  """Something that is done, and that a power cut must not destroy.

  Attributes:
    name: for people.
  """

  name: str

  def prepare(self, disk: pathlib.Path, server: train_processes.Server) -> None:
    """Makes the first contents of the disk, all of it synced."""

  def run(self, disk: pathlib.Path, server: train_processes.Server) -> None:
    """Does it, in processes of the server, which record. Raises a RuntimeError if it fails."""

  def checks(self, straight: pathlib.Path, before: pathlib.Path) -> Checks:
    """The guarantees; `straight` and `before` are copies of the disk after and before."""

  def restored(self, disk: pathlib.Path, straight: pathlib.Path, server: train_processes.Server) -> list[str]:
    """Does it again on a disk after a power cut, to its end; returns how the result differs from `straight`."""


@dataclasses.dataclass
class Row:
  """The counts.

  Attributes:
    calls: that have changed something.
    states: that were made.
    distinct: states that differ, of which all were looked at.
    restored: states from which it was done again, to its end.
    failures: lines.
    num_failures: how many states have failed, told or not.
    seconds: that it took.
  """

  calls: int = 0
  states: int = 0
  distinct: int = 0
  restored: int = 0
  failures: list[str] = dataclasses.field(default_factory=list)
  num_failures: int = 0
  seconds: float = 0.0
  _kinds: dict[str, int] = dataclasses.field(default_factory=dict)

  def fail(self, where: str, line: str) -> None:
    """Counts a failure; keeps the first lines of each kind, in which only numbers differ."""
    self.num_failures += 1
    kind = re.sub(r'\[.*\]|\d+|/\S+', '', line)
    self._kinds[kind] = self._kinds.get(kind, 0) + 1
    if self._kinds[kind] <= _MAX_PRINTED:
      self.failures.append(f'{where}: {line}')


@dataclasses.dataclass(frozen=True)
class Limits:
  """How much is tried.

  Attributes:
    states: about so many states of each scenario; 0: all.
    restores: from so many it is done again.
    seed: draws them.
  """

  states: int = 0
  restores: int = 6
  seed: int = 0


class Trial:
  """A scenario on a disk."""

  def __init__(self, scenario: Scenario, base: pathlib.Path, limits: Limits, print_line: Callable[[str], None] = print):
    self._scenario, self._base, self._limits, self._print_line = scenario, base, limits, print_line
    self._disk, self._straight, self._before = base / 'disk', base / 'straight', base / 'before'
    self._rng = random.Random(f'{limits.seed} {scenario.name}')
    self._outcomes: dict[int, outcomes.Outcome] = {}
    self.row = Row()

  def run(self, recorder: recording.Recorder, server: train_processes.Server) -> Row:
    """Does all of it.

    Args:
      recorder: for recorded processes.
      server: for others.
    """
    began = time.monotonic()
    self._disk.mkdir(parents=True)
    self._scenario.prepare(self._disk, server)
    shutil.copytree(self._disk, self._before)
    recorder.calls()
    self._scenario.run(self._disk, recorder.server)
    calls = recorder.calls()
    shutil.copytree(self._disk, self._straight)
    sample = self._look_at_all(calls)
    for state in sample:
      self._restore(state, server)
    self.row.seconds = time.monotonic() - began
    return self.row

  # Looking.

  def _look_at_all(self, calls: Sequence) -> list[crash_states.State]:
    """Looks at the states; returns some from which it is to be done again."""
    checks = self._scenario.checks(self._straight, self._before)
    holder = folders.Folder(self._base / 'looked at')
    repeated = replay.Replay(str(self._disk), file_system.FileSystem.of_folder(self._before))
    model = repeated.model
    share = self._share(calls)
    promised: tuple[int, ...] = (-1,)
    sample: list[crash_states.State] = []
    seen: set[int] = set()
    for number, call in enumerate(repeated.run(calls), 1):
      for kind, make in crash_states.states(model, self._rng):
        is_certain = kind == crash_states.CERTAIN
        if not is_certain and self._rng.random() > share:
          continue
        tree = make()
        state = crash_states.State(number, call, kind, tree)
        outcome = self._look(checks, holder, tree)
        self.row.states += 1
        is_new = (key := _key(tree)) not in seen
        if is_new:
          seen.add(key)
          self._draw(sample, state)
        for fault in outcome.faults if is_new else ():
          self.row.fail(str(state), fault)
        if outcome.progress < promised:
          self.row.fail(str(state), f'{outcome.progress}, and {promised} was synced before')
        if is_certain:
          promised = max(promised, outcome.progress)
      needed = checks.relies_on(model.tree())
      if needed is not None and promised[-1] < needed:
        self.row.fail(f'call {number} ({call})', f'relies on {needed}, and only {promised} is certain to be kept')
    self.row.calls = number
    if model.tree() != folders.read(self._straight):
      raise RuntimeError(f'{self._scenario.name}: the recorded calls do not lead to the files that are there')
    outcome = self._look(checks, holder, model.tree())
    if promised < outcome.progress:
      self.row.fail('at the end', f'{outcome.progress} is there, and only {promised} is certain to be kept')
    return sample

  def _share(self, calls) -> float:
    """The part of the states that is looked at."""
    if not self._limits.states:
      return 1.0
    counted = replay.Replay(str(self._disk), file_system.FileSystem.of_folder(self._before))
    total = sum(sum(1 for _ in crash_states.states(counted.model, random.Random(0))) for _ in counted.run(calls))
    return self._limits.states / max(1, total)

  def _look(self, checks: Checks, holder: folders.Folder, tree: file_system.Tree) -> outcomes.Outcome:
    part = checks.relevant(tree)
    key = _key(part)
    if key not in self._outcomes:
      holder.hold(part)
      self._outcomes[key] = checks.look(holder.path)
    return self._outcomes[key]

  def _draw(self, sample: list[crash_states.State], state: crash_states.State) -> None:
    """Keeps each of the states so far with the same probability."""
    self.row.distinct += 1
    if len(sample) < self._limits.restores:
      sample.append(state)
    elif (place := self._rng.randrange(self.row.distinct)) < len(sample):
      sample[place] = state

  # Restoring.

  def _restore(self, state: crash_states.State, server: train_processes.Server) -> None:
    folders.Folder(self._disk).hold(state.tree)
    found = self._scenario.restored(self._disk, self._straight, server)
    self.row.restored += 1
    for line in found:
      self.row.fail(str(state), f'done again: {line}')
    self._print_line(f'{self._scenario.name}: from {state}: {"; ".join(found)[:300] or "the same"}')


def _key(tree: file_system.Tree) -> int:
  return hash(frozenset(tree.items()))
