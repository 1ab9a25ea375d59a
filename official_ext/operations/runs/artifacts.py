"""The checkpoints and exported models of runs.

Of checkpoints only manifests and sizes are read. Exports are SavedModels, Hugging Face folders and adapters.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import os
import re

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.run_folder import model_folders
from official_ext.base.run_folder import run_files
from official_ext.operations.runs import event_log
from official_ext.operations.runs import run_folders

CHECKPOINT_KINDS = ('training', 'best', 'average')
_CHECKPOINT_NAME = re.compile(
  r'(?P<name>[A-Za-z_]+-(?P<step>[0-9]{1,18}))(?P<broken>\.broken)?\.(?:index|manifest\.json)'
)
_CHECKPOINT_PART = re.compile(r'(?P<own>[A-Za-z_]+-[0-9]{1,18}(?:\.broken)?)' + run_files.CHECKPOINT_PART)
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
  logs: json_values.JsonObject = dataclasses.field(default_factory=dict)


def find_checkpoints(run: run_folders.Run) -> list[Checkpoint]:
  """The checkpoints of a run: to resume from, the best, the averages, each by step."""
  rollbacks = _rollbacks(run)
  found: list[Checkpoint] = []
  for kind, folder in zip(CHECKPOINT_KINDS, ('', *checkpoint_folders(run))):
    if folder and not os.path.realpath(run.file(folder)).startswith(os.path.realpath(run.path) + os.sep):
      continue
    best_step = _best_step(run.file(folder)) if kind == 'best' else None
    found += _checkpoints_in(run, folder, kind, best_step, rollbacks if kind == 'training' else [])
  return found


def with_evaluations(found: Sequence[Checkpoint], evaluations: Iterable[json_values.JsonMapping]) -> list[Checkpoint]:
  """Checkpoints with the metrics of the evaluation at their step, if their manifests have none.

  Args:
    found: the checkpoints.
    evaluations: the events 'eval' of the run that stand.
  """
  logs = {event['step']: event_log.metrics_of(event) for event in evaluations}
  return [
    each if each.logs or each.damage else dataclasses.replace(each, logs=logs.get(each.step, {})) for each in found
  ]


def checkpoint_folders(run: run_folders.Run) -> tuple[str, str]:
  """The names of the folders of a run's best checkpoints and of its averages."""
  return str((run_folders.read_params(run) or {}).get(_BEST) or 'best'), _EMA


def checkpoint_path(run: run_folders.Run, name: str) -> str:
  """The path of a checkpoint of a run, as --checkpoint takes it.

  Args:
    run: the run.
    name: of the checkpoint, see Checkpoint; or only the step of one to resume from.

  Raises:
    UserError: it does not exist, or is damaged.
  """
  known = {each.name: each for each in find_checkpoints(run)}
  found = known.get(f'ckpt-{name}' if name.isdecimal() else name)
  if found is None:
    have = ', '.join(each for each, value in known.items() if not value.damage)[-200:]
    raise errors.UserError(f'--checkpoint={name}: {run.name} has no such checkpoint; it has {have or "none"}')
  if found.damage:
    raise errors.UserError(f'--checkpoint={name}: {found.damage}')
  return run.file(found.name)


def _checkpoints_in(run, folder, kind, best_step, rollbacks) -> Iterator[Checkpoint]:
  there = paths.names(run.file(folder)) if os.path.isdir(run.file(folder)) else []
  stems = {
    (match['name'], match['broken'] or '', int(match['step']))
    for match in map(_CHECKPOINT_NAME.fullmatch, there)
    if match
  }
  parts: dict[str, list[str]] = {}
  for match in filter(None, map(_CHECKPOINT_PART.fullmatch, there)):
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
    entries, damage = _manifest_entries(run.file(name), own, sizes)
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


def _manifest_entries(path: str, name: str, sizes: dict[str, int]) -> tuple[json_values.JsonObject, str]:
  """The entries of a manifest, and its error, or the error of the files' sizes."""
  try:
    entries = run_files.parse_manifest(paths.read(path + run_files.MANIFEST_SUFFIX, local_files.MAX_RECORD), name)
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
  step = (json_values.read_file(os.path.join(folder, 'info.json')) or {}).get('best_ckpt_global_step')
  return int(step) if json_values.is_finite(step) else None


def _rollbacks(run: run_folders.Run) -> list[dict[str, object]]:
  """The rollbacks of a run: see training/checkpoints/listing.py."""
  try:
    return [each for each in json_values.load_list_file(run.file('rollbacks.json')) if isinstance(each, dict)]
  except (OSError, ValueError):
    return []


def _is_rolled_back(step: int, entries: Mapping[str, object], rollbacks: list[json_values.JsonObject]) -> bool:
  number = entries.get('num_rollbacks', 0)
  later = rollbacks[number:] if isinstance(number, int) else []
  return any(isinstance(each.get('to_step'), int) and step > each['to_step'] for each in later)


SAVED_MODEL = 'saved_model'
HUGGING_FACE = 'hugging_face'
ADAPTER = 'adapter'
EXPORT_FOLDER = 'export'
HUGGING_FACE_FOLDER = 'hugging_face'  # The folder of the console's conversions.

_NOT_LOOKED_AT = frozenset(('train', 'validation', 'mlruns', 'mlartifacts', 'wandb', 'ema_checkpoints'))
# Fields that the configuration of a language model has.
_OF_LANGUAGE = ('task.model_path', 'task.model.num_key_value_heads', 'task.model.vocab_size')


@dataclasses.dataclass(frozen=True)
class ModelExport:
  """Something that a run has left.

  Attributes:
    kind: SAVED_MODEL, HUGGING_FACE or ADAPTER.
    name: its path in the run's folder.
    path: its absolute path.
    time: when it was written, in seconds since 1970.
    base: of adapters, the folder of the model that they need; '' if that is missing, and of others.
    base_kept: of adapters, how its weights were kept when they were trained, such as `nf4 weights (...)`; '' if that is
      not known, and of others.
  """

  kind: str
  name: str
  path: str
  time: float
  base: str = ''
  base_kept: str = ''


@dataclasses.dataclass(frozen=True)
class ModelExports:
  """The results of a run.

  Attributes:
    results: the newest first.
    has_best: whether it keeps its best checkpoint.
    has_checkpoint: whether it has any checkpoint, of which a result can be made.
  """

  results: tuple[ModelExport, ...] = ()
  has_best: bool = False
  has_checkpoint: bool = False

  def __bool__(self) -> bool:
    return bool(self.results) or self.has_checkpoint


def exports_of(run: run_folders.Run) -> ModelExports:
  """The present results."""
  found: list[ModelExport] = []
  has_checkpoint = has_best = False
  for name, is_folder in _folder_entries(run.path):
    if name.startswith('ckpt-') and name.endswith('.index'):
      has_checkpoint = True
    elif name.startswith('best') and is_folder:
      has_best = has_best or any(inner.endswith('.index') for inner, _ in _folder_entries(run.file(name)))
    elif name == EXPORT_FOLDER and is_folder:
      found += filter(
        None, (_model_export(run, f'{name}/{inner}') for inner, is_inner in _folder_entries(run.file(name)) if is_inner)
      )
    elif is_folder and not name.startswith('.') and name not in _NOT_LOOKED_AT:
      found += filter(None, [_model_export(run, name)])
  found.sort(key=lambda result: (-result.time, result.name))
  return ModelExports(tuple(found), has_best, has_checkpoint or has_best)


def find_export(run: run_folders.Run, name: str) -> ModelExport:
  """The result of a name.

  Raises:
    UserError: the run has none of that name.
  """
  for result in exports_of(run).results:
    if result.name == name:
      return result
  raise errors.UserError(f'{run.name}: has no result of the name {name!r}; `official-ext export` makes one')


def trains_language_model(run: run_folders.Run) -> bool:
  """Whether a run trains a language model, as far as its configuration shows."""
  values: Mapping[str, object] = run_folders.read_params(run) or {}
  return any(values.get(path) for path in _OF_LANGUAGE)


def _folder_entries(folder: str) -> list[tuple[str, bool]]:
  try:
    with os.scandir(folder) as entries:
      return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
  except OSError:
    return []


def _model_export(run: run_folders.Run, name: str) -> ModelExport | None:
  path = run.file(name)
  names = dict(_folder_entries(path))
  if '.tmp-' in name:  # It is being written.
    return None
  if 'saved_model.pb' in names:
    return ModelExport(SAVED_MODEL, name, path, _time_of(path))
  if model_folders.ADAPTER_CONFIG_FILE in names:
    try:
      base = os.path.abspath(model_folders.find(path).model)
    except errors.UserError:
      base = ''
    return ModelExport(ADAPTER, name, path, _time_of(path), base, _kept_weights(path))
  if model_folders.CONFIG_FILE in names and any(each.endswith('.safetensors') for each in names):
    return ModelExport(HUGGING_FACE, name, path, _time_of(path))
  return None


def _kept_weights(path: str) -> str:
  try:
    record = model_folders.read_base(path)
  except errors.UserError:
    return ''
  return '' if record is None else record.kept


def _time_of(path: str) -> float:
  try:
    return os.stat(path).st_mtime
  except OSError:
    return 0.0
