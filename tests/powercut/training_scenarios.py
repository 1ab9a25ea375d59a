"""Training runs that a power cut interrupts."""

from collections.abc import Sequence
import dataclasses
import json
import pathlib
import tempfile

from tests import train_processes
from tests.powercut import outcomes
from tests.powercut import training_checks
from tests.soak import comparison

_SECONDS = 600
_RUN = 'run'
_PLAIN = '--set=runtime.enable_xla=false'


def command(
  server: train_processes.Server,
  arguments: Sequence[str],
  script: pathlib.Path = train_processes.TRAIN,
  cwd: pathlib.Path = train_processes.ROOT,
) -> str:
  """Runs a script to its end; '' if it succeeds, else the end of its output."""
  with tempfile.TemporaryDirectory() as folder:
    log = pathlib.Path(folder, 'log')
    status = server.start(arguments, log, cwd=cwd, script=script).wait(_SECONDS)
    return '' if not status else f'status {status}: {log.read_text(errors="replace")[-1500:]}'


class _InRunFolder:
  """The checks of a run, for a disk on which it is."""

  def __init__(self, checks: training_checks.TrainingChecks):
    self._checks = checks

  def relevant(self, tree):
    below = {name.removeprefix(f'{_RUN}/'): content for name, content in tree.items() if name.startswith(f'{_RUN}/')}
    return self._checks.relevant(below)

  def relies_on(self, tree):
    return self._checks.relies_on(self.relevant(tree))

  def look(self, folder: pathlib.Path) -> outcomes.Outcome:
    return self._checks.look(folder)


@dataclasses.dataclass(frozen=True)
class Training:
  """A run of train.py, from its first call to its last.

  Attributes:
    name: see Scenario.
    flags: of train.py, beside --model_dir.
    best_settings: how it keeps its best checkpoints.
    averages: whether it writes `ema_checkpoints/`.
    branches_from: the step of the checkpoint from which it begins a new line in the folder; None: it does not.
    first: flags of the run before, which is not recorded; () if there is none.
    damaged: a file of that run which is cut in half.
  """

  name: str
  flags: Sequence[str]
  best_settings: training_checks.Best = training_checks.Best()
  averages: bool = False
  branches_from: int | None = None
  first: Sequence[str] = ()
  damaged: str = ''

  def prepare(self, disk, server) -> None:
    if self.first:
      self._run(disk, server, self.first)
    if self.damaged:
      path = disk / _RUN / self.damaged
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

  def run(self, disk, server) -> None:
    branch = ()
    if self.branches_from is not None:
      branch = (f'--checkpoint={disk}/{_RUN}/ckpt-{self.branches_from}', '--branch')
    self._run(disk, server, [*self.flags, *branch])

  def _run(self, disk, server, flags) -> None:
    failure = command(server, [*flags, f'--model_dir={disk}/{_RUN}'])
    if failure:
      raise RuntimeError(f'{self.name}: {failure}')

  def checks(self, straight, before):
    return _InRunFolder(
      training_checks.TrainingChecks(
        straight / _RUN, self.best_settings, self.averages, self.branches_from, before / _RUN
      )
    )

  def restored(self, disk, straight, server) -> list[str]:
    try:
      self.run(disk, server)
    except RuntimeError as error:
      return [str(error)]
    return list(comparison.differences(disk / _RUN, straight / _RUN)) + _other_records(disk / _RUN, straight / _RUN)


def _other_records(folder: pathlib.Path, straight: pathlib.Path) -> list[str]:
  found = []
  rollbacks = [
    json.loads(path.read_text()) if path.exists() else [] for path in _each(folder, straight, 'rollbacks.json')
  ]
  if rollbacks[0] != rollbacks[1]:
    found.append(f'rollbacks.json: {rollbacks[0]} instead of {rollbacks[1]}')
  aside = [comparison.checkpoint_files(path) for path in _each(folder, straight, 'line_0')]
  if aside[0] != aside[1]:
    found.append(f'line_0: {sorted(aside[0])} instead of {sorted(aside[1])}')
  left = [path.name for path in folder.rglob('*') if path.name.endswith(('.unfinished', '.tmp'))]
  return found + ([f'left behind: {left}'] if left else [])


def _each(folder: pathlib.Path, straight: pathlib.Path, name: str) -> list[pathlib.Path]:
  return [folder / name, straight / name]


# Shorter than the experiment's own, and with an evaluation between two saves.
_SHORT: dict[str, object] = {
  'train_steps': 40,
  'steps_per_loop': 5,
  'checkpoint_interval': 10,
  'validation_interval': 5,
  'max_to_keep': 2,
}
_AVERAGED = {'optimizer_config': {'ema': {'average_decay': 0.9}}}


def _noisy(*flags: str, **trainer: object) -> Sequence[str]:
  overrides = json.dumps({'trainer': {**_SHORT, **trainer}})
  experiment = ('--registry=tests.soak.experiments', '--experiment=noisy_classifier', '--mode=train_and_eval')
  return (*experiment, _PLAIN, f'--params_override={overrides}', *flags)


SCENARIOS: Sequence[Training] = (
  Training('best, averages, retention', _noisy(**_AVERAGED), averages=True),
  Training('saves that training waits for', _noisy(async_checkpointing=False)),
  Training(
    'rollback',
    ('--registry=tests.powercut.experiments', '--experiment=bad_batches', '--mode=train_and_eval', _PLAIN),
  ),
  Training(
    'resumed from the checkpoint before a damaged one',
    _noisy(**_AVERAGED),
    averages=True,
    first=_noisy(train_steps=20, **_AVERAGED),
    damaged='ckpt-20.data-00000-of-00001',
  ),
  Training('branch', _noisy('--set=task.train_data.seed=7'), branches_from=20, first=_noisy(max_to_keep=4)),
)
# Of the tests: two saves and two evaluations, each of which deletes the one before.
SHORT = Training(
  'short',
  _noisy(train_steps=10, max_to_keep=1, checkpoint_interval=5, best_checkpoints_to_keep=1, **_AVERAGED),
  training_checks.Best(keep=1),
  averages=True,
)
