"""Opens TFDS data sets, and prepares them once, even if many processes need them at the same time."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import fcntl
import os
from typing import Any

from official_ext.base import errors
from official_ext.base.files import storage as storage_lib


@contextlib.contextmanager
def _lock(builder: Any) -> Iterator[None]:
  """Keeps the other processes of this machine waiting while the data set is prepared.

  A data_dir that is not a local folder (gs://...) has no such lock: there the first to finish wins.
  """
  root = os.fspath(builder.data_path.parent)
  if '://' in root:
    yield
    return
  try:
    os.makedirs(root, exist_ok=True)
    file = open(os.path.join(root, '.preparing.lock'), 'w', encoding='utf-8')
  except OSError as error:
    raise errors.UserError(f'tfds_data_dir: cannot write to {root}: {error.strerror}') from error
  with file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _make_builder(name: str, data_dir: str) -> Any:
  """Makes a builder, which reads the present state of the disk."""
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  try:
    return tfds.builder(name, data_dir=_expanded(data_dir))
  # TFDS asserts that it has the requested version.
  except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:
    raise errors.UserError(f'tfds_name: TFDS cannot make {name!r}: {_reason(error)}') from error


def prepare(name: str, data_dir: str = '') -> Any:
  """Makes a TFDS builder whose data is on disk, and prepares the data if needed, as ArrayRecord files.

  Args:
    name: for `tfds.builder`.
    data_dir: if empty, TFDS's default.

  Returns:
    The builder.

  Raises:
    UserError: there is no such data set, or nothing can be written to `data_dir`.
    StorageError: there is no room for it.
  """
  builder = _make_builder(name, data_dir)
  if builder.data_path.exists():  # TFDS gives the folder this name when the data set is complete.
    return builder
  with _lock(builder):
    builder = _make_builder(name, data_dir)
    if builder.data_path.exists():
      return builder
    try:
      builder.download_and_prepare(file_format='array_record')
    except Exception as error:
      # Another machine that shares the folder may have been faster; then its data is complete.
      builder = _make_builder(name, data_dir)
      if not builder.data_path.exists():
        storage = storage_lib.explain(error)
        if storage is None:
          raise
        raise errors.StorageError(f'tfds_data_dir: {name} cannot be prepared: {storage}') from error
  return builder


def open_data_source(name: str, split: str, data_dir: str, decoders: Mapping[str, object] | None) -> Any:
  """Opens one split of a data set for random access.

  Args:
    name: for `tfds.builder`.
    split: for TFDS.
    data_dir: if empty, TFDS's default.
    decoders: for TFDS.

  Raises:
    UserError: there is no such data set or split, or its files have no random access.
  """
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  builder = prepare(name, data_dir)
  if not split:
    raise errors.UserError(f'tfds_split: {name} has the splits {", ".join(sorted(builder.info.splits))}; name one')
  try:
    return tfds.data_source(name, split=split, data_dir=_expanded(data_dir), decoders=decoders, download=False)
  except NotImplementedError as error:
    raise errors.UserError(
      f'tfds_data_dir: {builder.data_path} holds {name} in a format without random access; '
      'choose another folder, or delete that one'
    ) from error
  except ValueError as error:
    raise errors.UserError(f'tfds_split: {name} has no split {split!r}: {_reason(error)}') from error


def files_of(data_source: Any) -> Sequence[Any]:
  """The parts of files that a data source reads, in order: each has `filename`, `skip` and `take` (records)."""
  from tensorflow_datasets.core.data_sources import base  # pylint: disable=g-import-not-at-top

  return base.file_instructions(data_source.dataset_info, data_source.split)


def _expanded(data_dir: str) -> str | None:
  """The folder for TFDS; None for its default."""
  return os.path.expanduser(data_dir) or None


def _reason(error: Exception) -> str:
  """The message of an exception of TFDS, in one line and without the arguments that TFDS repeats."""
  lines = str(error).split('}": ')[-1].strip().splitlines()
  return lines[0] if lines else type(error).__name__
