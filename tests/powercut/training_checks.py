"""The guarantees for a training run's folder after a power cut, without training: the findings of its next start."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import pathlib
import re
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base.run_folder import run_files
from official_ext.training.checkpoints import best
from official_ext.training.checkpoints import exported_weights
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manager
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import training_lines
from tests.powercut import file_system
from tests.powercut import outcomes
from tests.soak import comparison

# The files that decide; logs for TensorBoard and run.json do not.
_DECIDES = re.compile(
  r'(line_\d+/)?(ckpt-.*|checkpoint|rollbacks\.json|lines\.json|events\.jsonl|(best|ema_checkpoints)(/.*)?)|line_\d+'
)
_MANIFEST = re.compile(r'ckpt-(\d+)\.manifest\.json')
_MARK = re.compile(r'ckpt-(\d+)\.unfinished')
_OF_EVENTS = ('time', 'event', 'step', 'seconds')


class _Starting(manager.CheckpointManager):
  """Chooses a checkpoint as a start does, and restores nothing."""

  chosen: str | None = None

  def restore(self, path: str) -> None:
    self.chosen = path


@dataclasses.dataclass(frozen=True)
class Best:
  """How a run keeps its best checkpoints: the trainer's fields."""

  metric: str = 'validation_loss'
  comp: str = 'lower'
  keep: int = 2


class TrainingChecks:
  """Looks at a run's folder."""

  def __init__(
    self,
    straight: pathlib.Path,
    best_settings: Best = Best(),
    averages: bool = False,
    branch_from: int | None = None,
    before: pathlib.Path | None = None,
  ):
    """Reads the run that nothing disturbed.

    Args:
      straight: its folder, or a copy of it.
      best_settings: how the run keeps its best checkpoints.
      averages: whether it writes `ema_checkpoints/`.
      branch_from: the step of the checkpoint in its folder with which it branches; None: it does not.
      before: the folder before it branched.
    """
    self._straight, self._best_settings, self._averages = straight, best_settings, averages
    self._branch_from, self._before = branch_from, before
    self._phases = list(_phases(straight / 'events.jsonl', is_branch=branch_from is not None))
    self._best_outcomes: dict[int, list[str]] = {}

  # Which states need not be looked at again.

  def relevant(self, tree: file_system.Tree) -> file_system.Tree:
    """The files of a state that decide, below the run's folder."""
    return {name: content for name, content in tree.items() if _DECIDES.fullmatch(name)}

  def relies_on(self, tree: file_system.Tree) -> int | None:
    """The step that must be certain to be kept, by the run's present stage: the one before the save that has begun."""
    steps = [int(match[1]) for match in map(_MANIFEST.fullmatch, tree) if match]
    begun = [int(match[1]) for match in map(_MARK.fullmatch, tree) if match]
    return max(steps) if steps and begun and max(begun) > max(steps) else None

  # Looking.

  def look(self, folder: pathlib.Path) -> outcomes.Outcome:
    """The findings of the next start. Changes the folder as that does."""
    faults: list[str] = []
    try:
      line, step, path = self._start(folder)
      num_rollbacks = len(listing.Rollbacks(str(folder)))
    except (errors.CheckpointError, errors.UserError) as error:
      return outcomes.Outcome((-1,), [f'the next start refuses the folder: {error}'])
    if step < 0:
      return outcomes.Outcome((line, num_rollbacks, step), faults)
    # A branch begins a new phase too.
    number = line if self._branch_from is not None else num_rollbacks
    if self._branch_from is not None:
      faults += self._wrong_line(folder, line, step, path)
    if self._branch_from is None or line:
      phase = self._phases[number]
      faults += self._lost_events(folder, phase, step)
      faults += self._lost_best(folder, number, step)
      if self._averages:
        faults += self._lost_averages(folder, phase, step)
    return outcomes.Outcome((line, num_rollbacks, step), faults)

  def _start(self, folder: pathlib.Path) -> tuple[int, int, str]:
    """(the line of training, the step that the next start restores or -1, its path)."""
    line = 0
    if self._branch_from is not None:
      known = training_lines.read_origin(str(folder))
      start = training_lines.choose_start(str(folder), str(folder / f'ckpt-{self._branch_from}'), branch=True)
      line = known[-1].line if known else 0
      if start.checkpoint is not None:
        damage = manifests.find_unreadable(start.checkpoint)
        if damage is not None:
          raise errors.CheckpointError(f'{start.checkpoint}: {damage}')
        if known:  # The start finishes the branch.
          training_lines.begin_line(str(folder), start, ['best', 'ema_checkpoints'])
        return line, manifests.step_of(start.checkpoint), start.checkpoint
    starting = _Starting(tf.train.Checkpoint(), str(folder))
    path = starting.restore_or_initialize()
    return line, -1 if path is None else manifests.step_of(path), path or ''

  def _lost_events(self, folder, phase: 'Phase', step: int) -> Iterator[str]:
    """Events up to the checkpoint that the next start restores are never reported again."""
    found = list(_standing(_lines(folder / 'events.jsonl')))
    expected = [event for event in phase.events if event['step'] <= step]
    missing = [event for event in expected if _comparable(event) not in [_comparable(each) for each in found]]
    if missing:
      where = [(event['event'], event['step']) for event in missing]
      yield f'events.jsonl: ckpt-{step} counts, and these events before it are lost: {where}'

  def _lost_averages(self, folder, phase: 'Phase', step: int) -> Iterator[str]:
    due = [event['step'] for event in phase.events if event['event'] == 'eval' and event['step'] <= step]
    paths = manifests.complete_paths(str(folder / exported_weights.EMA_FOLDER), 'average_weights')
    sound = [manifests.step_of(path) for path in paths if manifests.find_damage(path) is None]
    if due and not any(number >= due[-1] for number in sound):
      yield f'ema_checkpoints: ckpt-{step} counts, and the averages of step {due[-1]} are lost: {sound} are there'

  def _wrong_line(self, folder: pathlib.Path, line: int, step: int, path: str) -> Iterator[str]:
    """A checkpoint of the line before must not be taken for one of the new line; and none of them may be lost."""
    assert self._before is not None and self._branch_from is not None
    before = {manifests.step_of(each): _sums(each) for each in manifests.complete_paths(str(self._before))}
    if line and step > self._branch_from and _sums(path) == before.get(step, ''):
      yield f'{path}: is of the line before, and is restored as one of the new line'
    for number in before:
      may_be_replaced = line and number <= self._branch_from  # The new line resumes from it, and may have deleted it.
      places = [folder, folder / 'line_0']
      if not may_be_replaced and all(_sound_sums(place / f'ckpt-{number}') != before[number] for place in places):
        yield f'ckpt-{number} of the line before is lost'
    for number, sums in _kept_best(self._before / 'best').items():
      if all(_kept_best(place / 'best').get(number) != sums for place in (folder, folder / 'line_0')):
        yield f'best/best_ckpt-{number} of the line before is lost'

  def _lost_best(self, folder: pathlib.Path, phase: int, step: int) -> list[str]:
    """Whether `best/` ends as it should if the run resumes: its remaining evaluations are passed to the exporter."""
    reported = [
      (number, event) for number, each in enumerate(self._phases) for event in each.raw if event['event'] == 'eval'
    ]
    remaining = [event for number, event in reported if number > phase or (number == phase and event['step'] > step)]
    events = [line for line in _lines(folder / 'events.jsonl') if '"eval"' in line]
    key = hash((phase, step, tuple(events), _frozen(folder / 'best')))
    if key not in self._best_outcomes:
      self._best_outcomes[key] = list(self._best_after(folder, remaining, step))
    return self._best_outcomes[key]

  def _best_after(self, folder, remaining: Sequence[Mapping[str, Any]], step: int) -> Iterator[str]:
    settings = self._best_settings
    exporter = best.BestCheckpointExporter(
      str(folder / 'best'),
      settings.metric,
      settings.comp,
      settings.keep,
      records=[str(folder / 'events.jsonl')],
      rollbacks=lambda: listing.Rollbacks(str(folder)),
    )
    checkpoint = tf.train.Checkpoint(value=tf.Variable(0.0))
    for event in remaining:
      logs = {name: value for name, value in event.items() if name not in _OF_EVENTS and not name.startswith('best_')}
      exporter.maybe_export_checkpoint(checkpoint, logs, event['step'])
    found, expected = (_kept_best(each / 'best') for each in (folder, self._straight))
    where = f'best/: after ckpt-{step} and {len(remaining)} more evaluations'
    for number, sums in expected.items():
      if number not in found:
        yield f'{where} best_ckpt-{number} is lost; there are {sorted(found)}'
      elif sums != found[number] and number not in [event['step'] for event in remaining]:
        yield f'{where} best_ckpt-{number} is another one'
    if remaining and found.keys() - expected.keys():
      yield f'{where} there are {sorted(found)}, not {sorted(expected)}'
    named = exporter.best_ckpt_path
    right = json.loads((self._straight / 'best' / 'info.json').read_text())['best_ckpt_global_step']
    if named is None or manifests.step_of(named) != right:
      yield f'{where} {named} is the best; without a power cut it is that of step {right:.0f}'


@dataclasses.dataclass(frozen=True)
class Phase:
  """The events of a run between two rollbacks, and those before them that stand.

  Attributes:
    raw: 'train' and 'eval' since the last rollback.
    events: all that stand.
  """

  raw: Sequence[Mapping[str, Any]]
  events: Sequence[Mapping[str, Any]]


def _phases(path: pathlib.Path, is_branch: bool) -> Iterator[Phase]:
  lines = _lines(path)
  if is_branch:  # Before the branch, and since.
    begin = [number for number, line in enumerate(lines) if '"event": "start"' in line][-1]
    cuts = [begin, len(lines)]
  else:
    cuts = [number for number, line in enumerate(lines) if '"event": "rollback"' in line] + [len(lines)]
  for begin, end in zip([0, *cuts], cuts):
    raw = [event for event in map(json.loads, lines[begin:end]) if event['event'] in ('train', 'eval')]
    yield Phase(raw, list(_standing(lines[:end])))


def _standing(lines: Sequence[str]) -> Iterator[Mapping[str, Any]]:
  events = [event for event in map(run_files.parse_event, lines) if event is not None]
  return (event for event in run_files.standing_events(events) if event['event'] in ('train', 'eval'))


def _comparable(event: Mapping[str, Any]) -> Mapping[str, Any]:
  return {name: value for name, value in event.items() if name not in comparison.TIMES}


def _lines(path: pathlib.Path) -> list[str]:
  try:
    return path.read_text(errors='replace').splitlines()
  except FileNotFoundError:
    return []


def _sums(path: str) -> Any:
  return manifests.entries(path).get('files') if path else None


def _sound_sums(path: pathlib.Path) -> Any:
  return _sums(str(path)) if manifests.find_damage(str(path)) is None else None


def _kept_best(folder: pathlib.Path) -> Mapping[int, Any]:
  """From the steps of sound best checkpoints to the sums of their files."""
  paths = manifests.complete_paths(str(folder), 'best_ckpt')
  return {manifests.step_of(path): list(_sums(path).values()) for path in paths if manifests.find_damage(path) is None}


def _frozen(folder: pathlib.Path) -> Any:
  if not folder.is_dir():
    return None
  return frozenset((path.name, path.read_bytes()) for path in folder.iterdir() if path.is_file())
