"""Writes scalars, images, tables of completions and confusion matrices for TensorBoard.

`SummaryFile` keeps event files readable when storage fails. After a failed write, TensorFlow continues after the
incomplete record, and TensorBoard does not read beyond it. So the rest of a failed write is cut off, and another file
begins as soon as there is room for it.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
import contextlib
import html
import os
import struct
import tempfile
import time
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import tf_internals
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.base.run_folder import run_files
from official_ext.training.writers import registry
from official_ext.training.writers import writers

_LENGTH = struct.Struct('<Q')  # A record has 8 bytes of length, 4 of its checksum, the data, and 4 of their checksum.
_AROUND = 16
_MAX_UNWRITTEN = 100_000  # How many numbers may wait for room.
_ROOM = 1 << 16  # How many bytes must be free for another file.
# Only `flush` writes: it alone handles failed writes.
_NEVER = {'max_queue': 1 << 30, 'flush_millis': (1 << 31) - 1}


class SummaryFile(tf.summary.SummaryWriter):
  """The event files of one folder, one after the other: see base class.

  Numbers given to `scalar` while storage fails are written when there is room again; images, texts, and the values that
  a task writes by tf.summary inside its step, are lost. On a remote file system, a failure begins another file too, but
  its rest is not cut off.

  Attributes:
    failure: why the last flush could not write everything; None if it could.
  """

  def __init__(self, folder: str):
    """Begins a file.

    Raises:
      StorageError: it cannot be written.
    """
    self.failure: errors.StorageError | None = None
    self._unreported: errors.StorageError | None = None
    self._folder = folder
    self._unwritten: list[tuple[str, Any, int]] = []  # The numbers since the last flush that succeeded.
    self._unsynced: list[tuple[str, Any, int]] = []  # Earlier ones, since the last sync that succeeded.
    self._is_writing = False
    self._checked = 0  # The number of bytes in whole records.
    known = self._files()
    try:
      paths.make_folder(folder)
      self._writer = tf.summary.create_file_writer(folder, **_NEVER)
      self._second = int(time.time())  # Of the file's name.
    except storage.FAILURES as error:
      for path in self._files() - known:
        storage.remove(path)
      raise storage.not_written(folder, error) from error
    self._path = self._new_file(known)

  # Attributes that TensorFlow's summary ops read. Compiled functions keep the resource: all files share it.

  @property
  def _resource(self):
    return tf_internals.resource_of(self._writer)

  @property
  def _mesh(self):
    return None

  def init(self):
    """See base class."""
    return self._writer.init()

  # Writing.

  def scalar(self, name: str, value: float | np.ndarray | tf.Tensor, step: int) -> None:
    """Writes a number at the next flush, or at the first one that succeeds."""
    if len(self._unwritten) < _MAX_UNWRITTEN:
      self._unwritten.append((name, value, step))
    if self.failure is None:
      self._write(tf.summary.scalar, name, value, step=step)

  def image(self, name: str, images: np.ndarray | tf.Tensor, step: int, max_outputs: int) -> None:
    """Writes images at the next flush."""
    if self.failure is None:
      self._write(tf.summary.image, name, images, step=step, max_outputs=max_outputs)

  def text(self, name: str, markdown: str, step: int) -> None:
    """Writes a text at the next flush."""
    if self.failure is None:
      self._write(tf.summary.text, name, markdown, step=step)

  def _write(self, function, *arguments, **options):
    self._is_writing = True  # The end of the context would flush.
    try:
      with self.as_default():
        function(*arguments, **options)
    finally:
      self._is_writing = False

  def flush(self) -> None:
    """Writes out everything, if it can, and sets `failure`: see base class."""
    if self._is_writing:
      return
    try:
      if self.failure is not None:
        self._begin_another()
      self._writer.flush()
      whole = self._end_of_records()
      if whole is None:
        raise errors.StorageError(f'{self._path}: cannot be written: it is gone, or a record was cut off')
    except (errors.StorageError, *storage.FAILURES) as error:
      self.failure = self._unreported = storage.not_written(self._path or self._folder, error)
      return
    self._unsynced += self._unwritten
    del self._unsynced[:-_MAX_UNWRITTEN]
    self._checked, self._unwritten, self.failure = whole, [], None

  def sync(self) -> None:
    """Flushes, and makes the disk store the file.

    If the disk may not have stored it, `failure` is set, and the next flush writes the numbers again, to another file.
    """
    self.flush()
    if self.failure is not None:
      return
    if self._path is not None:
      try:
        paths.sync_to_disk(self._path)
        paths.sync_to_disk(self._folder)
      except OSError as error:
        self.failure = self._unreported = storage.not_written(self._path, error)
        self._unwritten = self._unsynced + self._unwritten
    self._unsynced = []

  def take_failure(self) -> errors.StorageError | None:
    """Returns and forgets the last failure, even if everything is written by now."""
    failure, self._unreported = self._unreported or self.failure, None
    return failure

  def close(self) -> None:
    """See base class.

    Raises:
      StorageError: not everything could be written.
    """
    self.sync()
    try:
      self._writer.close()
    except storage.FAILURES:
      pass
    if self.failure is not None:
      self._cut()
      raise self.failure

  # Another file.

  def _begin_another(self) -> None:
    """Ends the file that has failed, and begins another one with the numbers that wait.

    Raises:
      StorageError, OSError, tf.errors.OpError: it cannot be written.
    """
    paths.make_folder(self._folder)
    self._check_room()
    self._create(None)
    self._cut()
    self._wait_for_another_second()
    known = self._files()
    try:
      self._create(self._folder)
    except storage.FAILURES:
      self._create(tempfile.gettempdir())  # Summary ops inside a step need a writer.
      raise
    self._path, self._checked, self.failure = self._new_file(known), 0, None
    for name, value, step in self._unwritten:
      self._write(tf.summary.scalar, name, value, step=step)

  def _wait_for_another_second(self) -> None:
    """Waits until a new file's name is after the present one's: TensorBoard reads files in the order of names.

    Names begin with the second. Files of one second are numbered without leading zeros, so 10 is before 9.
    """
    end = time.monotonic() + 1.0
    while int(time.time()) == self._second and time.monotonic() < end:
      time.sleep(0.02)
    self._second = int(time.time())

  def _check_room(self) -> None:
    path = os.path.join(self._folder, f'.room-{os.getpid()}')
    try:
      with tf.io.gfile.GFile(path, 'wb') as f:
        f.write(bytes(_ROOM))
    finally:
      storage.remove(path)

  def _create(self, folder: str | None) -> None:
    """Makes another writer for the resource; None only removes the present one."""
    with tf.device('CPU:0'):
      try:
        tf.raw_ops.CloseSummaryWriter(writer=self._resource)
      except storage.FAILURES:  # It does not exist, or could not write its last records.
        pass
      if folder is not None:
        number = len(self._files())
        tf.raw_ops.CreateSummaryFileWriter(
          writer=self._resource, logdir=folder, filename_suffix=f'.{os.getpid()}.{number}.{id(self)}.v2', **_NEVER
        )

  def _cut(self) -> None:
    """Cuts the file after its last whole record; removes it if it holds only the record of the version."""
    if self._path is None or not os.path.exists(self._path):
      return
    try:
      whole = _end_of_records(self._path, 0)
      if not _has_values(self._path, whole):
        os.remove(self._path)
      elif whole < os.path.getsize(self._path):
        os.truncate(self._path, whole)
    except OSError:  # The failure of this file is reported already.
      pass

  def _end_of_records(self) -> int | None:
    """The end of the file's records; None if something else follows them, or if there is no file."""
    if self._path is None:  # The file is remote.
      return self._checked
    if not os.path.isfile(self._path):
      return None
    whole = _end_of_records(self._path, self._checked)
    return whole if whole == os.path.getsize(self._path) else None

  def _files(self) -> set[str]:
    """This process's files in the folder."""
    if paths.is_remote(self._folder) or not os.path.isdir(self._folder):
      return set()
    return {entry.path for entry in os.scandir(self._folder) if f'.{os.getpid()}.' in entry.name}

  def _new_file(self, known: set[str]) -> str | None:
    """The file that was made after the `known` ones, if it is local."""
    return max(self._files() - known, default=None)


def _end_of_records(path: str, start: int) -> int:
  """The end of the last whole record, in a file whose records are known to be whole up to `start`."""
  end, size = start, os.path.getsize(path)
  with local_files.open_to_read(path) as f:
    while end + _AROUND <= size:
      f.seek(end)
      (length,) = _LENGTH.unpack(f.read(_LENGTH.size))
      if end + _AROUND + length > size:
        break
      end += _AROUND + length
  return end


def _has_values(path: str, whole: int) -> bool:
  """Whether a file has more than the record of its version."""
  with local_files.open_to_read(path) as f:
    head = f.read(_LENGTH.size)
  return len(head) == _LENGTH.size and whole > _AROUND + _LENGTH.unpack(head)[0]


COMPLETIONS = 'completions'
_MAX_TEXT = 500


def completions_markdown(values: Mapping[str, object]) -> str:
  """A table with a row for each completion.

  Args:
    values: of the event: lists of one length by column.
  """
  columns = {
    name: value for name, value in values.items() if isinstance(value, Sequence) and not isinstance(value, str)
  }
  lines = [_row(columns), _row(['---'] * len(columns))]
  return '\n'.join([*lines, *(_row(map(_cell, row)) for row in zip(*columns.values()))])


def _row(cells: Iterable[str]) -> str:
  return f'| {" | ".join(cells)} |'


def _cell(value: object) -> str:
  """A value in one line, without Markdown's or HTML's characters."""
  text = f'{value:.4g}' if isinstance(value, float) else str(value)
  text = html.escape(text if len(text) <= _MAX_TEXT else f'{text[:_MAX_TEXT]}...')
  for letter in '\\`*_{}[]#|':
    text = text.replace(letter, f'\\{letter}')
  return text.replace('\n', '<br>')


CONFUSION_MATRIX = 'confusion_matrix'  # The name of the metric that is drawn.
_MAX_NUMBERS = 32  # The most classes with counts in the cells.
_MAX_LABELS = 64  # The most classes that are all named.
_DOTS_PER_INCH = 100
_MAX_LABEL_LENGTH = 16


def is_confusion_matrix(value: Any) -> bool:
  """Whether a value is a square matrix of numbers."""
  return (
    isinstance(value, np.ndarray)
    and value.ndim == 2
    and value.shape[0] == value.shape[1] > 1
    and value.dtype.kind in 'fiu'
  )


def draw_confusion_matrix(matrix: np.ndarray, class_names: Sequence[str] = ()) -> np.ndarray:
  """Draws a confusion matrix as an image: the shade of a cell is its fraction of its row, its text the count.

  Args:
    matrix: [classes, classes]; row i counts the examples of class i, column j the predictions of class j.
    class_names: the labels, if there are as many as classes; else the labels are numbers.

  Returns:
    uint8 of shape [height, width, 3], 480 to 1,600 pixels high.
  """
  # Not pyplot, which keeps every figure, and may look for a display.
  from matplotlib import figure  # pylint: disable=g-import-not-at-top
  from matplotlib.backends import backend_agg  # pylint: disable=g-import-not-at-top

  count = len(matrix)
  labels = [_shorten(str(name)) for name in (class_names if len(class_names) == count else range(count))]
  size = float(np.clip(0.45 * count + 2, 4.8, 16))
  canvas = backend_agg.FigureCanvasAgg(
    figure.Figure(figsize=(size * 1.15, size), dpi=_DOTS_PER_INCH, layout='constrained')
  )
  axes = canvas.figure.add_subplot()
  totals = matrix.sum(1, keepdims=True)
  fractions = np.divide(matrix, totals, out=np.zeros(matrix.shape), where=totals != 0)
  image = axes.imshow(fractions, cmap='Blues', vmin=0, vmax=1, aspect='auto')
  canvas.figure.colorbar(image, ax=axes, label='fraction of the true class', shrink=0.8)
  axes.set_xlabel('predicted class')
  axes.set_ylabel('true class')
  if count <= _MAX_LABELS:
    axes.set_xticks(range(count), labels, rotation=90 if max(map(len, labels)) > 3 else 0)
    axes.set_yticks(range(count), labels)
  if count <= _MAX_NUMBERS:
    for row, column in np.argwhere(matrix):
      axes.text(
        column,
        row,
        f'{matrix[row, column]:.5g}',
        ha='center',
        va='center',
        fontsize=8,
        color='white' if fractions[row, column] > 0.5 else 'black',
      )
  canvas.draw()
  return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _shorten(label: str) -> str:
  return label if len(label) <= _MAX_LABEL_LENGTH else f'{label[: _MAX_LABEL_LENGTH - 1]}…'


CHANNELS = (1, 2, 3, 4)  # The numbers of channels that images may have.
SUMMARY_NAMES = ('official_ext', 'model_garden')
_LOSSES, _LOSS = ('training_loss', 'validation_loss'), 'loss'
_RATE = 'steps_per_second'


class TensorBoardWriter(writers.Writer):
  """Writes 'train' events under model_dir/train, 'eval' events under model_dir/<validation_subdir>.

  The table of an event 'completions' becomes a text summary under model_dir/train.

  As in orbit.utils.SummaryManager, a dictionary within the values becomes a subfolder, that is, another curve under the
  same names. A curve has the name of its value, except that `training_loss` and `validation_loss` are both `loss`, and
  so in one chart, and that values about the progress of the run (rate, epoch, ...) begin with `progress/`. Scalars
  become scalar summaries; arrays of four dimensions, [images, height, width, channels], and of three,
  [height, width, channels], image summaries. An evaluation's confusion matrix is drawn.
  Anything else is omitted. Files are made when they are first written to.

  With `summary_names='model_garden'`, values that Model Garden writes too have its names: `training_loss`,
  `validation_loss` and `steps_per_second`, which an evaluation of `validation_steps` batches has as well
  (orbit/controller.py).

  A run that continues from an earlier step writes the steps in between again: of two values for a step, TensorBoard
  shows the later one. If a file cannot be written, as on a full disk, another is begun later: see `SummaryFile`.
  """

  def __init__(
    self,
    model_dir: str,
    validation_subdir: str = 'validation',
    max_images: int = 20,
    class_names: Sequence[str] = (),
    summary_names: str = SUMMARY_NAMES[0],
    validation_steps: int = 0,
  ):
    """Makes a writer that has written nothing yet.

    Args:
      model_dir: the run's folder.
      validation_subdir: `trainer.validation_summary_subdir`.
      max_images: how many images of one array are written.
      class_names: the labels of confusion matrices; () for numbers.
      summary_names: `trainer.summary_names`.
      validation_steps: `trainer.validation_steps`.
    """
    self._folders = {'train': os.path.join(model_dir, 'train'), 'eval': os.path.join(model_dir, validation_subdir)}
    self._max_images = max_images
    self._class_names = tuple(class_names)
    self._summary_names = summary_names
    self._validation_steps = validation_steps
    self._files: dict[str, SummaryFile] = {}
    self._waiting: dict[str, list[tuple[str, Any, int]]] = {}  # By folder, the numbers whose file could not be made.
    self._failure: errors.StorageError | None = None

  def file_writer(self, event: str, relative_path: str = '') -> SummaryFile:
    """The file of 'train' or 'eval' summaries.

    Raises:
      StorageError: it cannot be made.
    """
    folder = os.path.join(self._folders[event], relative_path)
    if folder not in self._files:
      self._files[folder] = SummaryFile(folder)
      for name, value, step in self._waiting.pop(folder, ()):
        self._files[folder].scalar(name, value, step)
    return self._files[folder]

  def default_file(self, event: str) -> tf.summary.SummaryWriter:
    """The file for summaries that a task writes itself; a writer that writes nothing if the file cannot be made."""
    try:
      return self.file_writer(event)
    except errors.StorageError:  # `write` reports it.
      return tf.summary.create_noop_writer()

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class.

    Raises:
      StorageError: a file cannot be made. Its numbers are written when it can be.
    """
    if event in self._folders:
      self._failure = None
      if self._summary_names == 'model_garden' and event == 'eval':
        values = {**values, **self._evaluation_rate(values)}
      self._write(event, int(step), values, '')
      if self._failure is not None:
        raise self._failure

    elif event == COMPLETIONS:
      self.file_writer('train').text(event, completions_markdown(values), int(step))

  def flush(self) -> None:
    """See base class.

    Raises:
      StorageError: not everything could be written. The numbers will be, when there is room for them.
    """
    self._each('flush')

  def sync(self) -> None:
    """Flushes all files, and makes the disk store them. After a failure, the next flush writes the numbers again.

    Raises:
      StorageError: not everything could be written, or the disk may not have stored it.
    """
    self._each('sync')

  def _evaluation_rate(self, values: Mapping[str, Any]) -> dict[str, float]:
    seconds = values.get('seconds')
    return {_RATE: self._validation_steps / seconds} if self._validation_steps > 0 and seconds else {}

  def _each(self, method: str) -> None:
    for file in self._files.values():
      getattr(file, method)()
    failures = [file.take_failure() for file in self._files.values()]
    for failure in filter(None, failures):
      raise failure

  def close(self) -> None:
    """See base class.

    Raises:
      StorageError: not everything could be written.
    """
    with contextlib.ExitStack() as closing:  # All of them, even if one fails.
      for file in self._files.values():
        closing.callback(file.close)
      self._files = {}

  def _write(self, event: str, step: int, values: Mapping[str, Any], relative_path: str) -> None:
    for name, value in values.items():
      if isinstance(value, Mapping):
        self._write(event, step, value, os.path.join(relative_path, name))
        continue
      value = writers.to_python(value)
      if event == 'eval' and name == CONFUSION_MATRIX and is_confusion_matrix(value):
        value = draw_confusion_matrix(value, self._class_names)
      images = _as_images(value)
      is_number = isinstance(value, (bool, int, float))
      if images is None and not is_number:
        continue
      tag = tag_of(name, values, self._summary_names)
      try:
        file = self.file_writer(event, relative_path)
      except errors.StorageError as error:
        self._failure = error
        if is_number:
          folder = os.path.join(self._folders[event], relative_path)
          self._waiting.setdefault(folder, []).append((tag, value, step))
        continue
      if images is None:
        file.scalar(tag, value, step)
      else:
        file.image(name, images, step, self._max_images)


def make(run: registry.RunInfo) -> TensorBoardWriter:
  """The writer of a run."""
  trainer = run.params.trainer
  return TensorBoardWriter(
    run.model_dir,
    trainer.validation_summary_subdir,
    class_names=run.class_names,
    summary_names=trainer.summary_names,
    validation_steps=trainer.validation_steps,
  )


def tag_of(name: str, values: Container[str], summary_names: str = SUMMARY_NAMES[0]) -> str:
  """The name of a scalar's curve.

  The losses of training and evaluation share a chart with two curves, as the metrics do, which have the same name in
  both; unless another value has the name `loss`.

  Args:
    name: of the value.
    values: the names of the event's values.
    summary_names: one of SUMMARY_NAMES: with 'model_garden', losses and `steps_per_second` keep their names.
  """
  if summary_names == 'model_garden' and name in (*_LOSSES, _RATE):
    return name
  if name in _LOSSES and _LOSS not in values:
    return _LOSS
  return f'progress/{name}' if name in run_files.PROGRESS else name


def _as_images(value: Any) -> np.ndarray | None:
  """Converts a value to [images, height, width, channels], in a dtype that TensorBoard takes; None if it cannot be."""
  if not isinstance(value, np.ndarray) or value.ndim not in (3, 4) or not value.size:
    return None
  images = value[np.newaxis] if value.ndim == 3 else value
  if images.shape[-1] not in CHANNELS:
    return None
  dtype = tf.as_dtype(images.dtype)
  if dtype.is_floating:
    return np.nan_to_num(images.astype(np.float32))
  if dtype.is_bool:
    return images.astype(np.uint8) * 255
  return images.astype(np.uint8) if dtype.is_integer else None
