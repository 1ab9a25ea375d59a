"""Runs in the local files of Weights & Biases: `wandb/offline-run-*/run-*.wandb`. No TensorFlow.

Each file is a run. wandb has no reader of them in Python: its records are protocol buffers, of wandb's own definition.
"""

from collections.abc import Callable, Iterable, Iterator
import json
import math
import os
import re
from typing import Any

from official_ext.base import json_types
from official_ext.base import optional_packages
from official_ext.operations.imports import logged_values
from official_ext.operations.imports import record_logs
from official_ext.operations.imports import source_runs

_FILE = re.compile(r'run-.+\.wandb')
_ALL = '*'


def find(source: str) -> Iterator[source_runs.SourceRun]:
  """The runs in a folder and in those below it, by path.

  Args:
    source: the absolute path of the folder, or of a file.
  """
  paths = [source] if os.path.isfile(source) and source.endswith('.wandb') else []
  for folder, names in source_runs.walk(source):
    paths += [os.path.join(folder, name) for name in names if _FILE.fullmatch(name)]
  for path in paths:
    yield source_runs.SourceRun('wandb', path, source_runs.stamp_of([path]), _reader(path))


def _reader(path: str) -> Callable[[], source_runs.Content]:
  return lambda: _Log(path).read()


class _Log:
  """Reads a file."""

  def __init__(self, path: str):
    self._path = path
    self._values = logged_values.LoggedValues()
    self._config: json_types.JsonObject = {}
    self._run: Any = None
    self._exit: int | None = None
    self._step_name = ''  # The metric that is the axis of all others, if the run has defined one.
    self._step: int | None = None

  def read(self) -> source_runs.Content:
    """The content of the run.

    Raises:
      UserError: wandb is not installed.
      UnreadableRunError: the file is damaged before the run begins.
    """
    optional_packages.require('wandb', 'wandb', 'runs import')
    damage = ''
    try:
      self._read_records()
    except (record_logs.DamagedError, OSError) as error:
      damage = str(error.strerror or error if isinstance(error, OSError) else error)
    if self._run is None:
      raise source_runs.UnreadableRunError(f'{self._path}: {damage or "ends before its run begins"}')
    run, project = self._run, self._run.project
    name = run.display_name or run.run_id
    return source_runs.Content(
      f'{project}/{name}' if project else name,
      self._values,
      experiment=project,
      config=self._config,
      tags=tuple(run.tags),
      note=run.notes,
      host=run.host,
      started=run.start_time.seconds + run.start_time.nanos / 1e9 if run.start_time.seconds else None,
      status='finished' if self._exit == 0 else 'failed',
      error=self._error(damage),
      is_end_known=True,
      damage=(f'{self._path}: {damage}; only values before it are imported',) if damage else (),
    )

  def _error(self, damage: str) -> str:
    if self._exit is not None:
      return f'exit status {self._exit}' if self._exit else ''
    return f'its file is {damage}' if damage else 'its file has no end: it was killed, or still ran at the import'

  def _read_records(self) -> None:
    from google.protobuf import message  # pylint: disable=g-import-not-at-top
    from wandb.proto import wandb_internal_pb2  # pylint: disable=g-import-not-at-top

    definitions: Any = wandb_internal_pb2  # Generated, without types.
    for data in record_logs.leveldb_records(self._path):
      try:
        record = definitions.Record.FromString(data)
      except message.DecodeError:
        raise record_logs.DamagedError('has a record that is not one of W&B') from None
      kind = record.WhichOneof('record_type')
      if kind == 'run':
        self._run = record.run
        self._change_config(record.run.config)
      elif kind == 'config':
        self._change_config(record.config)
      elif kind == 'metric' and record.metric.glob_name == _ALL and record.metric.step_metric:
        self._step_name = record.metric.step_metric
      elif kind == 'history':
        self._add(record.history)
      elif kind == 'exit':
        self._exit = record.exit.exit_code

  def _change_config(self, config: Any) -> None:
    for item in config.update:
      *folders, name = _path_of(item)
      values = self._config
      for folder in folders:
        found = values.get(folder)
        values[folder] = values = found if isinstance(found, dict) else {}
      values[name] = _json(item.value_json)
    for item in config.remove:
      values = self._config
      *folders, name = _path_of(item)
      for folder in folders:
        values = values.get(folder) or {}
      values.pop(name, None)
    self._config.pop('_wandb', None)

  def _add(self, history: Any) -> None:
    numbers = dict(_numbers((_path_of(item), item.value_json) for item in history.item))
    moment = numbers.get('_timestamp', float('nan'))
    step = _whole(numbers.get('_step'), history.step.num)
    if self._step_name:
      self._step = _whole(numbers.get(self._step_name), self._step)
      step = step if self._step is None else self._step
    for name, value in numbers.items():
      if not name.startswith('_') and name != self._step_name:
        self._values.add(name, step, moment, value)


def _whole(value: float | None, otherwise: Any) -> Any:
  """A number as an integer, if it is one."""
  return int(value) if value is not None and math.isfinite(value) and value == int(value) else otherwise


def _path_of(item: Any) -> tuple[str, ...]:
  return tuple(item.nested_key) or (item.key,)


def _numbers(items: Iterable[tuple[tuple[str, ...], str]]) -> Iterator[tuple[str, float]]:
  """The names and values of numbers. Those of a mapping have the names that W&B shows: `losses.box`."""
  for path, text in items:
    name = '.'.join(path)
    try:
      yield name, float(text)
      continue
    except ValueError:
      pass
    if text.startswith('{') and '"_type"' not in text:  # With it: an image, a histogram, ...
      found = _json(text)
      if isinstance(found, dict):
        yield from _numbers(((*path, str(key)), json.dumps(value)) for key, value in found.items())


def _json(text: str) -> json_types.Json:
  """A value of JSON; the text itself if it is invalid."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError):
    return text
