"""The plan of a preparation: which pieces of which files make which shard. Input and settings alone decide it.

It is written into the folder before anything else, so that a later start does the same work, or is refused. Settings go
to other processes and machines as JSON. Digests show whether the content of an input file has changed.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
import dataclasses
import hashlib
import json
import os
from typing import Protocol

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.data import input_files
from official_ext.data import numbered_records
from official_ext.data import record_files
from official_ext.data.prepare import pieces as pieces_lib


@dataclasses.dataclass(frozen=True)
class Settings:
  """The settings of the output.

  Attributes:
    split: which part of a folder with several.
    shard_bytes: the approximate size of the input of a shard.
    on_bad_example: 'error' or 'skip'.
  """

  split: str = ''
  shard_bytes: int = 64 * 10**6
  on_bad_example: str = 'error'


class Outputs(Protocol):
  """Files that a preparation writes in addition to its shards.

  Attributes:
    config_name: the file for `--config_file` that `results` writes.
    files: the files written before the shards, by their path below the prepared folder.
  """

  config_name: str

  @property
  def files(self) -> Mapping[str, bytes]: ...

  def results(
    self, folder: str, settings: json_values.JsonMapping, notes: Sequence[json_values.JsonMapping]
  ) -> Mapping[str, bytes]:
    """The files written after all shards, by name: one of them is `config_name`, for training on the folder.

    Args:
      folder: the absolute path of the prepared folder.
      settings: with which it was prepared.
      notes: of the shards, in order.
    """


class RowFormat(Outputs, Protocol):
  """Makes other rows of records than the records themselves, such as rows of tokens.

  Attributes:
    kind: the name of such folders in their manifest.
    module: the dotted name of a module with a function `rows(job, records, leaves_out, report)`, which yields the rows
      of a shard as bytes. Every process that writes shards imports it.
    settings: its settings, as JSON values by name.
  """

  kind: str
  module: str

  @property
  def settings(self) -> json_values.JsonMapping: ...

  def resolve(
    self,
    pieces: Sequence[pieces_lib.Piece],
    leaves_out: bool,
    open_first: Callable[[pieces_lib.Piece], numbered_records.Records],
  ) -> tuple[tuple[str, ...], json_values.JsonObject]:
    """(columns of the first record, settings that depend on it), once for all shards.

    Args:
      pieces: all input.
      leaves_out: whether bad records are left out.
      open_first: opens the beginning of a piece as `numbered_records.Records`.

    Raises:
      UserError: there is no record that fits.
    """


_BLOCK = 2**22
_NUM_THREADS = 8


@dataclasses.dataclass(frozen=True)
class FileContent:
  """The content of a file.

  Attributes:
    sha256: its digest.
    num_bytes: its size.
    state: distinguishes the file from another, or a changed one, on this machine: no program can set all of it back.
  """

  sha256: str
  num_bytes: int
  state: tuple[int, ...]


def read_content(paths: Sequence[str], check: Callable[[], None] = lambda: None) -> dict[str, FileContent]:
  """The content of each file, which is read for it, several at a time.

  Args:
    paths: the files.
    check: called every few megabytes; its exceptions end the reading.

  Raises:
    UserError: one cannot be read.
  """
  paths = list(dict.fromkeys(paths))
  with futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
    try:
      return dict(zip(paths, pool.map(lambda path: _read(path, check), paths)))
    except BaseException:
      pool.shutdown(wait=True, cancel_futures=True)
      raise


def changed_files(contents: Mapping[str, FileContent]) -> list[str]:
  """The files whose content has changed. Only files that were written to, or replaced, are read."""
  touched = [path for path, content in contents.items() if _state(path) != content.state]
  return [path for path in touched if not os.path.isfile(path) or _read(path).sha256 != contents[path].sha256]


def _read(path: str, check: Callable[[], None] = lambda: None) -> FileContent:
  state, total, num_bytes = _state(path), hashlib.sha256(), 0
  try:
    with open(path, 'rb') as f:
      while block := f.read(_BLOCK):
        total.update(block)
        num_bytes += len(block)
        if len(block) == _BLOCK:
          check()
  except OSError as error:
    raise errors.UserError(f'{path}: cannot be read: {error.strerror}') from error
  return FileContent(total.hexdigest(), num_bytes, state)


def _state(path: str) -> tuple[int, ...]:
  try:
    found = os.stat(path)
  except OSError:
    return ()
  return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclasses.dataclass(frozen=True)
class Shard:
  """The definition of a shard.

  Attributes:
    name: of its file.
    pieces: of the input, in order.
    files: of images, their paths below the folder.
    records: of annotated images, their annotations: the plan has read the files that hold them.
  """

  name: str
  pieces: tuple[pieces_lib.Piece, ...]
  files: tuple[str, ...] = ()
  records: tuple[json_values.JsonObject, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
  """All of a preparation.

  Attributes:
    kind: 'records', 'images', or the kind of a row format.
    settings: of the output, as JSON values by name.
    inputs: the identity of this input: counts, and sums over names and over contents.
    labels: of images, the names of their classes.
    columns: of a row format, the columns of the first record.
    shards: in order.
    contents: of the input, by path: see `read_content`.
    row_format: the module that makes the rows; '' if records are written unchanged.
    ignored: how many files of the input's folders are not read, by ending.
  """

  kind: str
  settings: json_values.JsonMapping
  inputs: json_values.JsonMapping
  labels: tuple[str, ...]
  columns: tuple[str, ...]
  shards: tuple[Shard, ...]
  contents: Mapping[str, FileContent] = dataclasses.field(default_factory=dict)
  row_format: str = ''
  ignored: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def identity(self) -> json_values.JsonObject:
    """The part on which two starts in a folder must agree."""
    return {
      'version': input_files.PREPARED_VERSION,
      'kind': self.kind,
      'settings': dict(self.settings),
      'inputs': dict(self.inputs),
      'shards': len(self.shards),
    }

  def job(self, number: int, folder: str) -> json_values.JsonObject:
    """All that a process needs to write a shard, as JSON values; `folder` is where to."""
    shard = self.shards[number]
    identity = self.identity()
    identity['settings'].pop('on_bad_example')  # A shard without bad records is the same.
    definition: list[object] = [identity, list(self.columns), [list(piece[1:]) for piece in shard.pieces]]
    if shard.records:
      definition.append(list(shard.records))
    return {
      'folder': folder,
      'name': shard.name,
      'kind': self.kind,
      'row_format': self.row_format,
      'settings': dict(self.settings),
      'labels': list(self.labels),
      'columns': list(self.columns),
      'pieces': [list(piece) for piece in shard.pieces],
      'files': list(shard.files),
      'records': list(shard.records),
      'plan': digest(definition),
    }


def digest(values: object) -> str:
  """A short sum over JSON values."""
  return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def make_plan(
  inputs: Sequence[str],
  settings: Settings,
  row_format: RowFormat | None = None,
  check: Callable[[], None] = lambda: None,
) -> Plan:
  """Looks at the input, and divides it.

  Args:
    inputs: files, folders, patterns, unless a file has that name; or one folder of images.
    settings: of the output.
    row_format: makes other rows of the records; None: they are written unchanged.
    check: called while the input is read for its digests; its exceptions end the planning.

  Raises:
    UserError: there is no such input, it is damaged, or is of two kinds; the first record fits no format of texts.
  """
  patterns = [os.path.expanduser(path) for text in inputs for path in input_files.input_patterns(text)]
  remote = [path for path in patterns if paths.is_remote(path)]
  if remote:
    raise errors.UserError(f'{remote[0]}: only files of local or mounted disks are prepared; copy it to one')
  _refuse_prepared(patterns)
  classes = {path: pieces_lib.image_classes(path) for path in patterns if _may_be_images(path)}
  folders = [path for path, names in classes.items() if names]
  if folders:
    if len(patterns) > 1:
      raise errors.UserError(f'{folders[0]}: a folder of images is prepared alone; give one input')
    if row_format:
      raise errors.UserError(f'--tokenizer: has no meaning for {folders[0]}, which is a folder of images')
    return _of_images(folders[0], classes[folders[0]], settings, check)
  files = [os.path.abspath(file) for path in patterns for file in record_files.files_of(path, settings.split, 'INPUT')]
  if not files:
    raise errors.UserError('INPUT: is empty; expected files of JSON lines, Parquet or Arrow, or a folder')
  sizes = [_size(file) for file in files]
  pieces = [
    piece for file, size in zip(files, sizes) for piece in pieces_lib.pieces_of_file(file, size, settings.shard_bytes)
  ]
  columns: tuple[str, ...] = ()
  resolved: dict[str, object] = {}
  if row_format:
    open_first = lambda piece: pieces_lib.open_piece(_beginning(piece))
    columns, resolved = row_format.resolve(pieces, settings.on_bad_example == 'skip', open_first)
  contents = read_content(files, check)
  for file, size in zip(files, sizes):
    if contents[file].num_bytes != size:
      raise errors.UserError(f'{file}: is being written to; prepare it when it is complete')
  return Plan(
    kind=row_format.kind if row_format else 'records',
    settings={**dataclasses.asdict(settings), **(row_format.settings if row_format else {}), **resolved},
    inputs=identity_of([os.path.basename(file) for file in files], sizes, [contents[file].sha256 for file in files]),
    labels=(),
    columns=columns,
    shards=named_shards([Shard('', tuple(group)) for group in grouped_pieces(pieces, settings.shard_bytes)]),
    contents=contents,
    row_format=row_format.module if row_format else '',
    ignored=unread_files([path for path in patterns if os.path.isdir(path)], files),
  )


_NOTES = ('state.json', 'dataset_info.json', 'dataset_infos.json', 'dataset_dict.json')  # Of `datasets`.


def unread_files(folders: Iterable[str], known: Iterable[str]) -> dict[str, int]:
  """How many files in folders, at any depth, are not among the known ones: by ending, as `.txt files`.

  Hidden files do not count.
  """
  absolute, seen = set(map(os.path.abspath, known)), set[str]()
  found = collections.Counter[str]()
  for folder in folders:
    for place, inside, names in os.walk(os.path.abspath(folder), followlinks=True):
      inside[:] = sorted(name for name in inside if not name.startswith('.'))
      if os.path.realpath(place) in seen:
        inside.clear()
        continue
      seen.add(os.path.realpath(place))
      for name in names:
        if not name.startswith('.') and name not in _NOTES and os.path.join(place, name) not in absolute:
          found[f'{os.path.splitext(name)[1].lower() or "other"} files'] += 1
  return dict(found)


def _may_be_images(path: str) -> bool:
  """Whether a path is a folder that neither `datasets` has written nor files of records are in."""
  if not os.path.isdir(path):
    return False
  names = paths.names(path)
  return not {'state.json', 'dataset_dict.json'} & set(names) and not record_files.data_files(path)


def _of_images(folder, classes, settings, check):
  files = pieces_lib.image_files(folder, classes)
  folder = os.path.abspath(folder)
  shards, start = [], 0
  for group in grouped_pieces(
    [pieces_lib.Piece(name, 'images', 0, 1, size) for name, size in files], settings.shard_bytes
  ):
    size = sum(piece.size for piece in group)
    piece = pieces_lib.Piece(folder, 'images', start, start + len(group), size)
    shards.append(Shard('', (piece,), tuple(each.path for each in group)))
    start += len(group)
  paths_of = [os.path.join(folder, name) for name, _ in files]
  contents = read_content(paths_of, check)
  return Plan(
    kind='images',
    settings=dataclasses.asdict(settings),
    inputs=identity_of(
      [name for name, _ in files], [size for _, size in files], [contents[path].sha256 for path in paths_of]
    ),
    labels=tuple(classes),
    columns=(),
    shards=named_shards(shards),
    contents=contents,
    ignored=unread_files([folder], paths_of),
  )


def _size(file: str) -> int:
  try:
    return os.stat(file).st_size
  except OSError as error:
    raise errors.UserError(f'{file}: cannot be read: {error.strerror}') from error


def _refuse_prepared(patterns: Sequence[str]) -> None:
  """Refuses the folder of a preparation: its notes would be taken for records."""
  for path in patterns:
    if any(os.path.isfile(os.path.join(path, name)) for name in (input_files.PLAN, input_files.MANIFEST)):
      raise errors.UserError(f'{path}: was prepared already; name the input that it was made of')


def identity_of(names: Sequence[str], sizes: Sequence[int], digests: Sequence[str]) -> json_values.JsonObject:
  """Returns the identity of input files. Folders do not count: data that was moved is the same."""
  return {
    'files': len(names),
    'bytes': sum(sizes),
    'names_and_sizes': digest([f'{name} {size}' for name, size in zip(names, sizes)]),
    'content': digest(list(digests)),
  }


def grouped_pieces(pieces: Iterable[pieces_lib.Piece], shard_bytes: int) -> Iterator[list[pieces_lib.Piece]]:
  """Pieces that come one after the other, as many as go into a shard."""
  group: list[pieces_lib.Piece] = []
  size = 0
  for piece in pieces:
    if group and size + piece.size > shard_bytes:
      yield group
      group, size = [], 0
    group.append(piece)
    size += piece.size
  if group:
    yield group


def named_shards(shards: Sequence[Shard], prefix: str = 'rows', ending: str = '.array_record') -> tuple[Shard, ...]:
  """Returns shards with the names of their files: `PREFIX-00003-of-00012ENDING`."""
  width = max(5, len(str(len(shards))))
  name = lambda number: f'{prefix}-{number:0{width}}-of-{len(shards):0{width}}{ending}'
  return tuple(dataclasses.replace(shard, name=name(number)) for number, shard in enumerate(shards))


def _beginning(piece: pieces_lib.Piece) -> pieces_lib.Piece:
  """A part of a piece, enough for its first lines; a longer line is read whole."""
  return piece._replace(end=min(piece.end, piece.start + 2**16)) if piece.how == 'bytes' else piece
