"""Explains why a data configuration does not fit files that are sound: the field, and the contents of the files."""

from collections.abc import Callable
import dataclasses
import re

from official.modeling.hyperparams import base_config
import tensorflow as tf

_KEY = re.compile(r'(?:Key|Feature): (\S+?)\.? ')
ErrorOf = Callable[[base_config.Config], BaseException | None]
_NOT_LENGTHS = ('batch', 'buffer', 'cycle', 'seed', 'num_', 'block')


def explain(
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
  features = _features(records[0])
  if key is not None and features and key[1] not in features:
    field = next((name for name, value in vars_of(data) if value == key[1]), None)
    held = ', '.join(sorted(features))
    return f'{"." + field if field else ""}: no record of {file} has the feature {key[1]}; they have {held}'
  feature = key[1] if key is not None else ''
  length = features.get(feature, 0)
  for name, value in vars_of(data) if length else ():
    may_be_meant = type(value) is int and value != length and not any(word in name for word in _NOT_LENGTHS)
    if may_be_meant and error_of(data.replace(**{name: length})) is None:
      return f'.{name}: is {value}, and in {file} {feature} has {length} values; set it to {length}'
  return f': no record of {file} fits this configuration: {reason}'


def of_format(file: str, reason: str, data: base_config.Config, error_of: ErrorOf) -> str:
  """Explains that images of a file are not JPEG, if `decode_jpeg_only` is set and all can be read without it.

  Args:
    file: the file that was read.
    reason: TensorFlow's message about one of its records.
    data: the data configuration.
    error_of: see `explain`.

  Returns:
    The message, as that of `explain`; '' if there is another reason.
  """
  if 'JPEG' not in reason or not getattr(data, 'decode_jpeg_only', False):
    return ''
  if error_of(data.replace(decode_jpeg_only=False)) is not None:
    return ''
  return f'.decode_jpeg_only: is true, and {file} holds images that are not JPEG; set it to false'


def vars_of(data: base_config.Config) -> list[tuple[str, object]]:
  """(name, value) of the fields of a data configuration, those that mean a length first."""
  names = [field.name for field in dataclasses.fields(data)] if dataclasses.is_dataclass(data) else []
  return [(name, getattr(data, name)) for name in sorted(names, key=lambda name: 'length' not in name)]


def _features(record: bytes) -> dict:
  """The number of values of each feature of a tf.Example; {} if the record is not one."""
  try:
    features = tf.train.Example.FromString(record).features.feature
  except Exception:  # pylint: disable=broad-except  # protobuf's DecodeError, without an import of protobuf.
    return {}
  return {
    name: max(len(getattr(feature, kind).value) for kind in ('int64_list', 'float_list', 'bytes_list'))
    for name, feature in features.items()
  }
