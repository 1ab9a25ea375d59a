"""Folders that are written whole, and preparations, which a power cut interrupts. Without TensorFlow."""

from collections.abc import Sequence
import dataclasses
import json
import pathlib
import re

from official_ext.data import input_files
from official_ext.data.prepare import shards
from tests import train_processes
from tests.powercut import folders
from tests.powercut import outcomes
from tests.powercut import training_scenarios

_MAIN = train_processes.ROOT / 'official_ext' / 'cli' / 'main.py'
# A program that writes a folder three times: new, over itself, and once more; each time with other files.
_WRITE = """
import os, sys
from official_ext.base.files import whole_folders

def made(version):
  def make(folder):
    os.makedirs(f'{folder}/vocabulary')
    for name in ('config.json', 'vocabulary/tokens.txt'):
      with open(f'{folder}/{name}', 'w') as file:
        file.write(f'{name} {version} ' + 'x' * 3000)
  return make

for version in range(3):
  whole_folders.write(sys.argv[1], made(version))
"""
_VERSIONS = 3


@dataclasses.dataclass(frozen=True)
class WholeFolder:
  """A folder that is written and replaced. Attributes: see Scenario."""

  name: str = 'a folder written whole'

  def prepare(self, disk, server) -> None:
    (disk.parent / 'write.py').write_text(_WRITE)

  def run(self, disk, server) -> None:
    failure = training_scenarios.command(server, [f'{disk}/result/model'], disk.parent / 'write.py')
    if failure:
      raise RuntimeError(f'{self.name}: {failure}')

  def checks(self, straight, before):
    return self

  def relevant(self, tree):
    return tree

  def relies_on(self, tree):
    return None

  def look(self, folder: pathlib.Path) -> outcomes.Outcome:
    """How far it is: -1 without the folder, else its version; a mixture of two is a fault."""
    found = folders.read(folder / 'result' / 'model')
    texts = {name: content.decode(errors='replace') for name, content in found.items() if content is not None}
    if not (folder / 'result' / 'model').exists():
      return outcomes.Outcome((-1,))
    versions = [
      version
      for version in range(_VERSIONS)
      if texts == {name: f'{name} {version} ' + 'x' * 3000 for name in ('config.json', 'vocabulary/tokens.txt')}
    ]
    if not versions:
      shown = {name: f'{len(text)} characters, {text[:30]!r}' for name, text in texts.items()}
      return outcomes.Outcome((-1,), [f'the folder is not whole: {shown}'])
    return outcomes.Outcome((versions[0],))

  def restored(self, disk, straight, server) -> list[str]:
    return _run_again(self, disk, straight, server)


@dataclasses.dataclass(frozen=True)
class Preparation:
  """`official-ext prepare` of a file of texts. Attributes: see Scenario."""

  name: str = 'prepare'

  def prepare(self, disk, server) -> None:
    lines = [json.dumps({'n': n, 'text': f'line {n} ' + 'x' * (n % 40)}) for n in range(200)]
    (disk / 'in.jsonl').write_text('\n'.join(lines) + '\n')

  def run(self, disk, server) -> None:
    arguments = ['prepare', f'{disk}/in.jsonl', f'{disk}/out', '--shard_size=4KB', '--workers=2']
    failure = training_scenarios.command(server, arguments, _MAIN)
    if failure:
      raise RuntimeError(f'{self.name}: {failure}')

  def checks(self, straight, before):
    return _PreparationChecks(straight)

  def restored(self, disk, straight, server) -> list[str]:
    return _run_again(self, disk, straight, server)


class _PreparationChecks:
  """A shard counts by its note, and all of them by the manifest."""

  def __init__(self, straight: pathlib.Path):
    self._straight = {name: content for name, content in folders.read(straight / 'out').items() if content is not None}
    self._shards = [name for name in self._straight if f'{name}.json' in self._straight]

  def relevant(self, tree):
    return {name: content for name, content in tree.items() if re.fullmatch(r'out(/.*)?', name)}

  def relies_on(self, tree):
    return None

  def look(self, folder: pathlib.Path) -> outcomes.Outcome:
    """How far it is: whether the whole counts, and how many shards do."""
    found, faults = folders.read(folder / 'out'), []
    whole = 0
    if found.get(input_files.MANIFEST) is not None:
      whole = int(found[input_files.MANIFEST] == self._straight[input_files.MANIFEST])
      if not whole:
        faults.append(f'{input_files.MANIFEST} is there, and is not what was written')
      faults += [
        f'{name} is lost, which the manifest names' for name in self._shards if found.get(name) != self._straight[name]
      ]
    plan = json.loads(self._straight[self._shards[0] + '.json'])['plan']
    jobs = [{'folder': str(folder / 'out'), 'name': name, 'plan': plan} for name in self._shards]
    return outcomes.Outcome((whole, sum(shards.verified(job) is not None for job in jobs)), faults)


def _run_again(scenario, disk, straight, server) -> list[str]:
  """Runs a scenario on a disk after a power cut; returns the failures, or how the files differ."""
  try:
    scenario.run(disk, server)
  except RuntimeError as error:
    return [str(error)]
  return _differences(disk, straight)


def _differences(disk: pathlib.Path, straight: pathlib.Path) -> list[str]:
  found, expected = folders.read(disk), folders.read(straight)
  names = sorted(name for name in found.keys() | expected.keys() if found.get(name, 0) != expected.get(name, 0))
  return [f'{name} differs' for name in names if not name.endswith('.lock')]


SCENARIOS: Sequence[WholeFolder | Preparation] = (Preparation(), WholeFolder())
