"""Writes to trackers and tables: train.csv and validation.csv, MLflow, Weights & Biases.

MLflow's runs go to a tracking server or a local database; W&B's files are sent by `wandb sync`, or at once.
"""

from collections.abc import Mapping
import csv
import dataclasses
import io
import json
import os
import time
from typing import Any, ClassVar
import uuid

from absl import logging
from official.modeling.hyperparams import base_config
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base import package_imports
from official_ext.base import safe_text
from official_ext.base.files import local_files
from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.base.run_folder import run_files
from official_ext.base.run_folder import tracker_logs
from official_ext.training.writers import registry
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
      flat = {writers.stored_name(name): value for name, value in writers.flatten(values).items()}
      numbers = tracker_logs.numbers_of('train', flat)  # The tables have names without a prefix.
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
    if paths.exists(path):
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
    appends = step > self._last >= 0 and not new_columns and self._is_whole and paths.exists(self._path)
    self._last = max(self._last, step)
    self._columns += new_columns
    cells = {name: tracker_logs.csv_cell(value) for name, value in values.items()}
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


def make(run: registry.RunInfo) -> CsvWriter:
  """Makes the writer. A mode that does not train has separate tables: a training may run in the same folder."""
  return CsvWriter(run.model_dir, run.trains, '' if run.trains else f'.{run.mode}')


_CLOSE_SECONDS = 10.0
_DATABASE_SECONDS = 60.0  # Creating one takes seconds.


@dataclasses.dataclass
class MlflowConfig(base_config.Config):
  """The destination of `trainer.writers: [mlflow]`.

  Attributes:
    tracking_uri: Empty: the environment variable MLFLOW_TRACKING_URI, or else the SQLite database `mlflow.db` in the
      run's folder, or its folder `mlruns` if it has one already.
    experiment: The name of MLflow's experiment.
    run_name: Empty: the name of the run's folder.
  """

  tracking_uri: str = ''
  experiment: str = 'official_ext'
  run_name: str = ''


class MlflowWriter(writers.Writer):
  """Logs to one MLflow run, which a run that is started again continues.

  Its id is kept in mlflow.json, in the run's folder. Parameters are from the first start. Metrics are 'train'
  values under their names and 'eval' values as `validation/<name>`. A run that returns to an earlier step logs the
  steps in between again: MLflow keeps both values, and shows the later one as the step's last. The metric
  `resumed_from` marks the return: earlier values at higher steps are superseded.
  """

  def __init__(
    self,
    model_dir: str,
    params: Mapping[str, Any],
    tracking_uri: str = '',
    experiment: str = 'official_ext',
    run_name: str = '',
  ):
    """Initializes the writer; connects to no server yet.

    Args:
      model_dir: the run's folder.
      params: the configuration, nested.
      tracking_uri: empty: see `tracker_logs.mlflow_uri`, of `model_dir`.
      experiment: the name of MLflow's experiment, which is created if it does not exist.
      run_name: empty: the name of `model_dir`.
    """
    folder = paths.absolute(model_dir)
    self._path = os.path.join(model_dir, tracker_logs.MLFLOW_NOTE)
    self._params = params
    self._uri = tracker_logs.mlflow_uri(folder, tracking_uri)
    self._experiment = experiment
    self._run_name = run_name or os.path.basename(folder)
    self._log: tracker_logs.MlflowLog | None = None

  @property
  def close_seconds(self) -> float:
    """How long the end of a run waits for the writer."""
    return _DATABASE_SECONDS if self._uri.startswith('sqlite:') else _CLOSE_SECONDS

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    if self._log is None:
      self._log = self._connected()
    if event in ('train', 'eval', *run_files.GO_BACK):
      self._log.log_metrics(tracker_logs.mlflow_points(event, step, time.time(), writers.flatten(values)))
    elif event in tracker_logs.MLFLOW_STATUSES:
      if 'error' in values:
        self._log.set_tag('error', str(values['error']))
      self._log.set_status(event)
    elif event == 'early_stopped':
      self._log.set_tag(event, str(values.get('reason', '')))

  def _connected(self) -> tracker_logs.MlflowLog:
    client = tracker_logs.mlflow_client(self._uri)
    earlier = self._earlier_run()
    log = tracker_logs.MlflowLog(client, earlier) if earlier else self._new_run(client)
    log.set_status(None)
    return log

  def _earlier_run(self) -> str | None:
    """The id of the MLflow run that this one continues."""
    if not paths.exists(self._path):
      return None
    noted = json_values.load_file(self._path)
    return noted['run_id'] if noted['tracking_uri_sha256'] == tracker_logs.mlflow_store_sum(self._uri) else None

  def _new_run(self, client: Any) -> tracker_logs.MlflowLog:
    log = tracker_logs.MlflowLog.create(client, self._experiment, self._run_name)
    note = {'run_id': log.run_id, 'tracking_uri_sha256': tracker_logs.mlflow_store_sum(self._uri)}
    storage.write(self._path, json.dumps(note) + '\n')
    params, lines = tracker_logs.mlflow_params(self._params)
    log.log_params(params)
    for line in lines:
      logging.warning('MLflow: %s', line)
    return log


def make_mlflow(run: registry.RunInfo) -> writers.Writer:
  """Makes the writer of `trainer.mlflow`, if the run trains: a parallel evaluation would take over its MLflow run."""
  if not run.trains:
    return writers.Writers([])
  config = run.params.trainer.mlflow
  params = safe_text.mask_values(run.params.as_dict())
  writer = MlflowWriter(run.model_dir, params, config.tracking_uri, config.experiment, config.run_name)
  return registry.BackgroundWriter(writer, close_seconds=writer.close_seconds)


@dataclasses.dataclass
class WandbConfig(base_config.Config):
  """The destination of `trainer.writers: [wandb]`.

  Attributes:
    project: The project of Weights & Biases.
    entity: The user or team. Empty: the default one.
    run_name: Empty: the name of the run's folder.
    mode: 'offline' writes files that `wandb sync` sends; 'online' sends at once.
  """

  CHOICES: ClassVar[Mapping[str, tuple[Any, ...]]] = {'mode': ('offline', 'online')}
  project: str = 'official_ext'
  entity: str = ''
  run_name: str = ''
  mode: str = 'offline'

  def check_run(self, path: str, params: Any, mode: str | None) -> None:
    """See `config.checks.check`. A run must not stop in the middle to request a key."""
    if self.mode != 'online' or 'wandb' not in params.trainer.writers or mode is None or 'train' not in mode:
      return
    package_imports.require('wandb', 'wandb', 'trainer.writers: wandb')
    import wandb  # pylint: disable=g-import-not-at-top

    if not wandb.login(prompt=False):
      raise errors.UserError(
        f'{path}.mode: online, and there is no key for Weights & Biases: run `wandb login`, set WANDB_API_KEY, or set '
        'it to offline'
      )


class WandbWriter(writers.Writer):
  """Logs to one W&B run, which a run that is started again continues.

  Its id is kept in the file wandb_run_id, in the run's folder. Metrics are 'train' values under their names and 'eval'
  values as `validation/<name>`, all of them over `global_step`. If a run returns to an earlier step, the steps in
  between are logged again, after a row with that step as `resumed_from`.
  """

  def __init__(
    self,
    model_dir: str,
    params: Mapping[str, Any],
    project: str = 'official_ext',
    entity: str = '',
    run_name: str = '',
    mode: str = 'offline',
  ):
    """Initializes the writer; writes nothing yet.

    Args:
      model_dir: the run's folder, on this machine; files go to the folder wandb in it.
      params: the configuration, nested.
      project: W&B's project.
      entity: W&B's user or team; empty: the default one.
      run_name: empty: the name of `model_dir`.
      mode: 'offline' or 'online'.
    """
    self._folder = model_dir
    self._arguments = (project, entity, run_name or os.path.basename(os.path.abspath(model_dir)), params, mode)
    self._run: Any = None
    self._exit_code = 1  # The exit status of a run that does not end by itself.

  def write(self, event: str, step: int, values: Mapping[str, Any]) -> None:
    """See base class."""
    if self._run is None:
      self._run = tracker_logs.wandb_run(self._id(), self._folder, *self._arguments, resume='allow')
    if event in ('train', 'eval', *run_files.GO_BACK):
      self._run.log(tracker_logs.wandb_row(event, step, writers.flatten(values)))
    elif event == 'early_stopped':
      self._run.summary[event] = str(values.get('reason', ''))
    elif event in run_files.LAST_EVENTS:
      self._exit_code = tracker_logs.wandb_exit_code(event)
      if 'error' in values:
        self._run.summary['error'] = str(values['error'])

  def close(self) -> None:
    """See base class."""
    if self._run is not None:
      self._run.finish(exit_code=self._exit_code)

  def _id(self) -> str:
    """The id of this run: the saved one, or a new one."""
    path = os.path.join(self._folder, tracker_logs.WANDB_NOTE)
    if paths.exists(path):
      return paths.read(path, local_files.MAX_RECORD).decode().strip()
    run_id = uuid.uuid4().hex[:12]
    storage.write(path, run_id + '\n')
    return run_id


def make_wandb(run: registry.RunInfo) -> writers.Writer:
  """Makes the writer of `trainer.wandb`, if the run trains: a parallel evaluation would take over its W&B run."""
  if not run.trains:
    return writers.Writers([])
  config = run.params.trainer.wandb
  params = safe_text.mask_values(run.params.as_dict())
  writer = WandbWriter(run.model_dir, params, config.project, config.entity, config.run_name, config.mode)
  return registry.BackgroundWriter(writer)
