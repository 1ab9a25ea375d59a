"""Sources of examples: they have a length and random access."""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import fcntl
import operator
import os
from typing import Any, SupportsIndex

from absl import logging
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import storage as storage_lib
from official_ext.data import bad_examples
from official_ext.data import collators
from official_ext.data import data_identity
from official_ext.data import input_files
from official_ext.data import record_report
from official_ext.data import row_encoding


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


def prepare_tfds(name: str, data_dir: str = '') -> Any:
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


def open_tfds_source(name: str, split: str, data_dir: str, decoders: Mapping[str, object] | None) -> Any:
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

  builder = prepare_tfds(name, data_dir)
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


def tfds_files(data_source: Any) -> Sequence[Any]:
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


class Source(abc.ABC):
  """Numbered examples. Reading must be thread-safe.

  It implements the random-access protocol of Grain, Hugging Face and PyTorch: `len(source)`, `source[i]`, and
  `__getitems__` for a batch.

  Attributes:
    reads_in_blocks: whether the examples of many batches are read by one call, because a call costs more than a few
      examples. They must all have the same shapes.

  Example:

    >>> class Squares(ext.Source):
    ...   def __len__(self):
    ...     return 100
    ...
    ...   def fetch(self, indices):
    ...     return [{'root': np.float32(i), 'square': np.float32(i * i)} for i in indices]
    >>> [float(example['square']) for example in Squares().fetch([3, 99])]
    [9.0, 9801.0]
    >>> float(Squares()[-1]['root'])
    99.0
  """

  reads_in_blocks: bool = False

  @property
  def bytes_per_example(self) -> int:
    """The size of an example's arrays, about; 0 if it is not known."""
    return 0

  @abc.abstractmethod
  def __len__(self) -> int:
    """The number of examples."""

  @abc.abstractmethod
  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    """Reads the examples of these numbers.

    Args:
      indices: numbers in [0, len(self)), in any order, possibly repeated.

    Returns:
      One dictionary for each number, in the order of `indices`.
    """

  def __getitem__(self, index: SupportsIndex) -> collators.Example:
    """Reads one example: a dictionary as `fetch` returns it. Negative numbers count from the end.

    Raises:
      IndexError: there is no such example.
    """
    number = operator.index(index)
    if not -len(self) <= number < len(self):
      raise IndexError(f'{type(self).__name__}: requested example {number}, found {len(self)} examples')
    return self.fetch([number % len(self)])[0]

  def __getitems__(self, indices: Sequence[int]) -> list[collators.Example]:
    """Reads a batch: `fetch`, under the name that PyTorch's DataLoader and Hugging Face call."""
    return self.fetch(indices)

  def describe(self, index: int) -> str:
    """Describes an example, so that a person can find it: its file and its record, from 0, if it comes from one."""
    return f'example {index} of {type(self).__name__}'

  def summary(self) -> str:
    """How many examples there are, and the counts of their records, in words."""
    return f'{len(self)} examples'

  def balance(self) -> list[json_values.JsonObject]:
    """The accounts of the input: how much was found, used, left out and not read, with reasons.

    Returns:
      JSON values of `official_ext.data.record_report.Balance`; without further knowledge, all examples are used.
    """
    return [record_report.Balance(type(self).__name__, 'examples', len(self), len(self)).values()]

  def identity(self) -> data_identity.Identity:
    """Distinguishes this source from others, by JSON values: see data_identity.py.

    It is cheap, and the same in every process. Every checkpoint notes it. A subclass adds details: files, a version, a
    split.
    """
    return {'source': type(self).__name__, 'num_examples': len(self)}


class ArraySource(Source):
  """Arrays in memory: example i is row i of each. Batches are gathered in the graph, without Python.

  Attributes:
    arrays: the arrays as given.

  Example:

    >>> source = ext.ArraySource({'x': np.arange(6.0).reshape(3, 2), 'y': np.array([0, 1, 1])})
    >>> len(source)
    3
    >>> source[2]['x']
    array([4., 5.])
  """

  def __init__(self, arrays: Mapping[str, npt.ArrayLike]):
    """Takes the arrays without a copy.

    Args:
      arrays: a dictionary, possibly nested, of arrays with the same leading dimension.

    Raises:
      ValueError: the leading dimensions differ.
    """
    self.arrays = tf.nest.map_structure(np.asarray, dict(arrays))
    lengths = {array.shape[0] if array.ndim else -1 for array in tf.nest.flatten(self.arrays)}
    if len(lengths) != 1 or -1 in lengths:
      shapes = tf.nest.map_structure(lambda array: array.shape, self.arrays)
      raise ValueError(f'arrays: need one leading dimension, have shapes {shapes}.')
    self._length: int = lengths.pop()
    self._num_left_out = 0

  def __len__(self) -> int:
    return self._length

  @property
  def bytes_per_example(self) -> int:
    """The mean size of an example's arrays."""
    return sum(array.nbytes for array in tf.nest.flatten(self.arrays)) // max(1, self._length)

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    return [tf.nest.map_structure(operator.itemgetter(index), self.arrays) for index in indices]

  def balance(self) -> list[json_values.JsonObject]:
    """See base class; of `ext.cached_source`, examples that could not be read are left out."""
    found = record_report.Balance(type(self).__name__, 'examples', len(self) + self._num_left_out, len(self))
    found.left_out['cannot be read'] = self._num_left_out
    return [found.values()]

  def identity(self) -> data_identity.Identity:
    return {**super().identity(), **data_identity.of_arrays(self.arrays)}

  def gatherer(self) -> Callable[[tf.Tensor], Mapping[str, tf.Tensor]]:
    """Returns a function from int64 indices of shape [...] to values of shape [..., features], for use in a graph."""
    with tf.device('CPU:0'):
      tensors = tf.nest.map_structure(tf.constant, self.arrays)
    gather = lambda indices: tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), tensors)
    return tf.autograph.experimental.do_not_convert(gather)


class TfdsSource(Source):
  """A split of a TFDS data set, read through `tfds.data_source`; the first use prepares it as ArrayRecord files.

  Example:

    >>> import tempfile
    >>> import tensorflow_datasets as tfds
    >>> folder, x = tempfile.mkdtemp(), np.arange(10) ** 2
    >>> _ = tfds.dataset_builders.store_as_tfds_dataset(
    ...   name='squares',
    ...   version='1.0.0',
    ...   features=tfds.features.FeaturesDict({'x': np.int64}),
    ...   split_datasets={'train': tf.data.Dataset.from_tensor_slices({'x': x})},
    ...   data_dir=folder,
    ...   file_format='array_record',
    ... )
    Downloading and preparing dataset ...
    >>> source = ext.TfdsSource('squares', 'train[:50%]', folder)
    >>> len(source), int(source[0]['x']) in x
    (5, True)
  """

  def __init__(self, name: str, split: str, data_dir: str = '', decoders: Mapping[str, object] | None = None):
    """Opens the split, and prepares the data set if it is not prepared yet.

    Args:
      name: for `tfds.builder`: 'name', 'name/config:1.0.0'.
      split: for TFDS: 'train', 'train[:90%]'.
      data_dir: the folder of prepared data sets; if empty, TFDS's own default.
      decoders: for `tfds.data_source`, such as `{'image': tfds.decode.SkipDecoding()}`.

    Raises:
      UserError: there is no such data set or split, or it is prepared in a file format without random access.
    """
    self._data_source = open_tfds_source(name, split, data_dir, decoders)
    self._name = f'{name}, split {split}'
    self._split = split

  def __len__(self) -> int:
    return len(self._data_source)

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    return list(self._data_source.__getitems__([int(index) for index in indices]))

  def describe(self, index: int) -> str:
    left = index
    for part in tfds_files(self._data_source):
      if left < part.take:
        return f'example {index} of {self._name} ({part.filename}, record {part.skip + left})'
      left -= part.take
    return f'example {index} of {self._name}'

  def identity(self) -> data_identity.Identity:
    files = [os.fspath(part.filename) for part in tfds_files(self._data_source)]
    return {
      **super().identity(),
      'tfds': self._data_source.dataset_info.full_name,
      'split': str(self._split),
      **data_identity.of_files(files),
    }


class RecordFiles:
  """The records of ArrayRecord files, one file after the other."""

  def __init__(self, counts: Sequence[tuple[str, int]]):
    """Takes (path, number of records) of each file; it is opened when it is read."""
    from array_record.python import array_record_data_source  # pylint: disable=g-import-not-at-top

    self.counts = list(counts)
    self._records = array_record_data_source.ArrayRecordDataSource(
      [f'{file}[0:{count}]' for file, count in self.counts]
    )

  def __len__(self) -> int:
    return len(self._records)

  def read(self, indices: Sequence[int]) -> list[bytes]:
    """The records of these numbers."""
    return list(self._records.__getitems__([int(index) for index in indices]))

  def place(self, index: int) -> str:
    """The place of a record: `FILE, record 3`."""
    left = index
    for file, count in self.counts:
      if left < count:
        return f'{file}, record {left}'
      left -= count
    return f'record {index}'


class ArrayRecordSource(Source):
  """The records of ArrayRecord files, one file after the other, each turned into an example by `parse`.

  `describe` names the file of an example, and the record in it.

  Example:

    >>> import os, tempfile
    >>> from array_record.python import array_record_module
    >>> path = os.path.join(tempfile.mkdtemp(), 'words.array_record')
    >>> writer = array_record_module.ArrayRecordWriter(path, 'group_size:1')
    >>> for word in (b'one', b'three'):
    ...   writer.write(word)
    >>> writer.close()
    >>> source = ext.ArrayRecordSource(path, lambda record: {'length': np.int64(len(record))})
    >>> [int(example['length']) for example in source.fetch([1, 0])]
    [5, 3]
  """

  def __init__(self, paths: str | Sequence[str], parse: Callable[[bytes], collators.Example]):
    """Opens the files.

    Args:
      paths: patterns, as a list or separated by commas: `input_path` of a data configuration. Files are in the order of
        the patterns, and sorted by name within one.
      parse: a function from a record to an example.

    Raises:
      UserError: a pattern matches no file, or a file is not a complete ArrayRecord file.
    """
    from array_record.python import array_record_module  # pylint: disable=g-import-not-at-top

    patterns = [part.strip() for part in paths.split(',')] if isinstance(paths, str) else list(paths)
    files: list[str] = []
    for pattern in patterns:
      matches = input_files.matching_files(pattern)
      if not matches:
        raise errors.UserError(f'input_path: no file matches {pattern!r}')
      files += matches

    def count_records(file):
      try:
        reader = array_record_module.ArrayRecordReader(file)
        try:
          return reader.num_records()
        finally:
          reader.close()
      except Exception as error:  # A RuntimeError, by now.
        raise errors.UserError(
          f'input_path: {file} is damaged, or no ArrayRecord file: {bad_examples.reason_of_file(error)}'
        ) from error

    with futures.ThreadPoolExecutor(16) as pool:
      self._open(list(zip(files, pool.map(count_records, files))), parse)

  def _open(self, counts: Sequence[tuple[str, int]], parse: Callable[[bytes], collators.Example]) -> None:
    """Takes (path, number of records) of each file."""
    self._files = RecordFiles(counts)
    self._parse = parse

  def __len__(self) -> int:
    return len(self._files)

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    return [self._parse(record) for record in self._files.read(indices)]

  def describe(self, index: int) -> str:
    return f'example {index} ({self._files.place(index)})'

  def identity(self) -> data_identity.Identity:
    counts = self._files.counts
    return {
      **super().identity(),
      **data_identity.of_files([file for file, _ in counts]),
      'records_of_files': data_identity.digest([str(count) for _, count in counts]),
    }


class HuggingFaceSource(Source):
  """A Hugging Face data set (Arrow); requires the extra `huggingface`.

  An example is a dictionary of the columns, with values in the format of the data set: lists and numbers by default,
  arrays after `dataset.with_format('numpy')`.

  Example:

    >>> import datasets
    >>> dataset = datasets.Dataset.from_dict({'x': [1.0, 2.0, 4.0], 'y': [0, 1, 1]})
    >>> source = ext.HuggingFaceSource(dataset)
    >>> len(source), source[2]
    (3, {'x': 4.0, 'y': 1})
  """

  def __init__(self, dataset: Any, split: str | None = None, **load_options: object):
    """Opens the data set.

    Args:
      dataset: a `datasets.Dataset`, or the path for `datasets.load_dataset`.
      split: for `load_dataset`.
      **load_options: further arguments for `load_dataset`.

    Raises:
      UserError: a path is given and the package `datasets` is not installed.
    """
    if isinstance(dataset, str):
      try:
        import datasets  # pylint: disable=g-import-not-at-top
      except ImportError as error:
        raise errors.UserError(
          f'{dataset}: a Hugging Face data set needs the package datasets; pip install official-ext[huggingface]'
        ) from error
      name = dataset
      dataset = datasets.load_dataset(dataset, split=split, **load_options)
    else:
      name = getattr(dataset, 'builder_name', None) or type(dataset).__name__
      split = getattr(dataset, 'split', None)
    self._name = f'{name}, split {split}' if split else name
    self._dataset = dataset

  def __len__(self) -> int:
    return len(self._dataset)

  def fetch(self, indices: Sequence[int]) -> list[collators.Example]:
    columns: dict[str, Any] = self._dataset[[int(index) for index in indices]]
    return [dict(zip(columns, row)) for row in zip(*columns.values())]

  def describe(self, index: int) -> str:
    files = self._files()
    return f'example {index} of {self._name}' + (f' ({", ".join(files)})' if len(files) == 1 else '')

  def identity(self) -> data_identity.Identity:
    columns = list(getattr(self._dataset, 'column_names', None) or ())
    return {
      **super().identity(),
      'dataset': self._name,
      'version': str(getattr(self._dataset, 'version', None)),
      'columns': columns,
      **data_identity.of_files(self._files()),
    }

  def _files(self) -> list[str]:
    return [file['filename'] for file in getattr(self._dataset, 'cache_files', None) or ()]


def cached(source: Source, block_size: int = 1024, on_bad_example: str = 'error') -> ArraySource:
  """Reads a whole source into memory, once.

  Args:
    source: examples of one structure and shape.
    block_size: the number of examples to read at a time.
    on_bad_example: 'skip' skips examples that cannot be read, with a warning: the numbers of later ones change.

  Returns:
    The same examples under the same numbers.

  Raises:
    ValueError: the source is empty.
    BadExampleError: an example cannot be read, or differs from the others in structure or shapes.

  Example:

    >>> class Slow(ext.Source):
    ...   def __len__(self):
    ...     return 1000
    ...
    ...   def fetch(self, indices):
    ...     return [{'x': np.float32(i)} for i in indices]
    >>> source = ext.cached_source(Slow())
    >>> source.arrays['x'].shape, float(source[7]['x'])
    ((1000,), 7.0)
  """
  if not len(source):
    raise ValueError('source: there are no examples to cache.')
  starts = range(0, len(source), block_size)
  blocks = [_stacked(source, range(start, min(start + block_size, len(source))), on_bad_example) for start in starts]
  kept = [block for block in blocks if block is not None]
  if not kept:
    raise bad_examples.BadExampleError(f'source: none of {len(source)} examples can be read; the log names the first')
  found = ArraySource(tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *kept))
  found._num_left_out = len(source) - len(found)  # pylint: disable=protected-access
  return found


def _stacked(source: Source, indices: Sequence[int], on_bad_example: str) -> Mapping[str, object] | None:
  """Reads and stacks the examples of these numbers; None if all are skipped."""
  try:
    return collators.stack_examples(source.fetch(indices))
  except Exception:  # pylint: disable=broad-except  # One of them is bad: which?
    examples: list[collators.Example] = []
    for index in indices:
      try:
        found = source.fetch([index])
        collators.stack_examples([*examples[:1], *found])
      except Exception as error:  # pylint: disable=broad-except
        message = f'{source.describe(index)} cannot be read: {bad_examples.one_line(error)}'
        if on_bad_example != 'skip':
          raise bad_examples.BadExampleError(f'{message}; repair or replace it') from error
        logging.warning('skipped: %s', message)
      else:
        examples += found
  return collators.stack_examples(examples) if examples else None


class PreparedRows(ArrayRecordSource):
  """The examples of a folder of `official-ext prepare`: dictionaries of numbers, texts, bytes and lists.

  Examples of images have `image`, the bytes of the file, and `label`, its number in `labels`.

  Attributes:
    labels: the names of the classes, by number; [] without classes.

  Example:

    >>> import os, tempfile
    >>> from official_ext.cli import main
    >>> folder = tempfile.mkdtemp()
    >>> notes, rows = os.path.join(folder, 'notes.jsonl'), os.path.join(folder, 'rows')
    >>> with open(notes, 'w') as file:
    ...   print('{"text": "one"}', file=file)
    ...   print('{"text": "three"}', file=file)
    >>> main.main(['prepare', notes, rows])  # The command `official-ext prepare`.
    1 of 1 shards, 2 records...
    0
    >>> source = ext.PreparedRows(rows, lambda example: {'length': np.int64(len(example['text']))})
    >>> [int(example['length']) for example in source.fetch([0, 1])]
    [3, 5]
  """

  def __init__(self, input_path: Any, parse: Callable[[dict[str, Any]], collators.Example] | None = None):
    """Opens the folder.

    Args:
      input_path: the folder: `input_path` of a data configuration.
      parse: a function of an example as it was written, which converts it; None: as it was written.

    Raises:
      UserError: there is no such folder, it is not prepared to its end, or it holds rows of tokens.
    """
    found = input_files.find_prepared(input_path)
    if found is None:
      found = input_files.read_prepared(os.path.expanduser(str(input_path)))
    if found.kind == 'texts':
      raise errors.UserError(
        f'input_path: {found.folder}: holds rows of tokens, which ext.text_source reads; prepare it without --tokenizer'
      )
    decode = row_encoding.decode_example
    self._open(
      [(file, count) for file, count, _, _ in found.files],
      (lambda record: parse(decode(record))) if parse else decode,
    )
    self.labels = found.labels
    self._content = found.content
    self._balance = found.balance or [record_report.RecordReport(**found.report).balance(found.folder).values()]

  def balance(self) -> list[json_values.JsonObject]:
    """The accounts of the input of `official-ext prepare`."""
    return self._balance

  def identity(self) -> data_identity.Identity:
    """Distinguishes this source from others, also by its content: the checksums noted by `prepare`."""
    return {**super().identity(), 'content': self._content}
