"""The data of an evaluation: a prepared folder, or the run's own validation data."""

from collections.abc import Sequence
import dataclasses
import glob
import os
from typing import Any

from official_ext.base import errors
from official_ext.data import config_fields
from official_ext.data import input_faults
from official_ext.data import input_files
from official_ext.data.prepare import conversions
from official_ext.training.config import definitions


@dataclasses.dataclass(frozen=True)
class EvaluatedData:
  """The data.

  Attributes:
    config: the data configuration: not repeated, nothing dropped.
    path: its dotted path or flag, for messages.
    names: of the classes by number; of boxes, number 0 is the background.
    annotation_file: of boxes, COCO's JSON; '' without one.
    title: the data, in words.
    folder: the prepared folder; '' for the run's own data outside of one.
  """

  config: Any
  path: str
  names: input_files.ClassNames
  annotation_file: str
  title: str
  folder: str

  def class_list(self, num_classes: int) -> list[str]:
    """The names of all classes."""
    return [self.names.of(number) for number in range(num_classes)]


def find(
  params: definitions.ExperimentConfig, kinds: Sequence[str], num_classes: int, on: str = '', split: str = ''
) -> EvaluatedData:
  """The data of an evaluation.

  Args:
    params: of the run.
    kinds: the targets of `prepare --for` that its task reads.
    num_classes: of its model.
    on: a prepared folder; '' for the run's own validation data.
    split: of the folder; '': validation, or else test.

  Raises:
    UserError: the folder is of another kind, has other classes or no examples, or the run has no validation data.
  """
  own = params.task.validation_data or params.task.train_data
  learned = params.task.train_data or own
  if not on:
    if split:
      raise errors.UserError('--split: requires --on=FOLDER; without it the validation data of the run is used')
    if params.task.validation_data is None or not params.task.validation_data.input_path:
      raise errors.UserError('task.validation_data: the run has none; name a prepared folder: --on=FOLDER')
    missing = input_faults.unmatched(own)
    if missing is not None:
      raise errors.UserError(f'task.validation_data.input_path: {missing}: No such file or directory; give --on=FOLDER')
    names = input_files.find_class_names(own)
    input_files.check_same_classes(
      'task.validation_data', names, 'task.train_data', input_files.find_class_names(learned)
    )
    annotations = str(config_fields.of_task(params.task).annotation_file or '')
    config = own.replace(is_training=False, drop_remainder=False)
    folder = _folder_of(own)
    return EvaluatedData(
      config,
      'task.validation_data',
      names,
      annotations,
      'validation data of the run',
      folder,
    )
  folder = os.path.abspath(os.path.expanduser(on))
  prepared = input_files.describe_prepared(folder, '--on')
  if prepared.kind not in kinds:
    raise errors.UserError(f'--on: {on}: was prepared for {prepared.kind}; the run needs --for={" or ".join(kinds)}')
  split = split or next((name for name in (conversions.VALIDATION, conversions.TEST) if _rows(prepared, name)), '')
  if not split:
    raise errors.UserError(f'--on: {on}: has neither validation nor test examples; --split=train takes the others')
  if not _rows(prepared, split):
    raise errors.UserError(f'--on: {on}: has no {split} examples')
  names = _checked_names(folder, on, learned if len(input_files.find_class_names(learned)) else own, num_classes)
  changes: dict[str, Any] = {
    'input_path': os.path.join(glob.escape(folder), f'{split}-*.tfrecord'),
    'is_training': False,
    'drop_remainder': False,
    'global_batch_size': own.global_batch_size,
  }
  changes |= config_fields.known(own, {'decode_jpeg_only': prepared.settings.get('image_format') == 'jpeg'})
  if config_fields.known(own, {'seq_length': 0}):
    _check_vocabulary(prepared, on, own)
    changes['seq_length'] = prepared.settings.get('seq_length', config_fields.of_data(own).seq_length)
  annotations = os.path.join(folder, f'annotations_{split}.json')
  annotations = annotations if os.path.exists(annotations) else ''
  return EvaluatedData(own.replace(**changes), '--on', names, annotations, f'{split} examples of {on}', folder)


def _rows(prepared: input_files.PreparedFolder, split: str) -> int:
  return sum(rows for file, rows, *_ in prepared.files if os.path.basename(file).startswith(f'{split}-'))


def _folder_of(data: Any) -> str:
  """The prepared folder of a data configuration; '' if it is outside of one."""
  folder = os.path.dirname(str(data.input_path or ''))
  return folder if os.path.isfile(os.path.join(folder, input_files.MANIFEST)) else ''


def _checked_names(folder: str, on: str, learned: Any, num_classes: int) -> input_files.ClassNames:
  """The names of the classes of a folder, which must equal the run's."""
  found = input_files.class_names_in(folder)
  if len(found) != num_classes:
    raise errors.UserError(f'--on: {on}: has {len(found)} classes, the model of the run {num_classes}')
  labels = os.path.join(_folder_of(learned) or 'FOLDER', input_files.LABELS)
  input_files.check_same_classes(
    f'--on: {on}', found, 'the data of the run', input_files.find_class_names(learned), labels
  )
  return found


def _check_vocabulary(prepared: input_files.PreparedFolder, on: str, own: Any) -> None:
  """Refuses rows of another vocabulary than the run's, if both are known."""
  folder = _folder_of(own)
  if not folder:
    return
  trained = input_files.describe_prepared(folder, 'task.validation_data').settings
  for name in ('vocabulary', 'do_lower_case'):
    if trained.get(name) != prepared.settings.get(name):
      raise errors.UserError(f'--on: {on}: its {name} is not that of the data of the run; prepare it with the same')
