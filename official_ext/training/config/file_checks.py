"""Checks, before a model is built, that the files and folders of a run exist or can be made."""

from collections.abc import Iterable, Iterator
import os
import re
import socket
import threading

from official.modeling.hyperparams import base_config
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import yaml_text
from official_ext.data import input_files
from official_ext.training.config import definitions
from official_ext.training.config import overrides

_MAX_NAME = 255  # Bytes, on common file systems.
_MAX_PATH = 4000  # Of 4096 on Linux: files of a run add to the path.
_SCHEME = re.compile(r'([A-Za-z][\w+.-]*)://')
_CONNECT_SECONDS = 5.0
_GCS = ('storage.googleapis.com', 443)
_PROXIES = ('https_proxy', 'HTTPS_PROXY', 'all_proxy', 'ALL_PROXY')
_OF_DOWNLOADS = ('http', 'https', 'ftp', 'hf')
_SYNTHETIC = 'dummy'  # Model Garden's value for generated data.

# Fields of tasks and of their data that hold the name of a file to read.
_FILES = ('vocab_file', 'vocab_file_path', 'sentencepiece_model_path', 'annotation_file', 'chat_template_path')
_FILES_OF_EVALUATION = ('annotation_file',)
# The files that a run itself writes into its folder.
_TAKEN = re.compile(
  r'train|wandb|mlruns|mlflow\.db|mlartifacts|ema_checkpoints|checkpoint|plugins|'
  r'(ckpt-|params\.|run\.|events\.|operative_config\.|started\.|stop\.|notes\.).*'
)


def check_path(path: str, field: str) -> None:
  """Makes sure that a path can name a file or folder, and that its file system is reachable.

  Args:
    path: a path to read or write.
    field: the flag or dotted path whose value it is.

  Raises:
    UserError: no file system would accept it, or TensorFlow does not know or cannot reach its file system.
  """
  if '\0' in path:
    raise errors.UserError(f'{field}: {yaml_text.shortened(path)} has a character of code 0, which no path has')
  for name in path.split('/'):
    if len(os.fsencode(name)) > _MAX_NAME:
      raise errors.UserError(
        f'{field}: {yaml_text.shortened(name)} has {len(os.fsencode(name))} letters, and names of '
        f'files have {_MAX_NAME} at most'
      )
  if len(os.fsencode(path)) > _MAX_PATH:
    raise errors.UserError(
      f'{field}: {yaml_text.shortened(path)} has {len(os.fsencode(path))} letters; {_MAX_PATH} are possible'
    )
  _check_file_system(path, field)


def _check_file_system(path: str, field: str) -> None:
  match = _SCHEME.match(path)
  if match is None or match.group(1) == 'file':
    return
  scheme = match.group(1)
  if scheme not in tf.io.gfile.get_registered_schemes():
    if scheme.lower() in _OF_DOWNLOADS:
      raise errors.UserError(
        f'{field}: {path}: files are read from local paths and gs://, and not from {scheme}://; download it first'
      )
    raise errors.UserError(
      f'{field}: {path}: TensorFlow has no file system for {scheme}:// here; one is added by a package such as '
      'tensorflow-io, imported by --registry=tensorflow_io'
    )
  if scheme == 'gs' and not any(map(os.environ.get, _PROXIES)) and not _can_connect(_GCS):
    raise errors.UserError(f'{field}: {path}: {_GCS[0]} cannot be reached from here')


def _can_connect(address: tuple[str, int]) -> bool:
  """Whether a server answers at the address. TensorFlow would try for 20 seconds and more."""
  connected: list[bool] = []

  def connect():
    try:
      socket.create_connection(address, _CONNECT_SECONDS).close()
      connected.append(True)
    except OSError:
      pass

  thread = threading.Thread(target=connect, daemon=True)  # Looking up a name has no time limit.
  thread.start()
  thread.join(_CONNECT_SECONDS)
  return bool(connected)


def check_subdirs(trainer: definitions.TrainerConfig) -> None:
  """Makes sure that the folders named in a configuration are inside the run's folder, and apart from each other.

  Raises:
    UserError: one is outside the run's folder, is not a plain name, or is used for something else.
  """
  names = ('validation_summary_subdir', 'best_checkpoint_export_subdir')
  with errors.Mistakes() as mistakes:
    for name in names:
      with mistakes.noted():
        if getattr(trainer, name) or name == 'validation_summary_subdir':  # The best checkpoints may be turned off.
          _check_subdir(getattr(trainer, name), f'trainer.{name}')
    with mistakes.noted():
      validation, best = (os.path.normpath(getattr(trainer, name) or f'no {name}') for name in names)
      if f'{validation}/'.startswith(f'{best}/') or f'{best}/'.startswith(f'{validation}/'):
        raise errors.UserError(f'trainer.{names[1]}: {best} and trainer.{names[0]}, {validation}, share a folder')


def _check_subdir(subdir: str, field: str) -> None:
  if not subdir:
    raise errors.UserError(f"{field}: is empty; expected the name of a folder inside of the run's")
  check_path(subdir, field)
  parts = subdir.split('/')
  if {'', '.', '..'} & set(parts[:-1] if subdir.endswith('/') and subdir != '/' else parts) or subdir.startswith('~'):
    raise errors.UserError(
      f"{field}: {yaml_text.shortened(subdir)} is not a plain name of a folder inside of the run's"
    )
  if not subdir.isprintable() or '\\' in subdir:
    raise errors.UserError(f'{field}: {yaml_text.shortened(subdir)} has characters that no name of a folder should')
  if _TAKEN.fullmatch(parts[0]):
    raise errors.UserError(f'{field}: {subdir}: {parts[0]} in the folder of a run belongs to something else')


def check_inputs(
  params: definitions.ExperimentConfig,
  data: Iterable[tuple[str, base_config.Config]],
  evaluates: bool,
  checkpoint: str | None = None,
) -> None:
  """Makes sure that the files that a run reads exist.

  Args:
    params: an upgraded experiment.
    data: the dotted paths and configurations of the data sets that are read.
    evaluates: whether the run evaluates.
    checkpoint: --checkpoint.

  Raises:
    UserError: naming all that are missing.
  """
  with errors.Mistakes() as mistakes:
    for path, config in data:
      if 'input_path' not in getattr(type(config), 'UNREAD_FIELDS', {}):
        for pattern in input_files.patterns(vars(config).get('input_path')):
          mistakes.check(_check_pattern, pattern, f'{path}.input_path')
    for path, value in _files(params, [path for path, _ in data], evaluates):
      with mistakes.noted():
        check_path(value, path)
        if not _exists(value, path):
          raise errors.UserError(f'{path}: {value}: No such file or directory')
    for field, given in (('task.init_checkpoint', params.task.init_checkpoint), ('--checkpoint', checkpoint)):
      if isinstance(given, str):
        mistakes.check(check_path, given, field)


def _check_pattern(pattern: str, field: str) -> None:
  if pattern == _SYNTHETIC:
    return
  check_path(pattern, field)
  if not _SCHEME.match(pattern) or pattern.startswith(('gs://', 'file://')):
    if not (_exists(pattern, field) or re.search(r'[*?\[{]', pattern) and _matches(pattern, field)):
      is_pattern = re.search(r'[*?\[{]', pattern)
      raise errors.UserError(
        f'{field}: {pattern}: ' + ('no file matches this pattern' if is_pattern else 'No such file or directory')
      )


def _exists(path: str, field: str) -> bool:
  try:
    return tf.io.gfile.exists(path)
  except tf.errors.OpError as error:
    raise _unreadable(path, field, error) from error


def _matches(pattern: str, field: str) -> bool:
  try:
    return bool(input_files.matching(pattern))
  except tf.errors.OpError as error:
    raise _unreadable(pattern, field, error) from error
  except errors.UserError as error:
    raise errors.UserError(f'{field}: {error}') from error


def _unreadable(path: str, field: str, error: tf.errors.OpError) -> errors.UserError:
  return errors.UserError(f'{field}: {path}: cannot be read: {" ".join(str(error.message).split())}')


def _files(params: definitions.ExperimentConfig, data_paths: list[str], evaluates: bool) -> Iterator[tuple[str, str]]:
  """The dotted path and the value of each field of the task that names a file to be read."""
  for field in overrides.leaves(params.task, 'task'):
    owner, _, name = field.path.rpartition('.')
    is_data = owner.rpartition('.')[2] in ('train_data', 'validation_data')
    is_read = owner in data_paths if is_data else evaluates or name not in _FILES_OF_EVALUATION
    if name in _FILES and is_read and isinstance(field.value, str) and field.value:
      yield field.path, field.value
