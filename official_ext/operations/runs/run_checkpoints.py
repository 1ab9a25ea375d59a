"""The checkpoints of a run, by their files and manifests. No TensorFlow; nothing is read but manifests and sizes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import json
import os
import re

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.base.files import regular_files
from official_ext.base.run_folder import manifest_content
from official_ext.operations.runs import last_events
from official_ext.operations.runs import params
from official_ext.operations.runs import run_folder

KINDS = ('training', 'best', 'average')
_NAME = re.compile(r'(?P<name>[A-Za-z_]+-(?P<step>[0-9]{1,18}))(?P<broken>\.broken)?\.(?:index|manifest\.json)')
_PART = re.compile(r'(?P<own>[A-Za-z_]+-[0-9]{1,18}(?:\.broken)?)' + manifest_content.PART)
_BEST = 'trainer.best_checkpoint_export_subdir'
_EMA = 'ema_checkpoints'


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A checkpoint of a run.

  Attributes:
    name: its path below the run's folder, as --checkpoint takes it after that folder: `ckpt-100`, `best/best_ckpt-100`.
    step: its step.
    kind: one of KINDS: to resume from; one of the best; of moving averages.
    size: of its files, in bytes.
    time: when its last file was written, in seconds since 1970.
    damage: its error; '' if nothing shows without reading all of it.
    is_best: whether it is the best of all.
    logs: the metrics of its evaluation, if its manifest has them; see `with_evaluations`.
  """

  name: str
  step: int
  kind: str
  size: int
  time: float
  damage: str = ''
  is_best: bool = False
  logs: json_types.JsonObject = dataclasses.field(default_factory=dict)


def find(run: run_folder.Run) -> list[Checkpoint]:
  """The checkpoints of a run: to resume from, the best, the averages, each by step."""
  rollbacks = _rollbacks(run)
  found: list[Checkpoint] = []
  for kind, folder in zip(KINDS, ('', *folders_of(run))):
    if folder and not os.path.realpath(run.file(folder)).startswith(os.path.realpath(run.path) + os.sep):
      continue
    best_step = _best_step(run.file(folder)) if kind == 'best' else None
    found += _in_folder(run, folder, kind, best_step, rollbacks if kind == 'training' else [])
  return found


def with_evaluations(found: Sequence[Checkpoint], evaluations: Iterable[json_types.JsonMapping]) -> list[Checkpoint]:
  """Checkpoints with the metrics of the evaluation at their step, if their manifests have none.

  Args:
    found: the checkpoints.
    evaluations: the events 'eval' of the run that stand.
  """
  logs = {event['step']: last_events.metrics_of(event) for event in evaluations}
  return [
    each if each.logs or each.damage else dataclasses.replace(each, logs=logs.get(each.step, {})) for each in found
  ]


def folders_of(run: run_folder.Run) -> tuple[str, str]:
  """The names of the folders of a run's best checkpoints and of its averages."""
  return str((params.read(run) or {}).get(_BEST) or 'best'), _EMA


def path_of(run: run_folder.Run, name: str) -> str:
  """The path of a checkpoint of a run, as --checkpoint takes it.

  Args:
    run: the run.
    name: of the checkpoint, see Checkpoint; or only its step, of those to resume from.

  Raises:
    UserError: there is none, or it is damaged.
  """
  known = {each.name: each for each in find(run)}
  found = known.get(f'ckpt-{name}' if name.isdecimal() else name)
  if found is None:
    have = ', '.join(each for each, value in known.items() if not value.damage)[-200:]
    raise errors.UserError(f'--checkpoint={name}: {run.name} has no such checkpoint; it has {have or "none"}')
  if found.damage:
    raise errors.UserError(f'--checkpoint={name}: {found.damage}')
  return run.file(found.name)


def _in_folder(run, folder, kind, best_step, rollbacks) -> Iterator[Checkpoint]:
  there = paths.names(run.file(folder)) if os.path.isdir(run.file(folder)) else []
  stems = {(match['name'], match['broken'] or '', int(match['step'])) for match in map(_NAME.fullmatch, there) if match}
  parts: dict[str, list[str]] = {}
  for match in filter(None, map(_PART.fullmatch, there)):
    parts.setdefault(match['own'], []).append(match.string)
  for stem, broken, step in sorted(stems, key=lambda each: (each[2], each)):
    own = stem + broken
    name = os.path.join(folder, own)
    sizes, times = {}, [0.0]
    for file in parts.get(own, ()):
      try:
        stat = os.stat(run.file(os.path.join(folder, file)))
      except OSError:  # Deleted a moment ago.
        continue
      sizes[file] = stat.st_size
      times.append(stat.st_mtime)
    entries, damage = _entries(run.file(name), own, sizes)
    if broken:
      damage = 'it was damaged, and has been set aside'
    elif not damage and _is_rolled_back(step, entries, rollbacks):
      damage = 'it belongs to a future that was rolled back'
    logs, noted = entries.get('logs'), entries.get('step')
    yield Checkpoint(
      name,
      noted if isinstance(noted, int) else step,  # The numbers of averages count evaluations.
      kind,
      sum(sizes.values()),
      max(times),
      damage,
      kind == 'best' and step == best_step and not damage,
      logs if isinstance(logs, dict) else {},
    )


def _entries(path: str, name: str, sizes: dict[str, int]) -> tuple[json_types.JsonObject, str]:
  """The entries of a manifest, and its error or that of the files' sizes."""
  try:
    entries = manifest_content.parse(paths.read(path + manifest_content.SUFFIX, regular_files.MAX_RECORD), name)
  except FileNotFoundError:
    return {}, 'it has no manifest: unfinished, or of another program'
  except (OSError, ValueError) as error:
    return {}, str(error)
  for file, entry in sorted(entries['files'].items()):
    if file not in sizes:
      return entries, f'{file} is missing'
    if sizes[file] != entry['size']:
      return entries, f'{file} has {sizes[file]} bytes instead of {entry["size"]}'
  return entries, ''


def _best_step(folder: str) -> int | None:
  """The step of the best checkpoint of all; None if that is not noted."""
  try:
    info = json.loads(paths.read(os.path.join(folder, 'info.json'), regular_files.MAX_RECORD))
    return int(info['best_ckpt_global_step'])
  except (OSError, ValueError, KeyError, TypeError, RecursionError):
    return None


def _rollbacks(run: run_folder.Run) -> list[dict[str, object]]:
  """The rollbacks of a run: see training/checkpoints/rollbacks.py."""
  try:
    found = json.loads(paths.read(run.file('rollbacks.json'), regular_files.MAX_RECORD))
  except (OSError, ValueError, RecursionError):
    return []
  return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _is_rolled_back(step: int, entries: Mapping[str, object], rollbacks: list[json_types.JsonObject]) -> bool:
  number = entries.get('num_rollbacks', 0)
  later = rollbacks[number:] if isinstance(number, int) else []
  return any(isinstance(each.get('to_step'), int) and step > each['to_step'] for each in later)
