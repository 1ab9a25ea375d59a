"""The files of a data configuration: patterns, folders of `official-ext prepare`, and names of classes.

TensorFlow is imported only for patterns and remote paths.
"""

from collections.abc import Iterator, Sequence
import contextlib
import csv
import dataclasses
import hashlib
import os
from typing import Any

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.base.files import tf_records
from official_ext.data import config_fields


def input_patterns(input_path: object) -> Iterator[str]:
  """The patterns of an `input_path`: a string of patterns joined by commas, or lists and sections of such strings.

  A string that is the path of a local file or folder means that one, even if it has commas.
  """
  if hasattr(input_path, 'as_dict'):
    input_path = input_path.as_dict()
  if isinstance(input_path, dict):
    input_path = list(input_path.values())
  if isinstance(input_path, (list, tuple)):
    for element in input_path:
      yield from input_patterns(element)
  elif isinstance(input_path, str) and '://' not in input_path and os.path.exists(input_path):
    yield input_path
  elif isinstance(input_path, str):
    yield from filter(None, (pattern.strip() for pattern in input_path.split(',')))


def matching_files(pattern: str) -> list[str]:
  """The files of one pattern, sorted: the file with exactly this name, or else all that match.

  Raises:
    UserError: the name of one that matches is not UTF-8.
  """
  if not pattern:
    return []
  if not paths.is_remote(pattern) and os.path.isfile(pattern):
    return [pattern]
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  if paths.exists(pattern) and not paths.is_folder(pattern):
    return [pattern]
  try:
    return sorted(tf.io.gfile.glob(pattern))
  except UnicodeDecodeError as error:
    name = ascii(error.object)[2:-1]
    raise errors.UserError(
      f'{pattern}: {name}: its name is not UTF-8, and TensorFlow opens no such file; rename it'
    ) from error


MANIFEST = 'prepared.json'  # Written after all shards.
PLAN = 'plan.json'  # Written first.
# Files that a conversion for Model Garden writes next to its shards.
LABELS, REPORT, CONFIG = 'labels.txt', 'report.json', 'experiment.yaml'
MOST_OBJECTS = 'most_objects'  # In a report: the largest number of objects in an image of a split.
PREPARED_VERSION = 1
JPEG_QUALITY = 100  # Of images that are encoded again: pixels change by rounding alone.


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
    balance: the accounts of the input: see `record_report.Balance.values`; [] of an older version.
  """

  folder: str
  kind: str
  settings: dict[str, Any]
  files: list[tuple[str, int, int, str]]
  labels: list[str]
  report: dict[str, Any]
  balance: list[dict[str, Any]] = dataclasses.field(default_factory=list)

  @property
  def num_records(self) -> int:
    """Of all shards."""
    return sum(count for _, count, _, _ in self.files)

  @property
  def content(self) -> str:
    """A sum over the content of all shards."""
    return hashlib.sha256(' '.join(sha256 for _, _, _, sha256 in self.files).encode()).hexdigest()[:12]


def find_prepared(input_path: object, field: str = 'input_path') -> PreparedFolder | None:
  """The prepared folder that an `input_path` names; None if it names something else.

  Args:
    input_path: of a data configuration.
    field: its dotted path, for messages.

  Raises:
    UserError: see `read_prepared`; or there are several paths, and one of them is such a folder.
  """
  patterns = [os.path.expanduser(pattern) for pattern in input_patterns(input_path)]
  found = [path for path in patterns if not paths.is_remote(path) and _is_prepared(path)]
  if found and len(patterns) > 1:
    raise errors.UserError(f'{field}: {found[0]} was prepared, and stands alone; prepare all files into one folder')
  return read_prepared(found[0], field) if found else None


def read_prepared(folder: str, field: str = 'input_path') -> PreparedFolder:
  """The description in a folder of ArrayRecord files.

  Args:
    folder: its path.
    field: the flag or dotted path that it is from, for messages.

  Raises:
    UserError: see `describe_prepared`; it holds TFRecord files.
  """
  found = describe_prepared(folder, field)
  if any(name.endswith(tf_records.ENDING) for name, *_ in found.files):
    raise errors.UserError(
      f'{field}: {folder}: holds TFRecord files for {found.kind}; set input_path={folder}/train-*.tfrecord, or '
      'use --config_file=experiment.yaml of the folder'
    )
  return dataclasses.replace(found, files=[file for file in found.files if file[1]])


def describe_prepared(folder: str, field: str = 'input_path') -> PreparedFolder:
  """The description in a folder of any files; those without records are among `files`.

  Args:
    folder: its path.
    field: the flag or dotted path that it is from, for messages.

  Raises:
    UserError: it was not prepared, or not to its end; a shard is missing or has another size.
  """
  path = os.path.join(folder, MANIFEST)
  try:
    manifest = json_values.load_file(path, max_bytes=None)
    files = [
      (os.path.join(folder, shard['name']), shard['records'], shard['bytes'], shard['sha256'])
      for shard in manifest['shards']
    ]
    found = PreparedFolder(
      folder,
      manifest['kind'],
      manifest['settings'],
      files,
      manifest.get('labels', []),
      manifest['report'],
      manifest.get('balance', []),
    )
    version = manifest['version']
  except (FileNotFoundError, NotADirectoryError):
    if paths.exists(os.path.join(folder, PLAN)):
      what = 'is not prepared to its end; give the command that began it once more'
    else:
      what = f'has no {MANIFEST}; `official-ext prepare` makes such a folder'
    raise errors.UserError(f'{field}: {folder}: {what}') from None
  except OSError as error:
    raise errors.UserError(f'{field}: {path}: cannot be read: {error.strerror}') from error
  except (ValueError, KeyError, TypeError) as error:
    raise errors.UserError(f'{field}: {path}: is damaged; prepare the folder again') from error
  if version != PREPARED_VERSION:
    raise errors.UserError(f'{field}: {folder}: was prepared by another version of this library; prepare it again')
  for file, _, size, _ in files:
    try:
      there = os.stat(file).st_size
    except OSError as error:
      raise errors.UserError(f'{field}: {file}: cannot be read: {error.strerror}; prepare it again') from error
    if there != size:
      raise errors.UserError(f'{field}: {file}: has {there} bytes in place of {size}; prepare it again')
  return found


def balance_of(input_path: object) -> list[dict[str, Any]]:
  """The accounts of the prepared folders that hold the files of an `input_path`; [] if they are not known."""
  found: list[dict[str, Any]] = []
  folders = dict.fromkeys(each for path in input_patterns(input_path) for each in (path, os.path.dirname(path)))
  for folder in folders:
    if folder and not paths.is_remote(folder) and os.path.isfile(os.path.join(folder, MANIFEST)):
      with contextlib.suppress(errors.UserError):
        found += describe_prepared(folder).balance
  return found


def _is_prepared(path: str) -> bool:
  return any(os.path.isfile(os.path.join(path, name)) for name in (MANIFEST, PLAN))


class ClassNames:
  """Names of classes by number."""

  def __init__(self, names: dict[int, str]):
    """Takes the known names."""
    self._names = names

  def __len__(self) -> int:
    return len(self._names)

  @property
  def numbers(self) -> list[int]:
    """The numbers of the classes that have names, in order."""
    return sorted(self._names)

  def of(self, number: int) -> str:
    """The name of a class; its number if it has none."""
    return self._names.get(number, str(number))


def find_class_names(data: Any) -> ClassNames:
  """The names in the label map of a data configuration, or in labels.txt in the folder of its files; else none.

  Args:
    data: the data configuration.
  """
  fields = config_fields.of_data(data)
  decoder = fields.decoder
  if decoder is not None and getattr(decoder, 'type', '') == 'label_map_decoder':
    found = _read_label_map(decoder.label_map_decoder.label_map)
    if found:
      return ClassNames(found)
  for pattern in input_patterns(fields.input_path) if fields.input_path else ():
    for folder in (os.path.dirname(pattern), pattern):
      names = class_names_in(folder)
      if len(names):
        return names
  return ClassNames({})


def check_same_classes(where: str, names: ClassNames, other: str, others: ClassNames, labels: str = '') -> None:
  """Refuses an input with a class that another input of the model has under another number, or not at all.

  The input may have fewer classes than the other one.

  Args:
    where: the dotted path or flag of the input.
    names: of its classes; nothing is checked without names.
    other: the other input.
    others: the names there; nothing is checked without names.
    labels: the path of the labels.txt of the other input, if it is known.

  Raises:
    UserError: with the first class that differs.
  """
  if not len(others):
    return
  for number in names.numbers:
    if names.of(number) != others.of(number):
      raise errors.UserError(
        f'{where}: class {number} is {names.of(number)}, and {others.of(number)} in {other}; prepare it with --labels'
        + (f'={labels}' if labels else f', the {LABELS} of {other}')
      )


def most_objects(data: Any) -> int:
  """The largest number of objects in an image of the prepared files of a data configuration; 0 if it is unknown."""
  pattern = config_fields.of_data(data).input_path
  counts = []
  for folder, name in map(os.path.split, input_patterns(pattern) if pattern else ()):
    splits = (json_values.read_file(os.path.join(folder, REPORT), max_bytes=None) or {}).get('splits') or {}
    named = [values for split, values in splits.items() if name.startswith(f'{split}-')]
    counts += [values.get(MOST_OBJECTS) for values in named or splits.values()]
  return max((count for count in counts if json_values.is_int(count)), default=0)


def check_labels(names: Sequence[str]) -> None:
  """Refuses names of classes that labels.txt does not hold, a name on each line.

  Raises:
    UserError: with the first one.
  """
  broken = next((name for name in names if not name or '\n' in name or '\r' in name), None)
  if broken is not None:
    raise errors.UserError(f'INPUT: the class {broken!r} is not one line, as {LABELS} requires; rename it')


def class_names_in(folder: str) -> ClassNames:
  """The names in labels.txt of a folder; none without the file."""
  return ClassNames(dict(enumerate(paths.lines(os.path.join(folder, LABELS)))))


def _read_label_map(path: str) -> dict[int, str]:
  """From number to name, by a CSV file of `number,name`; {} if it cannot be read."""
  try:
    with open(path, encoding='utf-8-sig', newline='') as f:
      return {int(number): name for number, name in csv.reader(f)}
  except (OSError, ValueError):
    return {}
