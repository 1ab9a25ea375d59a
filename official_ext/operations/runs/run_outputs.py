"""The results of runs, to be tried and published: SavedModels, folders of Hugging Face and peft. No TensorFlow."""

from collections.abc import Mapping
import dataclasses
import os

from official_ext.base import errors
from official_ext.base.run_folder import base_records
from official_ext.base.run_folder import model_folders
from official_ext.operations.runs import params
from official_ext.operations.runs import run_folder

SAVED_MODEL = 'saved_model'
HUGGING_FACE = 'hugging_face'
ADAPTER = 'adapter'
EXPORTS = 'export'
HUGGING_FACE_FOLDER = 'hugging_face'  # The folder of the console's conversions.

_NOT_LOOKED_AT = frozenset(('train', 'validation', 'mlruns', 'mlartifacts', 'wandb', 'ema_checkpoints'))
# Fields that the configuration of a language model has.
_OF_LANGUAGE = ('task.model_path', 'task.model.num_key_value_heads', 'task.model.vocab_size')


@dataclasses.dataclass(frozen=True)
class Result:
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
class Results:
  """The results of a run.

  Attributes:
    results: the newest first.
    has_best: whether it keeps its best checkpoint.
    has_checkpoint: whether it has any checkpoint, of which a result can be made.
  """

  results: tuple[Result, ...] = ()
  has_best: bool = False
  has_checkpoint: bool = False

  def __bool__(self) -> bool:
    return bool(self.results) or self.has_checkpoint


def of_run(run: run_folder.Run) -> Results:
  """The present results."""
  found: list[Result] = []
  has_checkpoint = has_best = False
  for name, is_folder in _entries(run.path):
    if name.startswith('ckpt-') and name.endswith('.index'):
      has_checkpoint = True
    elif name.startswith('best') and is_folder:
      has_best = has_best or any(inner.endswith('.index') for inner, _ in _entries(run.file(name)))
    elif name == EXPORTS and is_folder:
      found += filter(
        None, (_result(run, f'{name}/{inner}') for inner, is_inner in _entries(run.file(name)) if is_inner)
      )
    elif is_folder and not name.startswith('.') and name not in _NOT_LOOKED_AT:
      found += filter(None, [_result(run, name)])
  found.sort(key=lambda result: (-result.time, result.name))
  return Results(tuple(found), has_best, has_checkpoint or has_best)


def find(run: run_folder.Run, name: str) -> Result:
  """The result of a name.

  Raises:
    UserError: the run has none of that name.
  """
  for result in of_run(run).results:
    if result.name == name:
      return result
  raise errors.UserError(f'{run.name}: has no result of the name {name!r}; `official-ext export` makes one')


def is_of_language(run: run_folder.Run) -> bool:
  """Whether a run trains a language model, as far as its configuration shows."""
  values: Mapping[str, object] = params.read(run) or {}
  return any(values.get(path) for path in _OF_LANGUAGE)


def _entries(folder: str) -> list[tuple[str, bool]]:
  try:
    with os.scandir(folder) as entries:
      return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
  except OSError:
    return []


def _result(run: run_folder.Run, name: str) -> Result | None:
  path = run.file(name)
  names = dict(_entries(path))
  if '.tmp-' in name:  # It is being written.
    return None
  if 'saved_model.pb' in names:
    return Result(SAVED_MODEL, name, path, _time(path))
  if model_folders.ADAPTER_CONFIG_FILE in names:
    try:
      base = os.path.abspath(model_folders.find(path).model)
    except errors.UserError:
      base = ''
    return Result(ADAPTER, name, path, _time(path), base, _kept(path))
  if model_folders.CONFIG_FILE in names and any(each.endswith('.safetensors') for each in names):
    return Result(HUGGING_FACE, name, path, _time(path))
  return None


def _kept(path: str) -> str:
  try:
    record = base_records.read(path)
  except errors.UserError:
    return ''
  return '' if record is None else record.kept


def _time(path: str) -> float:
  try:
    return os.stat(path).st_mtime
  except OSError:
    return 0.0
