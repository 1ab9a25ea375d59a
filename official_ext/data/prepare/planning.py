"""The plan of a preparation: which pieces of which files make which shard. Input and settings alone decide it.

It is written into the folder before anything else is, so that a later start does the same work, or is refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import json
import os

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import paths
from official_ext.data import input_files
from official_ext.data import prepared_folders
from official_ext.data import record_files
from official_ext.data.prepare import image_records
from official_ext.data.prepare import input_content
from official_ext.data.prepare import pieces as pieces_lib
from official_ext.data.prepare import settings as settings_lib


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
  records: tuple[json_types.JsonObject, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
  """All of a preparation.

  Attributes:
    kind: 'records', 'images', or that of a row format.
    settings: of the output, as JSON values by name.
    inputs: the identity of this input: counts, and sums over names and over contents.
    labels: of images, the names of their classes.
    columns: of a row format, those of the first record.
    shards: in order.
    contents: of the input, by path: see input_content.py.
    row_format: the module that makes the rows; '' if records are written unchanged.
  """

  kind: str
  settings: json_types.JsonMapping
  inputs: json_types.JsonMapping
  labels: tuple[str, ...]
  columns: tuple[str, ...]
  shards: tuple[Shard, ...]
  contents: Mapping[str, input_content.FileContent] = dataclasses.field(default_factory=dict)
  row_format: str = ''

  def identity(self) -> json_types.JsonObject:
    """The part on which two starts in a folder must agree."""
    return {
      'version': prepared_folders.VERSION,
      'kind': self.kind,
      'settings': dict(self.settings),
      'inputs': dict(self.inputs),
      'shards': len(self.shards),
    }

  def job(self, number: int, folder: str) -> json_types.JsonObject:
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


def make(
  inputs: Sequence[str],
  settings: settings_lib.Settings,
  row_format: settings_lib.RowFormat | None = None,
  check: Callable[[], None] = lambda: None,
) -> Plan:
  """Looks at the input, and divides it.

  Args:
    inputs: files, folders, patterns where nothing is called just so; or one folder of images.
    settings: of the output.
    row_format: makes other rows of the records; None: they are written unchanged.
    check: called while the input is read for its digests; its exceptions end the planning.

  Raises:
    UserError: there is no such input, it is damaged, or is of two kinds; the first record fits no format of texts.
  """
  patterns = [os.path.expanduser(path) for text in inputs for path in input_files.patterns(text)]
  remote = [path for path in patterns if paths.is_remote(path)]
  if remote:
    raise errors.UserError(f'{remote[0]}: only files of local or mounted disks are prepared; copy it to one')
  _refuse_prepared(patterns)
  classes = {path: image_records.classes_of(path) for path in patterns if _may_be_images(path)}
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
  pieces = [piece for file, size in zip(files, sizes) for piece in pieces_lib.of_file(file, size, settings.shard_bytes)]
  columns: tuple[str, ...] = ()
  resolved: dict[str, object] = {}
  if row_format:
    open_first = lambda piece: pieces_lib.open_piece(_beginning(piece))
    columns, resolved = row_format.resolve(pieces, settings.on_bad_example == 'skip', open_first)
  contents = input_content.read(files, check)
  for file, size in zip(files, sizes):
    if contents[file].num_bytes != size:
      raise errors.UserError(f'{file}: is being written to; prepare it when it is complete')
  return Plan(
    kind=row_format.kind if row_format else 'records',
    settings={**dataclasses.asdict(settings), **(row_format.settings if row_format else {}), **resolved},
    inputs=identity_of([os.path.basename(file) for file in files], sizes, [contents[file].sha256 for file in files]),
    labels=(),
    columns=columns,
    shards=named([Shard('', tuple(group)) for group in grouped(pieces, settings.shard_bytes)]),
    contents=contents,
    row_format=row_format.module if row_format else '',
  )


def _may_be_images(path: str) -> bool:
  """Whether a path is a folder that neither `datasets` has written nor files of records are in."""
  if not os.path.isdir(path):
    return False
  names = paths.names(path)
  return not {'state.json', 'dataset_dict.json'} & set(names) and not record_files.data_files(path)


def _of_images(folder, classes, settings, check):
  files = image_records.files_of(folder, classes)
  folder = os.path.abspath(folder)
  shards, start = [], 0
  for group in grouped([pieces_lib.Piece(name, 'images', 0, 1, size) for name, size in files], settings.shard_bytes):
    size = sum(piece.size for piece in group)
    piece = pieces_lib.Piece(folder, 'images', start, start + len(group), size)
    shards.append(Shard('', (piece,), tuple(each.path for each in group)))
    start += len(group)
  paths_of = [os.path.join(folder, name) for name, _ in files]
  contents = input_content.read(paths_of, check)
  return Plan(
    kind='images',
    settings=dataclasses.asdict(settings),
    inputs=identity_of(
      [name for name, _ in files], [size for _, size in files], [contents[path].sha256 for path in paths_of]
    ),
    labels=tuple(classes),
    columns=(),
    shards=named(shards),
    contents=contents,
  )


def _size(file: str) -> int:
  try:
    return os.stat(file).st_size
  except OSError as error:
    raise errors.UserError(f'{file}: cannot be read: {error.strerror}') from error


def _refuse_prepared(patterns: Sequence[str]) -> None:
  """Refuses the folder of a preparation: its notes would be taken for records."""
  for path in patterns:
    if any(os.path.isfile(os.path.join(path, name)) for name in (prepared_folders.PLAN, prepared_folders.MANIFEST)):
      raise errors.UserError(f'{path}: was prepared already; name the input that it was made of')


def identity_of(names: Sequence[str], sizes: Sequence[int], digests: Sequence[str]) -> json_types.JsonObject:
  """Returns the identity of input files. Folders do not count: data that was moved is the same."""
  return {
    'files': len(names),
    'bytes': sum(sizes),
    'names_and_sizes': digest([f'{name} {size}' for name, size in zip(names, sizes)]),
    'content': digest(list(digests)),
  }


def grouped(pieces: Iterable[pieces_lib.Piece], shard_bytes: int) -> Iterator[list[pieces_lib.Piece]]:
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


def named(shards: Sequence[Shard], prefix: str = 'rows', ending: str = '.array_record') -> tuple[Shard, ...]:
  """Returns shards with the names of their files: `PREFIX-00003-of-00012ENDING`."""
  width = max(5, len(str(len(shards))))
  name = lambda number: f'{prefix}-{number:0{width}}-of-{len(shards):0{width}}{ending}'
  return tuple(dataclasses.replace(shard, name=name(number)) for number, shard in enumerate(shards))


def _beginning(piece: pieces_lib.Piece) -> pieces_lib.Piece:
  """A part of a piece, enough for its first lines; a longer line is read whole."""
  return piece._replace(end=min(piece.end, piece.start + 2**16)) if piece.how == 'bytes' else piece
