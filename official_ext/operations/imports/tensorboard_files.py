"""TensorBoard's event files of runs: scalars, hyperparameters and images.

A folder with event files is a run. Folders such as `train` and `validation` are parts of the run above them. So is the
folder that PyTorch's `add_hparams` names after a time.

The first part of a name says to which event of an events.jsonl a value belongs: `train/loss` is `loss` of an event
'train', `eval/loss` is `loss` of an event 'eval'.

A record of such a file is 8 bytes of length, 4 of its checksum, the data, 4 of their checksum. `ImageIndex` skips
numbers, and parses a value with an encoded PNG with TensorBoard's own message.
"""

import array
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import json
import math
import mmap
import os
import re
import struct
import threading
from typing import Any

import numpy as np

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import local_files
from official_ext.base.files import tf_records
from official_ext.operations.runs import run_folders

EVENT_KINDS = ('train', 'eval')
# The first parts of names, and of folders of TensorBoard, that stand for an event. `test/` stays in the name: a run may
# have both.
TRAIN_PARTS, EVAL_PARTS = ('train', 'training'), ('validation', 'val', 'valid', 'eval', 'evaluation')
_TEST_PART = 'test'
_OWN_KEYS = ('time', 'event', 'step')
_MAX_STEP = 2**53  # Readers of events.jsonl, JavaScript among them, take no larger ones.
_MAX_TIME = 1e11  # Seconds: a greater number is invalid, or counts milliseconds.
_CHUNK = 1 << 16  # Values that are Python objects at a time.


class _Part:
  """The values of one name in one file, in the order in which they were logged."""

  def __init__(self, begin: float):
    self.begin = begin
    self.steps, self.times, self.values = array.array('q'), array.array('d'), array.array('d')

  def pop(self) -> None:
    for column in (self.steps, self.times, self.values):
      column.pop()

  def columns(self) -> list[np.ndarray]:
    return [np.frombuffer(self.steps, np.int64), np.frombuffer(self.times), np.frombuffer(self.values)]


class _Series:
  """The values of one name, by file."""

  def __init__(self, event: int, name: str):
    self.event, self.name = event, name
    self.parts: dict[str, _Part] = {}
    self.has_steps = False  # Whether a step is not zero.
    self.num_added = 0
    self._columns: tuple[int, list[np.ndarray]] = -1, []  # As of so many values.

  def columns(self) -> list[np.ndarray]:
    """Steps, times and values that stand, by step. A value of an unknown time counts as logged before later files."""
    if self._columns[0] == self.num_added:
      return self._columns[1]
    found = [np.empty(0, np.int64), np.empty(0), np.empty(0)]
    for part in sorted(self.parts.values(), key=lambda part: part.begin):
      steps, times, _ = found
      stands = (steps < part.steps[0]) | (times >= part.begin)
      columns = [np.concatenate([old[stands], new]) for old, new in zip(found, part.columns())]
      order = np.argsort(columns[0], kind='stable')
      is_last = np.append(np.diff(columns[0][order]) > 0, True)
      found = [column[order][is_last] for column in columns]
    self._columns = self.num_added, found
    return found


class LoggedValues:
  """The values of a run. A value takes 24 bytes."""

  def __init__(self) -> None:
    self._series: dict[str, _Series] = {}
    self._names: set[tuple[int, str]] = set()

  def __len__(self) -> int:
    return sum(len(each.columns()[0]) for each in self._series.values())

  @property
  def num_superseded(self) -> int:
    """The number of values that do not stand."""
    return sum(each.num_added for each in self._series.values()) - len(self)

  def add(self, name: str, step: int, time: float, value: float, file: str, begin: float = -math.inf) -> None:
    """Adds a value.

    A value at an earlier step, or at the same, supersedes later ones of its file, and those that other files have from
    before this file began: a restarted run logs steps again. Values of files from the same time are kept.

    A writer that is given no steps writes only zeros; such values are counted.

    Args:
      name: the tag.
      step: values without a possible one are left out.
      time: in seconds since 1970; NaN if it is not known.
      value: any float.
      file: the path of the value's file.
      begin: the time of the file's first event, in seconds since 1970.
    """
    if not -_MAX_STEP < step < _MAX_STEP:
      return
    series = self._of(name)
    part = series.parts.get(file) or series.parts.setdefault(file, _Part(begin))
    steps = part.steps
    if step:
      series.has_steps = True
    elif steps and not series.has_steps:
      step = len(steps)
    while steps and steps[-1] >= step:
      part.pop()
    steps.append(step)
    part.times.append(time if 0 <= time < _MAX_TIME else math.nan)
    part.values.append(value)
    series.num_added += 1

  def _of(self, name: str) -> _Series:
    found = self._series.get(name)
    if found is None:
      event, short = _event_of_name(name)
      if (event, short) in self._names:  # Such as val/loss next to eval/loss.
        short = name
      while (event, short) in self._names:
        short += '_'
      self._names.add((event, short))
      found = self._series[name] = _Series(event, short)
    return found

  def ends(self) -> tuple[float, float] | None:
    """The first and the last time in seconds since 1970; None if no time is known."""
    times = [each.columns()[1] for each in self._series.values()]
    known = [found for found in (each[np.isfinite(each)] for each in times) if len(found)]
    if not known:
      return None
    return float(min(each.min() for each in known)), float(max(each.max() for each in known))

  def last_step(self) -> int:
    """The greatest step; 0 if there are no values."""
    return max((int(each.columns()[0][-1]) for each in self._series.values()), default=0)

  def events(self, time: float) -> Iterator[json_values.JsonObject]:
    """The events by step: one for all values of a kind at a step, with the time of the first.

    Args:
      time: of events before the first known time, in seconds since 1970.
    """
    series = list(self._series.values())
    if not series:
      return
    columns = [each.columns() for each in series]
    steps, times, values = map(np.concatenate, zip(*columns))
    lengths = [len(each[0]) for each in columns]
    numbers = np.repeat(np.arange(len(series)), lengths)
    kinds = np.array([each.event for each in series])[numbers]
    order = np.lexsort((numbers, kinds, steps))
    event: json_values.JsonObject | None = None
    key: tuple[int, int] | None = None
    for first in range(0, len(order), _CHUNK):
      part = order[first : first + _CHUNK]
      rows = (column[part].tolist() for column in (steps, kinds, numbers, times, values))
      for step, kind, number, moment, value in zip(*rows):
        time = time if math.isnan(moment) else moment
        if key != (step, kind):
          if event is not None:
            yield event
          key, event = (step, kind), {'time': round(time, 3), 'event': EVENT_KINDS[kind], 'step': step}
        assert event is not None
        event[series[number].name] = value
    if event is not None:
      yield event


def _event_of_name(name: str) -> tuple[int, str]:
  """The event of a value by its name, as a number in EVENTS, and its name there."""
  first, slash, rest = name.partition('/')
  event = int(first in (*EVAL_PARTS, _TEST_PART))
  short = rest if slash and rest and first in (*TRAIN_PARTS, *EVAL_PARTS) else name
  return event, f'{short}_' if short in _OWN_KEYS else short


def event_line(event: json_values.JsonMapping) -> bytes:
  """An event as a line of events.jsonl: strict JSON, in which a number that is not finite is a string."""
  return json.dumps(json_values.as_strict(event), allow_nan=False).encode() + b'\n'


_MARK = '.tfevents.'
_PARTS = (*TRAIN_PARTS, *EVAL_PARTS)
_HPARAMS_FOLDER = re.compile(r'\d{9,11}\.\d+')
_HPARAMS, _SCALARS = 'hparams', ('', 'scalars')
_FLOAT = 1  # tf.float32, as TensorFlow 2 writes scalars.
_FAILURE, _SUCCESS = 2, 1  # Of hparams' api.proto: Status.
_MAX_CHECKED = 1 << 16  # Bytes. The checksum of a longer record, which is an image or the like, takes too long.
_MAX_RECORD = 1 << 20  # A longer one is not of scalars, and left out.


class UnreadableRunError(Exception):
  """Nothing of a run can be read; the message is one line that names its file."""


class _DamagedError(Exception):
  """The rest of a file cannot be read; the message says where that begins."""


@dataclasses.dataclass(frozen=True)
class Content:
  """The content of a run.

  Attributes:
    name: for its folder: parts with slashes; any text.
    values: the logged values.
    config: its hyperparameters.
    status: 'finished' or 'failed'.
    error: the cause of its end; '' for success.
    is_end_known: whether the end is recorded.
    damage: lines about damaged files, whose values before the damage were read.
  """

  name: str
  values: LoggedValues
  config: json_values.JsonMapping = dataclasses.field(default_factory=dict)
  status: str = 'finished'
  error: str = ''
  is_end_known: bool = False
  damage: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class SourceRun:
  """A run that can be read.

  Attributes:
    source: the absolute path of its folder.
    stamp: another one if its files have changed.
    read: reads it. Raises UnreadableRunError.
  """

  source: str
  stamp: json_values.Json
  read: Callable[[], Content]


def find_source_runs(source: str) -> Iterator[SourceRun]:
  """The runs in a folder and in those below it, by path.

  Args:
    source: the absolute path of the folder.
  """
  files: dict[str, list[str]] = {}
  for folder, names in _walk(source):
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
    stamp = _stamp_of([path for _, path in runs[folder]])
    yield SourceRun(folder, stamp, _record_reader(name, runs[folder]))


def _walk(source: str) -> Iterator[tuple[str, list[str]]]:
  """The folders in a folder, and the names of the files in each. Runs of this library are left out, with their logs.

  Args:
    source: the absolute path of the folder; links in it are not followed.
  """
  for folder, folders, names in os.walk(source):
    if run_folders.EVENTS in names and run_folders.is_run(folder):
      folders.clear()
    else:
      folders.sort()
      yield folder, sorted(names)


def _stamp_of(files: Sequence[str]) -> json_values.Json:
  """The names, sizes and times of files."""
  found = []
  for path in files:
    try:
      state = os.stat(path)
    except OSError:  # Deleted meanwhile, or a broken link: reading reports it.
      continue
    found.append([os.path.basename(path), state.st_size, state.st_mtime_ns])
  return found


def _record_reader(name: str, files: list[tuple[str, str]]) -> Callable[[], Content]:
  return lambda: _Log(files).read(name)


class _Log:
  """Reads the files of a run."""

  def __init__(self, files: list[tuple[str, str]]):
    self._files = files
    self._values = LoggedValues()
    self._config: json_values.JsonObject = {}
    self._status = 0
    self._plugins: dict[str, str] = {}  # Of each tag: TensorBoard's writers may name it once.
    self._num_events = 0

  def read(self, name: str) -> Content:
    """The content of the run.

    Raises:
      UnreadableRunError: no file has events, or none has values before its damage.
    """
    damage = []
    for prefix, path in self._files:
      try:
        self._read_file(prefix, path)
      except (_DamagedError, OSError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        damage.append(f'{path}: {reason}')
    if not self._num_events or (damage and not len(self._values)):
      raise UnreadableRunError(damage[0] if damage else f'{self._files[0][1]}: has no events')
    return Content(
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

    begin: float | None = None
    for record in _records(path):
      try:
        event = event_pb2.Event.FromString(record)
      except message.DecodeError:
        raise _DamagedError('has a record that is not an event of TensorBoard') from None
      self._num_events += 1
      begin = event.wall_time if begin is None else begin
      for value in event.summary.value:
        self._add(prefix, path, event, value, begin)

  def _add(self, prefix: str, path: str, event: Any, value: Any, begin: float) -> None:
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
      self._values.add(tag, event.step, event.wall_time, number, path, begin)

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


def _records(path: str) -> Iterator[bytes]:
  """The records of a TFRecord file, but long ones. Records up to one that a dying process has cut short.

  Source: tensorflow/core/lib/io/record_reader.h (length, masked CRC32C, data, masked CRC32C).

  Raises:
    _DamagedError: a record is damaged.
    OSError: the file cannot be read.
  """
  place = 0
  with local_files.open_to_read(path) as file:
    while len(head := file.read(12)) == 12:
      (length,) = struct.unpack_from('<Q', head)
      if head[8:] != tf_records.masked_crc32c(head[:8]):
        raise _DamagedError(f'damaged at byte {place}')
      if length > _MAX_RECORD:
        file.seek(length + 4, 1)
      else:
        data = file.read(length)
        end = file.read(4)
        if len(end) < 4:
          return
        if length <= _MAX_CHECKED and end != tf_records.masked_crc32c(data):
          raise _DamagedError(f'damaged at byte {place}')
        yield data
      place += 16 + length


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


_LENGTH = struct.Struct('<Q')
_AROUND = 16
_PNG = b'\x89PNG\r\n\x1a\n'
_EVENT_FILE = re.compile(r'events\.out\.tfevents\..*', re.DOTALL)
_MAX_IMAGE_RECORD = 64 << 20
_MAX_FILES = 200
_MAX_SHOWN = 5000  # Of a run.
_MAX_KEPT = 200_000  # In memory, of all runs.
_MAX_DEPTH = 3


@dataclasses.dataclass(frozen=True)
class Image:
  """An image in a file of a run.

  Attributes:
    tag: its name.
    folder: of its file, below the run's: `train`, `validation`.
    step: its step.
    file: its file, below the run's folder.
    offset: where its record begins.
    number: which it is among the images of its tag and step.
    width: in pixels.
    height: likewise.
  """

  tag: str
  folder: str
  step: int
  file: str
  offset: int
  number: int
  width: int
  height: int


class ImageIndex:
  """The images of runs. Each part is read once. Threads may share it."""

  def __init__(self) -> None:
    """Reads nothing yet."""
    self._lock = threading.Lock()
    self._files: dict[str, tuple[tuple[int, int], int, list[Image]]] = {}  # Identity, place, results.

  def find(self, run: run_folders.Run) -> list[Image]:
    """The images of a run, by folder, tag, step and number. Of two for the same the later one counts.

    Of many thousands, the images of some steps are left out, of each tag evenly, and never the last.
    """
    found: dict[tuple[str, str, int, int], Image] = {}
    with self._lock:
      if sum(len(images) for _, _, images in self._files.values()) > _MAX_KEPT:
        self._files.clear()
      for name in image_files(run):
        for image in self._in_file(run, name):
          found[image.folder, image.tag, image.step, image.number] = image
    return _thinned_images([found[key] for key in sorted(found)])

  def _in_file(self, run: run_folders.Run, name: str) -> list[Image]:
    path = run.file(name)
    try:
      with local_files.open_to_read(path) as file:
        stat = os.fstat(file.fileno())
        identity = stat.st_dev, stat.st_ino
        known = self._files.get(path)
        place, images = (known[1], known[2]) if known and known[0] == identity and known[1] <= stat.st_size else (0, [])
        if place < stat.st_size:
          with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            place = _find_images(data, place, name, images)
    except (OSError, ValueError):
      return []
    self._files[path] = identity, place, images
    return images


def _thinned_images(images: list[Image]) -> list[Image]:
  """Images of fewer steps, if they are too many for a page."""
  every = -(-len(images) // _MAX_SHOWN)
  if every <= 1:
    return images
  steps: dict[tuple[str, str], list[int]] = {}
  for image in images:
    own = steps.setdefault((image.folder, image.tag), [])
    if not own or own[-1] != image.step:
      own.append(image.step)
  kept = {key: set(own[::-1][::every]) for key, own in steps.items()}
  return [image for image in images if image.step in kept[image.folder, image.tag]]


def image_files(run: run_folders.Run) -> list[str]:
  """The files of TensorBoard in a run's folder and those below, as paths below it, by name."""
  found = []
  for folder, folders, names in os.walk(run.path):
    below = os.path.relpath(folder, run.path)
    depth = 0 if below == '.' else below.count(os.sep) + 1
    folders[:] = [] if depth >= _MAX_DEPTH else sorted(each for each in folders if not each.startswith('.'))
    places = [(name, os.path.join(folder, name)) for name in names if _EVENT_FILE.fullmatch(name)]
    names = [name for name, path in places if os.path.isfile(path) and not os.path.islink(path)]
    found += [os.path.join('' if below == '.' else below, name) for name in names]
  return sorted(found)[-_MAX_FILES:]


def read_image(run: run_folders.Run, file: str, offset: int, number: int) -> bytes:
  """An image as PNG: arguments as in Image.

  Raises:
    UserError: the image does not exist.
  """
  none = errors.UserError(f'{file}: {run.name} has no such image')
  if file not in image_files(run):
    raise none
  try:
    with local_files.open_to_read(run.file(file)) as source:
      source.seek(offset)
      header = source.read(_LENGTH.size)
      length = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else 0
      if not 0 < length <= _MAX_IMAGE_RECORD:
        raise none
      source.seek(4, os.SEEK_CUR)
      data = source.read(length)
  except (OSError, ValueError, OverflowError) as error:
    raise none from error
  images = [png for _, _, pngs in _parsed_images(data) for png in pngs]
  if not 0 <= number < len(images):
    raise none
  return images[number]


def _find_images(data: Any, place: int, name: str, images: list[Image]) -> int:
  """Adds the images from a place on. Returns the end of the last whole record."""
  while place + _AROUND <= len(data):
    (length,) = _LENGTH.unpack(data[place : place + _LENGTH.size])
    end = place + _AROUND + length
    if end > len(data) or length > _MAX_IMAGE_RECORD:
      break
    begin = place + _LENGTH.size + 4
    if length > len(_PNG) and data.find(_PNG, begin, begin + length) >= 0:
      number = 0
      for tag, step, pngs in _parsed_images(data[begin : begin + length]):
        for png in pngs:
          width, height = struct.unpack('>II', png[16:24])
          images.append(Image(tag, os.path.dirname(name), step, name, place, number, width, height))
          number += 1
    place = end
  return place


def _parsed_images(data: bytes) -> list[tuple[str, int, list[bytes]]]:
  """(tag, step, PNGs) of a record; [] if it cannot be read."""
  from tensorboard.compat.proto import event_pb2  # It takes a third of a second, and most runs have no images.

  try:
    event = event_pb2.Event.FromString(data)
  except Exception:  # pylint: disable=broad-except  # Each version of protobuf has another error.
    return []
  found = []
  for value in event.summary.value:
    candidates = [value.image.encoded_image_string] if value.HasField('image') else list(value.tensor.string_val)
    pngs = [each for each in candidates if each.startswith(_PNG) and len(each) >= 24]
    if pngs:
      found.append((value.tag, event.step, pngs))
  return found
