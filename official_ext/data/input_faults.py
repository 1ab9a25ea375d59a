"""Finds the file and the record at fault, or the field of the configuration, after the input has failed.

TensorFlow's errors name none of them. Nothing here runs before an error, so that a good run pays nothing for it. The
first part explains why a data configuration does not fit sound files; the second searches the files.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import dataclasses
import errno
import functools
import os
import re
import tempfile
import time
from typing import Any

from official.modeling.hyperparams import base_config
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.files import paths
from official_ext.data import config_fields
from official_ext.data import input_files as input_files_lib
from official_ext.data import pipelines

_KEY = re.compile(r'(?:Key|Feature): (\S+?)\.? ')
ErrorOf = Callable[[base_config.Config], BaseException | None]
_NOT_LENGTHS = ('batch', 'buffer', 'cycle', 'seed', 'num_', 'block')


def explain_mismatch(
  file: str,
  records: list[bytes],
  reason: str,
  data: base_config.Config,
  error_of: ErrorOf,
) -> str:
  """Explains the mismatch, if no record of a file can be parsed.

  Args:
    file: the file that was read.
    records: records of the file.
    reason: TensorFlow's message about the first.
    data: the data configuration.
    error_of: returns the exception of the task's pipeline on that file with another data configuration; None if it
    works.

  Returns:
    The message, to follow the dotted path of the data configuration: `.field: MESSAGE`.
  """
  key = _KEY.search(f'{reason} ')
  features = _feature_lengths(records[0])
  if key is not None and features and key[1] not in features:
    field = next((name for name, value in fields_of(data) if value == key[1]), None)
    held = ', '.join(sorted(features))
    return f'{"." + field if field else ""}: no record of {file} has the feature {key[1]}; they have {held}'
  feature = key[1] if key is not None else ''
  length = features.get(feature, 0)
  for name, value in fields_of(data) if length else ():
    may_be_meant = type(value) is int and value != length and not any(word in name for word in _NOT_LENGTHS)
    if may_be_meant and error_of(data.replace(**{name: length})) is None:
      return f'.{name}: is {value}, and in {file} {feature} has {length} values; set it to {length}'
  return f': no record of {file} fits this configuration: {reason}'


def explain_format(file: str, reason: str, data: base_config.Config, error_of: ErrorOf) -> str:
  """Explains that images of a file are not JPEG, if `decode_jpeg_only` is set and all can be read without it.

  Args:
    file: the file that was read.
    reason: TensorFlow's message about one of its records.
    data: the data configuration.
    error_of: see `explain_mismatch`.

  Returns:
    The message, as `explain_mismatch` returns it; '' if there is another reason.
  """
  if 'JPEG' not in reason or not config_fields.of_data(data).decode_jpeg_only:
    return ''
  if error_of(data.replace(decode_jpeg_only=False)) is not None:
    return ''
  return f'.decode_jpeg_only: is true, and {file} holds images that are not JPEG; set it to false'


def fields_of(data: base_config.Config) -> list[tuple[str, object]]:
  """(name, value) of the fields of a data configuration, lengths first."""
  names = [field.name for field in dataclasses.fields(data)] if dataclasses.is_dataclass(data) else []
  return [(name, getattr(data, name)) for name in sorted(names, key=lambda name: 'length' not in name)]


def _feature_lengths(record: bytes) -> dict:
  """The number of values of each feature of a tf.Example; {} if the record is not one."""
  try:
    features = tf.train.Example.FromString(record).features.feature
  except Exception:  # pylint: disable=broad-except  # protobuf's DecodeError, without an import of protobuf.
    return {}
  return {
    name: max(len(getattr(feature, kind).value) for kind in ('int64_list', 'float_list', 'bytes_list'))
    for name, feature in features.items()
  }


MAX_SECONDS = 120.0  # After that time, the search for a broken record ends.

BuildInputs = Callable[[base_config.Config], Any]

_FROM_PIPELINE = ('IteratorGetNext', 'Error in user-defined function passed to')
_NOT_OF_DATA = (
  tf.errors.OutOfRangeError,
  tf.errors.CancelledError,
  tf.errors.AbortedError,
  tf.errors.UnavailableError,
  tf.errors.DeadlineExceededError,
  tf.errors.ResourceExhaustedError,
)
_OUT_OF_RANGE = (
  re.compile(r'Received a label value of (?P<value>-?\d+) which is outside the valid range of (?P<range>\[[^)]*\))'),
  re.compile(r'indices\[[^\]]*\] = (?P<value>-?\d+) is not in (?P<range>\[[^)]*\))'),
)


# How TensorFlow reports a file that it cannot open or read: `PATH; REASON`.
_UNREADABLE = re.compile(
  '; ('
  + '|'.join(
    os.strerror(number)
    for number in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)
  )
  + ')'
)


@dataclasses.dataclass(frozen=True)
class Fault:
  """A fault at a place in the input files.

  Attributes:
    file: the path of the file.
    record: the number of the record in the file, from 0; None: the file as a whole.
    reason: the error.
    misfit: the whole message, if the configuration is at fault, not the file.
  """

  file: str
  record: int | None
  reason: str
  misfit: str = ''

  def __str__(self) -> str:
    return f'{self.file}: {self.reason}' if self.record is None else f'{self.file}: record {self.record}: {self.reason}'


@dataclasses.dataclass(frozen=True)
class OutOfRange:
  """An integer in the input, a label or an index, that is out of range.

  Attributes:
    value: the integer.
    valid: the range, in words.
  """

  value: int
  valid: str


def out_of_range(error: BaseException | None) -> OutOfRange | None:
  """Parses a TensorFlow kernel's message about a label or an index out of range; None if it says something else."""
  for pattern in _OUT_OF_RANGE:
    match = pattern.search(str(error)) if isinstance(error, tf.errors.InvalidArgumentError) else None
    if match:
      return OutOfRange(int(match['value']), match['range'])
  return None


def is_input_error(error: BaseException) -> bool:
  """Whether an exception comes from a tf.data pipeline."""
  if isinstance(error, UnicodeDecodeError):  # The message holds the record, which is not text.
    return True
  if isinstance(error, _NOT_OF_DATA) or not isinstance(error, tf.errors.OpError):
    return False
  return isinstance(error, tf.errors.DataLossError) or any(words in str(error) for words in _FROM_PIPELINE)


def explain(
  error: BaseException, path: str, data: base_config.Config, build_inputs: BuildInputs, when: str = ''
) -> errors.UserError | None:
  """Turns the exception of a tf.data pipeline into an error that names file and record.

  Args:
    error: the exception.
    path: the dotted path of the data configuration.
    data: the data configuration.
    build_inputs: the task's, to search for a record that cannot be parsed.
    when: appended to the message.

  Returns:
    The error; None if the exception has nothing to do with data: then the caller must raise it unchanged.
  """
  if not is_input_error(error):
    return None
  text = str(error)
  named = named_example(error)
  if named:
    return errors.UserError(named + when)
  if 'Traceback (most recent call last)' in text:  # Python code has failed: its author needs the traceback.
    return None
  reason = reason_of(error)
  try:
    fault = find_fault(error, data, build_inputs)
  except (tf.errors.OpError, OSError):  # The search reads the files, and needs room for a temporary one.
    fault = None
  if fault is None:
    return errors.UserError(f'{path}: the input failed: {reason}{when}')
  if fault.misfit:
    return errors.UserError(f'{path}{fault.misfit}{when}')
  if config_fields.of_data(data).names_data:
    path = f'{path}.{_source_field(data)}'
  return errors.UserError(f'{path}: {fault}{when}; repair or replace the file, or leave it out')


@contextlib.contextmanager
def explained(path: str, data: base_config.Config, build_inputs: BuildInputs) -> Iterator[None]:
  """A context that reads an input; exceptions of its pipeline become errors that name file and record: see `explain`.

  Args:
    path: see `explain`.
    data: see `explain`.
    build_inputs: see `explain`.

  Raises:
    UserError: of the input.
  """
  try:
    yield
  except tf.errors.OpError as error:
    mistake = explain(error, path, data, build_inputs)
    if mistake is None:
      raise
    raise mistake from error


def named_example(error: BaseException) -> str:
  """The message of the `BadExampleError` that TensorFlow's error is about; '' if it is about none."""
  named = re.search(r'BadExampleError: (.*?)(?=\n|$)', str(error))
  return named[1] if named else ''


def reason_of(error: BaseException) -> str:
  """The essential part of one of TensorFlow's messages, in one line."""
  if isinstance(error, UnicodeDecodeError):
    return 'a record is not a tf.Example'
  text = re.split(r'\n(?:  .*\n)+(?! )', str(error))[-1]  # After the frames of the Python code that made the graph.
  text = re.sub(r'\[\[.*?\]\]|\{\{.*?\}\}|\[Op:.*', ' ', text, flags=re.DOTALL)
  text = re.split(r'transformation with iterator: \S+: ', text)[-1]
  text = re.split(r'\(most recent call last\):\s*<stack traces unavailable>', text)[-1]
  return ' '.join(text.split())[:200]


def check_not_empty(path: str, data: base_config.Config) -> None:
  """Refuses input files that are all empty: a pipeline that repeats them may search for an example forever.

  It reads at most one file that is not empty. The pipeline itself reports missing files.

  Raises:
    UserError: they are all empty.
  """
  files = input_files(data)
  try:
    empty = bool(files) and all(not paths.is_folder(file) and tf.io.gfile.stat(file).length == 0 for file in files)
  except (tf.errors.OpError, OSError):
    return
  if empty:
    raise errors.UserError(f'{path}.input_path: there are no examples: {_count(len(files), "file")}, all empty')


def no_examples(path: str, data: base_config.Config, needed: int = 0) -> errors.UserError:
  """The error for an input that has ended before its first batch.

  Args:
    path: the dotted path of the data configuration.
    data: the data configuration.
    needed: the number of examples that one step needs; 0 if any number is enough.
  """
  files = input_files(data)
  message = f'{path}: there are no examples'
  if files:
    records = sum(count_records(file, at_most=1000) for file in files[:1000])
    found = f'{_count(len(files), "file")} with {_count(records, "record")}'
    message = f'{path}.{_source_field(data)}: there are no examples: {found}'
    if needed:
      message = f'{message}; a step takes {needed}'
  return errors.UserError(message)


# Files.


def input_files(data: base_config.Config) -> list[str]:
  """The files that a data configuration names; [] if it names none, or they cannot be listed."""
  fields = config_fields.of_data(data)
  try:
    if fields.input_path:
      return [
        file
        for pattern in input_files_lib.input_patterns(fields.input_path)
        for file in input_files_lib.matching_files(pattern) or [pattern]
      ]
    if fields.tfds_name:
      return _tfds_files(data)
  except Exception:  # pylint: disable=broad-except  # Another error is being reported.
    pass
  return []


def _source_field(data: base_config.Config) -> str:
  return 'input_path' if config_fields.of_data(data).input_path else 'tfds_name'


def _tfds_files(data: base_config.Config) -> list[str]:
  import tensorflow_datasets as tfds  # pylint: disable=g-import-not-at-top

  builder = tfds.builder(data.tfds_name, data_dir=data.tfds_data_dir or None)
  return [os.fspath(file) for file in builder.info.splits[data.tfds_split].filepaths]


def _records(file: str) -> tf.data.Dataset:
  return tf.data.TFRecordDataset(file, compression_type=_compression(file))


def _compression(file: str) -> str:
  """How a file is compressed, in TensorFlow's words, by its first bytes; '' if it is not."""
  with tf.io.gfile.GFile(file, 'rb') as f:
    start = f.read(12)
  if start[:2] == b'\x1f\x8b':
    return 'GZIP'
  # https://www.rfc-editor.org/rfc/rfc1950: deflate, and a checksum of the header. The length of a record may begin so
  # too, but the last bytes of this number of 64 bits are zero.
  is_zlib = len(start) > 1 and start[0] == 0x78 and (256 * start[0] + start[1]) % 31 == 0 and any(start[4:8])
  return 'ZLIB' if is_zlib else ''


def _wrong_compression(file: str, is_expected: bool) -> Fault | None:
  """A file that is compressed although the pipeline does not expect it, or the reverse."""
  try:
    found = _compression(file)
  except (tf.errors.OpError, OSError):
    return None
  if bool(found) == is_expected:
    return None
  reason = 'is not compressed, and the pipeline expects that' if is_expected else f'is compressed ({found})'
  return Fault(file, None, reason if is_expected else f'{reason}, and the pipeline reads it as it is')


def count_records(file: str, at_most: int) -> int:
  """The number of records in a TFRecord file, as far as it can be read."""
  count = 0
  try:
    for _ in _records(file).take(at_most):
      count += 1
  except (tf.errors.OpError, OSError):
    pass
  return count


def _count(number: int, noun: str) -> str:
  return f'{number} {noun}{"" if number == 1 else "s"}'


# The search for a record.


def find_fault(error: BaseException, data: base_config.Config, build_inputs: BuildInputs) -> Fault | None:
  """Reads the input files again, to find the cause of an error.

  It reads them first as TFRecord files, with their checksums; then record by record as tf.Examples; then through the
  pipeline itself, halving the file that fails. It takes `MAX_SECONDS` at most, plus the time for one file.

  Args:
    error: the exception of the pipeline.
    data: the data configuration.
    build_inputs: the task's.

  Returns:
    The first fault; None if it finds none.
  """
  deadline = time.monotonic() + MAX_SECONDS
  named = _named_unreadable(error)
  if named is not None:
    return named
  files = input_files(data)
  if isinstance(error, tf.errors.DataLossError):
    is_expected = 'inflate' in str(error)
    return _first(_broken_record, files, deadline) or _first(
      lambda file: _wrong_compression(file, is_expected), files, deadline
    )
  if isinstance(error, UnicodeDecodeError):
    return _first(_no_example, files, deadline)
  if isinstance(error, tf.errors.InvalidArgumentError):
    return _first(lambda file: _unparsable(file, data, build_inputs), files, deadline)
  if isinstance(error, (tf.errors.NotFoundError, tf.errors.PermissionDeniedError)):
    return _first(_unreadable, files, deadline)
  return None


def _first(check: Callable[[str], Fault | None], files: Iterable[str], deadline: float) -> Fault | None:
  for file in files:
    if time.monotonic() > deadline:
      return None
    fault = check(file)
    if fault is not None:
      return fault
  return None


def _named_unreadable(error: BaseException) -> Fault | None:
  """The unreadable file that an error names: a file that was deleted no longer matches its pattern."""
  found = _UNREADABLE.search(str(error))
  if found is None:
    return None
  before = str(error)[: found.start()].rpartition('\n')[2]
  file = re.split(r': |\}\} ', before)[-1].strip()
  return Fault(file, None, found[1]) if file else None


def unmatched(data: base_config.Config) -> str | None:
  """The first pattern of `input_path` that no file matches; None if all match."""
  for pattern in input_files_lib.input_patterns(config_fields.of_data(data).input_path):
    try:
      if not input_files_lib.matching_files(pattern):
        return pattern
    except (tf.errors.OpError, OSError):
      pass
  return None


def _unreadable(file: str) -> Fault | None:
  try:
    with tf.io.gfile.GFile(file, 'rb') as f:
      f.read(1)
  except (tf.errors.OpError, OSError) as error:
    return Fault(file, None, reason_of(error).replace(f'{file}; ', ''))
  return None


def _broken_record(file: str) -> Fault | None:
  """The first record of a TFRecord file that cannot be read."""
  number = 0
  try:
    _records(file).reduce(tf.constant(0, tf.int64), lambda count, _: count + 1)  # Faster, but loses the count.
    return None
  except (tf.errors.OpError, OSError):
    pass
  try:
    for _ in _records(file):
      number += 1
  except (tf.errors.OpError, OSError) as error:
    return Fault(file, number, reason_of(error))
  return None


def _no_example(file: str) -> Fault | None:
  """The first record of a TFRecord file that is not a tf.Example."""
  number = 0
  try:
    for record in _records(file):
      tf.train.Example.FromString(record.numpy())
      number += 1
  except (tf.errors.OpError, OSError):
    return None
  except Exception:  # pylint: disable=broad-except  # protobuf's DecodeError, without an import of protobuf.
    return Fault(file, number, 'is not a tf.Example')
  return None


def _unparsable(file: str, data: base_config.Config, build_inputs: BuildInputs) -> Fault | None:
  """Finds the record of a file on which the pipeline fails, by halving."""
  if pipeline_error(file, data, build_inputs) is None:
    return None
  records = [record.numpy() for record in _records(file)]
  with tempfile.TemporaryDirectory(prefix='diagnosis-') as folder:
    part = os.path.join(folder, 'part.tfrecord')

    def error_of(some: list[bytes]) -> BaseException | None:
      with tf.io.TFRecordWriter(part) as writer:
        for record in some:
          writer.write(record)
      return pipeline_error(part, data, build_inputs)

    start, end = 0, len(records)  # The first faulty record is in [start, end).
    while end - start > 1:
      middle = (start + end) // 2
      start, end = (start, middle) if error_of(records[start:middle]) is not None else (middle, end)
    error = error_of(records[start:end])
    if error is None:
      return None
    misfits = (
      not start
      and len(records) > 1
      and all(  # If the first, the last and one in the middle fail, all do.
        error_of([records[number]]) is not None for number in (len(records) - 1, len(records) // 2)
      )
    )
    error_with = functools.partial(pipeline_error, file, build_inputs=build_inputs)
    misfit = explain_format(file, reason_of(error), data, error_with)
    if misfits and not misfit:
      misfit = explain_mismatch(file, records, reason_of(error), data, error_with)
  return Fault(file, start, f'cannot be parsed: {reason_of(error)}', misfit)


def pipeline_error(file: str, data: base_config.Config, build_inputs: BuildInputs) -> BaseException | None:
  """Reads one file through the task's pipeline, in order, one example at a time; returns its exception, or None."""
  once = {'input_path': file, 'is_training': False, 'global_batch_size': 1, 'drop_remainder': False, 'cache': False}
  try:
    dataset = build_inputs(data.replace(**config_fields.known(data, once)))
    for part in tf.nest.flatten(dataset):
      pipelines.without_autotune(part).reduce(tf.constant(0, tf.int64), lambda count, *_: count + 1)
  except (tf.errors.OpError, UnicodeDecodeError) as error:
    return error
  except Exception:  # pylint: disable=broad-except  # The task cannot read it in that way.
    pass
  return None


def find_label(data: base_config.Config, value: int) -> Fault | None:
  """The first record whose label has a certain value: a tf.Example with a feature that is named like *label*."""
  deadline = time.monotonic() + MAX_SECONDS

  def check(file):
    for number, record in enumerate(_records(file)):
      for name, feature in tf.train.Example.FromString(record.numpy()).features.feature.items():
        if 'label' in name and value in feature.int64_list.value:
          return Fault(file, number, f'{name} is {value}')
    return None

  try:
    return _first(check, input_files(data), deadline)
  except Exception:  # pylint: disable=broad-except  # The files are not TFRecord files of tf.Examples.
    return None
