"""Where examples come from: things with a length and random access."""

import abc
import operator
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np
import tensorflow as tf

from official_ext.core import errors
from official_ext.data import collators
from official_ext.data import tfds_preparation


class Source(abc.ABC):
  """Examples by number. Reading must be safe from several threads."""

  @abc.abstractmethod
  def __len__(self) -> int:
    """The number of examples."""

  @abc.abstractmethod
  def fetch(self, indices: Sequence[int]) -> List[collators.Example]:
    """The examples of these numbers.

    Args:
      indices: numbers in [0, len(self)), in any order, possibly repeated.

    Returns:
      One dictionary for each number, in the order of `indices`.
    """


class ArraySource(Source):
  """Arrays in memory: example i is row i of each. Batches are gathered in the graph, without Python."""

  def __init__(self, arrays: Mapping[str, Any]):
    """Takes the arrays as they are, without a copy.

    Args:
      arrays: a dictionary, possibly nested, of arrays with the same leading dimension.

    Raises:
      ValueError: the leading dimensions differ.
    """
    self._arrays = tf.nest.map_structure(np.asarray, dict(arrays))
    lengths = {array.shape[0] if array.ndim else -1 for array in tf.nest.flatten(self._arrays)}
    if len(lengths) != 1 or -1 in lengths:
      shapes = tf.nest.map_structure(lambda array: array.shape, self._arrays)
      raise ValueError(f'arrays: need one leading dimension, have shapes {shapes}.')
    self._length: int = lengths.pop()

  def __len__(self) -> int:
    return self._length

  @property
  def arrays(self) -> Mapping[str, Any]:
    """The arrays as given."""
    return self._arrays

  @property
  def bytes_per_example(self) -> int:
    """The mean size of an example."""
    return sum(array.nbytes for array in tf.nest.flatten(self._arrays)) // max(1, self._length)

  def fetch(self, indices: Sequence[int]) -> List[collators.Example]:
    return [tf.nest.map_structure(operator.itemgetter(index), self._arrays) for index in indices]

  def gatherer(self) -> Callable[[tf.Tensor], Mapping[str, tf.Tensor]]:
    """A function from int64 indices of shape [...] to values of shape [..., features], for use in a graph."""
    with tf.device('CPU:0'):
      tensors = tf.nest.map_structure(tf.constant, self._arrays)
    return lambda indices: tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), tensors)


class TfdsSource(Source):
  """A split of a TFDS builder, read through `tfds.data_source`. It is prepared at first use, as ArrayRecord files."""

  def __init__(self, name: str, split: str, data_dir: str = '', decoders: Optional[Mapping[str, Any]] = None):
    """Opens the split, and prepares the data set if it is not there yet.

    Args:
      name: as `tfds.builder` takes it: 'name', 'name/config:1.0.0'.
      split: as TFDS takes it: 'train', 'train[:90%]'.
      data_dir: where prepared data sets are, TFDS's own default if empty.
      decoders: what `tfds.data_source` takes, such as `{'image': tfds.decode.SkipDecoding()}`.

    Raises:
      UserError: no such data set or split, or it is prepared in a file format without random access.
    """
    self._data_source = tfds_preparation.open_data_source(name, split, data_dir, decoders)

  def __len__(self) -> int:
    return len(self._data_source)

  def fetch(self, indices: Sequence[int]) -> List[collators.Example]:
    return list(self._data_source.__getitems__([int(index) for index in indices]))


class ArrayRecordSource(Source):
  """A list of ArrayRecord files."""

  def __init__(self, paths: Union[str, Sequence[str]], parse: Callable[[bytes], collators.Example]):
    """Opens the files.

    Args:
      paths: patterns, as a list or separated by commas: `input_path` of a data configuration. Files count in the order
        of the patterns, and by name within one.
      parse: from a record to an example.

    Raises:
      UserError: a pattern matches no file.
    """
    from array_record.python import array_record_data_source  # pylint: disable=g-import-not-at-top

    patterns = [part.strip() for part in paths.split(',')] if isinstance(paths, str) else list(paths)
    files: List[str] = []
    for pattern in patterns:
      matches = sorted(tf.io.gfile.glob(pattern)) if pattern else []
      if not matches:
        raise errors.UserError(f'input_path: no file matches {pattern!r}')
      files += matches
    self._records = array_record_data_source.ArrayRecordDataSource(files)
    self._parse = parse

  def __len__(self) -> int:
    return len(self._records)

  def fetch(self, indices: Sequence[int]) -> List[collators.Example]:
    return [self._parse(record) for record in self._records.__getitems__([int(index) for index in indices])]


class HuggingFaceSource(Source):
  """A Hugging Face data set (Arrow). Needs the extra `huggingface`."""

  def __init__(self, dataset: Any, split: Optional[str] = None, **load_options: Any):
    """Opens the data set.

    Args:
      dataset: a `datasets.Dataset`, or what `datasets.load_dataset` takes as path.
      split: as `load_dataset` takes it.
      **load_options: more arguments of `load_dataset`.

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
      dataset = datasets.load_dataset(dataset, split=split, **load_options)
    self._dataset = dataset

  def __len__(self) -> int:
    return len(self._dataset)

  def fetch(self, indices: Sequence[int]) -> List[collators.Example]:
    columns: Dict[str, Any] = self._dataset[[int(index) for index in indices]]
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def cached(source: Source, block_size: int = 1024) -> ArraySource:
  """Reads a source whole, once, into memory.

  Args:
    source: examples of one structure and shape.
    block_size: how many examples to read at a time.

  Returns:
    The same examples under the same numbers.

  Raises:
    ValueError: the source is empty.
  """
  if not len(source):
    raise ValueError('source: there are no examples to cache.')
  starts = range(0, len(source), block_size)
  blocks = [
      collators.stack_examples(source.fetch(range(start, min(start + block_size, len(source))))) for start in starts
  ]
  return ArraySource(tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *blocks))
