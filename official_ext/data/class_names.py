"""The names of classes beside the files of a data configuration. No TensorFlow."""

import csv
import os
from typing import Any

from official_ext.data import input_files
from official_ext.data import prepared_folders


class ClassNames:
  """Names of classes by number."""

  def __init__(self, names: dict[int, str]):
    """Takes the known names."""
    self._names = names

  def __len__(self) -> int:
    return len(self._names)

  def of(self, number: int) -> str:
    """The name of a class; its number if it has none."""
    return self._names.get(number, str(number))


def find(data: Any) -> ClassNames:
  """The names in the label map of a data configuration, or in labels.txt beside its files; none if there are none.

  Args:
    data: the data configuration.
  """
  decoder = getattr(data, 'decoder', None)
  if decoder is not None and getattr(decoder, 'type', '') == 'label_map_decoder':
    found = _read_map(decoder.label_map_decoder.label_map)
    if found:
      return ClassNames(found)
  input_path = getattr(data, 'input_path', None)
  for pattern in input_files.patterns(input_path) if input_path else ():
    for folder in (os.path.dirname(pattern), pattern):
      names = in_folder(folder)
      if len(names):
        return names
  return ClassNames({})


def in_folder(folder: str) -> ClassNames:
  """The names in labels.txt of a folder; none if it has none."""
  try:
    with open(os.path.join(folder, prepared_folders.LABELS), encoding='utf-8') as f:
      return ClassNames(dict(enumerate(line.rstrip('\n') for line in f)))
  except OSError:
    return ClassNames({})


def _read_map(path: str) -> dict[int, str]:
  """From number to name, by a CSV file of `number,name`; {} if it cannot be read."""
  try:
    with open(path, encoding='utf-8', newline='') as f:
      return {int(number): name for number, name in csv.reader(f)}
  except (OSError, ValueError):
    return {}
