"""Folders that `official-ext prepare` has filled: their files, and their record in prepared.json. No TensorFlow."""

import dataclasses
import hashlib
import json
import os
from typing import Any

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.data import input_files
from official_ext.data import tf_records

MANIFEST = 'prepared.json'  # There as soon as all shards are.
PLAN = 'plan.json'  # There from the start on.
# The files beside the shards of a conversion for Model Garden.
LABELS, REPORT, CONFIG = 'labels.txt', 'report.json', 'experiment.yaml'
VERSION = 1


@dataclasses.dataclass(frozen=True)
class PreparedFolder:
  """The prepared input.

  Attributes:
    folder: its path.
    kind: 'records', 'images' or 'texts'.
    settings: with which it was made.
    files: (path, number of records, bytes, SHA-256) of each shard that has records, in order.
    labels: the classes of images, by number.
    report: counts of the records.
  """

  folder: str
  kind: str
  settings: dict[str, Any]
  files: list[tuple[str, int, int, str]]
  labels: list[str]
  report: dict[str, Any]

  @property
  def num_records(self) -> int:
    """Of all shards."""
    return sum(count for _, count, _, _ in self.files)

  @property
  def content(self) -> str:
    """A sum over the content of all shards."""
    return hashlib.sha256(' '.join(sha256 for _, _, _, sha256 in self.files).encode()).hexdigest()[:12]


def find(input_path: object, field: str = 'input_path') -> PreparedFolder | None:
  """The prepared folder that an `input_path` names; None if it names something else.

  Args:
    input_path: of a data configuration.
    field: its dotted path, for messages.

  Raises:
    UserError: see `read`; or there are several paths, and one of them is such a folder.
  """
  patterns = [os.path.expanduser(pattern) for pattern in input_files.patterns(input_path)]
  found = [path for path in patterns if not paths.is_remote(path) and _is_prepared(path)]
  if found and len(patterns) > 1:
    raise errors.UserError(f'{field}: {found[0]} was prepared, and stands alone; prepare all files into one folder')
  return read(found[0], field) if found else None


def read(folder: str, field: str = 'input_path') -> PreparedFolder:
  """The description in a folder of ArrayRecord files.

  Args:
    folder: its path.
    field: the flag or dotted path that it is from, for messages.

  Raises:
    UserError: see `describe`; it holds TFRecord files.
  """
  found = describe(folder, field)
  if any(name.endswith(tf_records.ENDING) for name, *_ in found.files):
    raise errors.UserError(
      f'{field}: {folder}: holds TFRecord files for {found.kind}; set input_path={folder}/train-*.tfrecord, or '
      'use --config_file=experiment.yaml of the folder'
    )
  return dataclasses.replace(found, files=[file for file in found.files if file[1]])


def describe(folder: str, field: str = 'input_path') -> PreparedFolder:
  """The description in a folder of any files; those without records are among `files`.

  Args:
    folder: its path.
    field: the flag or dotted path that it is from, for messages.

  Raises:
    UserError: it was not prepared, or not to its end; a shard is missing or has another size.
  """
  path = os.path.join(folder, MANIFEST)
  try:
    manifest = json.loads(paths.read(path))
    files = [
      (os.path.join(folder, shard['name']), shard['records'], shard['bytes'], shard['sha256'])
      for shard in manifest['shards']
    ]
    found = PreparedFolder(
      folder, manifest['kind'], manifest['settings'], files, manifest.get('labels', []), manifest['report']
    )
    version = manifest['version']
  except (FileNotFoundError, NotADirectoryError):
    if paths.exists(os.path.join(folder, PLAN)):
      what = 'is not prepared to its end; give the command that began it once more'
    else:
      what = f'has no {MANIFEST}; `official-ext prepare` makes such a folder'
    raise errors.UserError(f'{field}: {folder}: {what}') from None
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.UserError(f'{field}: {path}: is damaged: {type(error).__name__}: {error}') from error
  if version != VERSION:
    raise errors.UserError(f'{field}: {folder}: was prepared by another version of this library; prepare it again')
  for file, _, size, _ in files:
    try:
      there = os.stat(file).st_size
    except OSError as error:
      raise errors.UserError(f'{field}: {file}: cannot be read: {error.strerror}; prepare it again') from error
    if there != size:
      raise errors.UserError(f'{field}: {file}: has {there} bytes in place of {size}; prepare it again')
  return found


def _is_prepared(path: str) -> bool:
  return any(os.path.isfile(os.path.join(path, name)) for name in (MANIFEST, PLAN))
