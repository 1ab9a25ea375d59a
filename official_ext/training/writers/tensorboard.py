"""TensorBoard: scalars and images under train/ and validation/."""

from collections.abc import Container, Mapping, Sequence
import contextlib
import os
from typing import Any

import numpy as np
import tensorflow as tf

from official_ext.base import errors
from official_ext.base.run_folder import event_names
from official_ext.training.writers import completions_table
from official_ext.training.writers import confusion_image
from official_ext.training.writers import summary_files
from official_ext.training.writers import writer_registry
from official_ext.training.writers import writers

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
  [height, width, channels], image summaries. An evaluation's confusion matrix is drawn, see confusion_image.py.
  Anything else is omitted. Files are made when they are first written to.

  With `summary_names='model_garden'`, values that Model Garden writes too have its names: `training_loss`,
  `validation_loss` and `steps_per_second`, which an evaluation of `validation_steps` batches has as well
  (orbit/controller.py).

  A run that continues from an earlier step writes the steps in between again: of two values for a step, TensorBoard
  shows the later one. If a file cannot be written, as on a full disk, another is begun later: see summary_files.py.
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
    self._files: dict[str, summary_files.SummaryFile] = {}
    self._waiting: dict[str, list[tuple[str, Any, int]]] = {}  # By folder, the numbers whose file could not be made.
    self._failure: errors.StorageError | None = None

  def file_writer(self, event: str, relative_path: str = '') -> summary_files.SummaryFile:
    """The file of 'train' or 'eval' summaries.

    Raises:
      StorageError: it cannot be made.
    """
    folder = os.path.join(self._folders[event], relative_path)
    if folder not in self._files:
      self._files[folder] = summary_files.SummaryFile(folder)
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

    elif event == completions_table.EVENT:
      self.file_writer('train').text(event, completions_table.markdown(values), int(step))

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
      if event == 'eval' and name == confusion_image.NAME and confusion_image.is_matrix(value):
        value = confusion_image.draw(value, self._class_names)
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


def make(run: writer_registry.RunInfo) -> TensorBoardWriter:
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
    name: that of the value.
    values: the names of the values beside it.
    summary_names: one of SUMMARY_NAMES: with 'model_garden', losses and `steps_per_second` keep their names.
  """
  if summary_names == 'model_garden' and name in (*_LOSSES, _RATE):
    return name
  if name in _LOSSES and _LOSS not in values:
    return _LOSS
  return f'progress/{name}' if name in event_names.PROGRESS else name


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
