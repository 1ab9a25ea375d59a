"""train.csv and validation.csv: the metrics of a run as tables, for spreadsheets and pandas."""

from collections.abc import Mapping
import csv
import io
import os
from typing import Any

import tensorflow as tf

from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.base.run_folder import tracker_values
from official_ext.training.writers import writer_registry
from official_ext.training.writers import writers


class CsvWriter(writers.Writer):
  """A table of 'train' events and one of 'eval' events, with a row for each step and a column for each number.

  Each step has one row, in order. A run that continues from an earlier step removes the rows that it will write again,
  so that a run that was killed or rolled back has the same tables as an uninterrupted one. A number that appears late
  adds a column. The rows of a killed process stay, except for a row that was cut short. After a failed write, as
  on a full disk, the next row for which there is room writes the whole table again.
  """

  def __init__(self, model_dir: str, trains: bool = True, suffix: str = ''):
    """Reads the tables that exist; writes nothing.

    Args:
      model_dir: the run's folder.
      trains: whether the run trains: then it will write the rows of later steps again.
      suffix: a part of the files' names, before '.csv'.
    """
    self._trains = trains
    self._tables = {
      event: _Table(os.path.join(model_dir, f'{name}{suffix}.csv'))
      for event, name in (('train', 'train'), ('eval', 'validation'))
    }

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    if event in ('restored', 'rollback'):
      self._forget(step + 1)
    elif event in self._tables:
      numbers = tracker_values.numbers_of('train', writers.flatten(values))  # The tables have names without a prefix.
      try:
        if event == 'train':
          self._forget(step)
      finally:
        self._tables[event].add(int(step), numbers)

  def flush(self) -> None:
    """Writes rows that could not be written before."""
    for table in self._tables.values():
      table.complete()

  def sync(self) -> None:
    """Makes the disk store the tables."""
    for table in self._tables.values():
      table.sync()

  def close(self) -> None:
    """Writes rows that could not be written before; all others are written out already."""
    self.sync()

  def _forget(self, first_step: int) -> None:
    if self._trains:
      for table in self._tables.values():
        table.forget(first_step)
      self.flush()


class _Table:
  """A CSV file whose first column is `step`."""

  def __init__(self, path: str):
    self._path = path
    self._columns: list[str] = ['step']
    self._rows: dict[int, dict[str, str]] = {}
    self._last = -1  # The highest step.
    self._is_whole = True  # Whether the file holds all rows.
    self._is_unsynced = False  # Whether the disk may not have stored the last of them.
    if tf.io.gfile.exists(path):
      self._read()

  def _read(self) -> None:
    text = paths.read(self._path).decode()
    whole = text[: text.rfind('\n') + 1]  # The last line may have been cut short.
    whole = whole[: whole.rfind('\n', 0, whole.find('\0')) + 1] if '\0' in whole else whole  # By a power loss.
    reader = csv.DictReader(io.StringIO(whole))
    self._columns = list(reader.fieldnames or self._columns)
    self._rows = {int(row['step']): row for row in reader}
    self._last = max(self._rows, default=-1)
    if whole != text:
      self._write_all()

  def forget(self, first_step: int) -> None:
    """Removes the rows from a step on; `complete` writes the rest."""
    if self._last >= first_step:
      self._rows = {step: row for step, row in self._rows.items() if step < first_step}
      self._last = max(self._rows, default=-1)
      self._is_whole = False

  def complete(self) -> None:
    """Writes the table, if the file differs from it."""
    if not self._is_whole:
      self._write_all()

  def sync(self) -> None:
    """Makes the disk store the table.

    Raises:
      StorageError: it could not; the next write includes all rows.
    """
    self.complete()
    if self._is_unsynced:
      try:
        paths.sync_to_disk(self._path)
      except OSError:  # The system counts failed writes as stored: only data that is written again can be synced.
        self._write_all()
      self._is_unsynced = False

  def add(self, step: int, values: Mapping[str, Any]) -> None:
    """Writes a row, and replaces the one of the same step.

    Raises:
      StorageError: it could not be written; a later write includes it.
    """
    new_columns = [name for name in values if name not in self._columns]
    appends = step > self._last >= 0 and not new_columns and self._is_whole and tf.io.gfile.exists(self._path)
    self._last = max(self._last, step)
    self._columns += new_columns
    cells = {name: tracker_values.csv_cell(value) for name, value in values.items() if name != 'step'}
    self._rows[step] = {'step': str(step), **cells}
    if appends:
      self._append(step)
    else:
      self._write_all()

  def _append(self, step: int) -> None:
    try:
      with tf.io.gfile.GFile(self._path, 'a') as f:
        f.write(self._as_text([step]))
      self._is_unsynced = True
    except storage.FAILURES as error:
      self._is_whole = False
      raise storage.not_written(self._path, error) from error

  def _write_all(self) -> None:
    header = io.StringIO()
    csv.writer(header, lineterminator='\n').writerow(self._columns)
    self._is_whole = False
    storage.write(self._path, header.getvalue() + self._as_text(sorted(self._rows)))
    self._is_whole = True

  def _as_text(self, steps: list[int]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, self._columns, restval='', lineterminator='\n').writerows(self._rows[step] for step in steps)
    return text.getvalue()


def make(run: writer_registry.RunInfo) -> CsvWriter:
  """Makes the writer. A mode that does not train has separate tables: a training may run in the same folder."""
  return CsvWriter(run.model_dir, run.trains, '' if run.trains else f'.{run.mode}')
