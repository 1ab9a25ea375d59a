"""Runs in a folder of TensorBoard's event files: scalars and hyperparameters. No TensorFlow.

A folder with event files is a run. Folders such as `train` and `validation` are parts of the run above them. So is the
folder with a time as its name that PyTorch's `add_hparams` makes.
"""

from collections.abc import Callable, Iterator
import math
import os
import re
import struct
from typing import Any

from official_ext.base import json_types
from official_ext.operations.imports import logged_values
from official_ext.operations.imports import record_logs
from official_ext.operations.imports import source_runs

_MARK = '.tfevents.'
_PARTS = (*logged_values.TRAIN_PARTS, *logged_values.EVAL_PARTS)
_HPARAMS_FOLDER = re.compile(r'\d{9,11}\.\d+')
_HPARAMS, _SCALARS = 'hparams', ('', 'scalars')
_FLOAT = 1  # tf.float32, as TensorFlow 2 writes scalars.
_FAILURE, _SUCCESS = 2, 1  # Of hparams' api.proto: Status.


def find(source: str) -> Iterator[source_runs.SourceRun]:
  """The runs in a folder and in those below it, by path.

  Args:
    source: the absolute path of the folder.
  """
  files: dict[str, list[str]] = {}
  for folder, names in source_runs.walk(source):
    found = [name for name in names if _MARK in name]
    if found:
      files[folder] = [os.path.join(folder, name) for name in found]
  runs: dict[str, list[tuple[str, str]]] = {}  # Of each run the prefix of the names in a file, and the file.
  for folder, paths in files.items():
    parent, name = os.path.split(folder)
    if name in _PARTS:
      runs.setdefault(parent, []).extend((f'{name}/', path) for path in paths)
    elif _HPARAMS_FOLDER.fullmatch(name) and parent in files:
      runs.setdefault(parent, []).extend(('', path) for path in paths)
    else:
      runs.setdefault(folder, []).extend(('', path) for path in paths)
  for folder in sorted(runs):
    name = os.path.basename(folder) if len(folder) <= len(source) else os.path.relpath(folder, source)
    stamp = source_runs.stamp_of([path for _, path in runs[folder]])
    yield source_runs.SourceRun('tensorboard', folder, stamp, _reader(name, runs[folder]))


def _reader(name: str, files: list[tuple[str, str]]) -> Callable[[], source_runs.Content]:
  return lambda: _Log(files).read(name)


class _Log:
  """Reads the files of a run."""

  def __init__(self, files: list[tuple[str, str]]):
    self._files = files
    self._values = logged_values.LoggedValues()
    self._config: json_types.JsonObject = {}
    self._status = 0
    self._plugins: dict[str, str] = {}  # Of each tag: TensorBoard's writers may name it once.
    self._num_events = 0

  def read(self, name: str) -> source_runs.Content:
    """The content of the run.

    Raises:
      UnreadableRunError: no file has events, or none has values before its damage.
    """
    damage = []
    for prefix, path in self._files:
      try:
        self._read_file(prefix, path)
      except (record_logs.DamagedError, OSError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        damage.append(f'{path}: {reason}')
    if not self._num_events or (damage and not len(self._values)):
      raise source_runs.UnreadableRunError(damage[0] if damage else f'{self._files[0][1]}: has no events')
    return source_runs.Content(
      name,
      self._values,
      config=self._config,
      status='failed' if self._status == _FAILURE else 'finished',
      error='the session of its hyperparameters has failed' if self._status == _FAILURE else '',
      is_end_known=self._status in (_FAILURE, _SUCCESS),
      damage=tuple(f'{line}; only values before it are imported' for line in damage),
    )

  def _read_file(self, prefix: str, path: str) -> None:
    from google.protobuf import message  # pylint: disable=g-import-not-at-top
    from tensorboard.compat.proto import event_pb2  # pylint: disable=g-import-not-at-top

    for record in record_logs.tf_records(path):
      try:
        event = event_pb2.Event.FromString(record)
      except message.DecodeError:
        raise record_logs.DamagedError('has a record that is not an event of TensorBoard') from None
      self._num_events += 1
      for value in event.summary.value:
        self._add(prefix, path, event, value)

  def _add(self, prefix: str, path: str, event: Any, value: Any) -> None:
    tag = prefix + value.tag
    if value.HasField('metadata') and value.metadata.plugin_data.plugin_name:
      self._plugins[tag] = value.metadata.plugin_data.plugin_name
    plugin = self._plugins.get(tag, '')
    if plugin == _HPARAMS:
      self._add_hparams(value.metadata.plugin_data.content)
      return
    number = value.simple_value if value.HasField('simple_value') else None
    if number is None and value.HasField('tensor') and plugin in _SCALARS:
      number = _scalar(value.tensor)
    if number is not None:
      self._values.replace(tag, event.step, event.wall_time, number, path)

  def _add_hparams(self, content: bytes) -> None:
    from google.protobuf import message  # pylint: disable=g-import-not-at-top
    from tensorboard.plugins.hparams import plugin_data_pb2  # pylint: disable=g-import-not-at-top

    try:
      data = plugin_data_pb2.HParamsPluginData.FromString(content)
    except message.DecodeError:  # Of a later version.
      return
    for name, value in data.session_start_info.hparams.items():
      kind = value.WhichOneof('kind')
      if kind in ('number_value', 'string_value', 'bool_value'):
        found = getattr(value, kind)
        is_whole = kind == 'number_value' and math.isfinite(found) and found == int(found) and abs(found) < 2**53
        self._config[name] = int(found) if is_whole else found
    if data.WhichOneof('data') == 'session_end_info':
      self._status = data.session_end_info.status


def _scalar(tensor: Any) -> float | None:
  """The number in a tensor of one element; None if it has another form."""
  if any(dimension.size != 1 for dimension in tensor.tensor_shape.dim):
    return None
  if tensor.dtype == _FLOAT:  # The usual kind, at a tenth of the time.
    if len(tensor.float_val) == 1:
      return tensor.float_val[0]
    if len(tensor.tensor_content) == 4:
      return struct.unpack('<f', tensor.tensor_content)[0]
  from tensorboard.util import tensor_util  # pylint: disable=g-import-not-at-top

  try:
    array = tensor_util.make_ndarray(tensor)
    return float(array.reshape(())) if array.dtype.kind in 'fiub' else None
  except (TypeError, ValueError):
    return None
