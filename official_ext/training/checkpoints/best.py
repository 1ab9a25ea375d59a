"""Keeps the checkpoints of the best evaluations.

history.json lists the evaluations of these checkpoints. If it is damaged or missing, it is rebuilt from their
manifests, the run's events and info.json.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import itertools
import math
import os
from typing import Any

from absl import logging
import numpy as np
from official.core import train_utils
import orbit
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_values
from official_ext.base.files import paths
from official_ext.base.files import storage
from official_ext.base.run_folder import metric_direction
from official_ext.base.run_folder import run_status
from official_ext.training.checkpoints import exported_weights
from official_ext.training.checkpoints import listing
from official_ext.training.checkpoints import manifests
from official_ext.training.config import definitions
from official_ext.training.devices import workers as workers_lib
from official_ext.training.writers import writers

_NAME = 'history.json'
_INFO = 'info.json'
_MAX_BYTES = 1 << 30  # Of all evaluations of a long run.
_INFO_STEP = 'best_ckpt_global_step'
# The keys of an 'eval' event that are not logs.
_OF_EVENTS = ('time', 'event', 'step', 'seconds')

Measurement = json_values.JsonObject


def measurement(step: int, logs: Mapping[str, object], metric: Sequence[str]) -> Measurement:
  """One evaluation: its step, the metric's value (None if it is not a finite number), and the scalars of its logs.

  Raises:
    KeyError: the logs do not have the metric.
    TypeError: it is not a single number.
  """
  value = _leaf(logs, metric)
  return {'step': int(step), 'value': value if math.isfinite(value) else None, 'logs': _scalars(logs)}


def read_history(
  folder: str,
  metric: Sequence[str],
  records: Iterable[str] = (),
  rollbacks: listing.Rollbacks | None = None,
) -> list[Measurement]:
  """The evaluations in the file of a folder, by step.

  A sound checkpoint in the folder whose step is not in the file counts too, with the logs in its manifest: the file may
  be older than the checkpoint. If the file is missing or damaged, its logs may also be in the records of the run
  (`events.jsonl`), or in info.json. Values are read for `metric`, even if the file was written for another one.

  Args:
    folder: of the best checkpoints; it need not exist.
    metric: the levels of the metric's name.
    records: paths of files of events, of which the later ones win.
    rollbacks: the run's rollbacks; a rolled-back checkpoint counts only if the file lists its step.
  """
  path = os.path.join(folder, _NAME)
  stored, damage = _read_list(path)
  found = {each['step']: each for each in (_checked(one, metric) for one in stored or ()) if each is not None}
  if stored is not None and len(found) < len(stored):
    damage = f'{len(stored) - len(found)} of its {len(stored)} entries are damaged'
  before = len(found)
  found = {**_rebuilt(folder, metric, records if damage else (), found, rollbacks), **found}
  if damage is None and len(found) > before:
    logging.warning('%s: lacks %d evaluations of the best checkpoints beside it: added.', path, len(found) - before)
  if damage is not None:
    if paths.exists(path) or found:
      logging.error(
        '%s: %s. Rebuilt from the best checkpoints beside it: %d evaluations, and %d that could be read.',
        path,
        damage,
        len(found) - before,
        before,
      )
  return [found[step] for step in sorted(found)]


def write_history(folder: str, history: Sequence[Measurement]) -> None:
  """Replaces the file."""
  storage.write_bytes(os.path.join(folder, _NAME), json_values.encode(list(history)))


def missing_measurements(metric: Sequence[str], step: int, logs: Mapping[str, object]) -> errors.UserError:
  """The error to raise if an evaluation does not report the metric as one number."""
  return errors.UserError(
    f'trainer.best_checkpoint_eval_metric: {"|".join(metric)}: is not a number among the metrics of step {step}: '
    f'{", ".join(sorted(_scalars(logs)))}'
  )


def best_step(folder: str) -> int | None:
  """The step of the best checkpoint in a folder of best checkpoints, by info.json; None if it does not say."""
  step = (json_values.read_file(os.path.join(folder, _INFO)) or {}).get(_INFO_STEP)
  return int(step) if json_values.is_finite(step) else None


def value_in(logs: Mapping[str, object], metric: Sequence[str]) -> object | None:
  """The metric in logs, nested or joined by '/'; None if they do not have it."""
  try:
    return train_utils.get_leaf_nested_dict(dict(logs), list(metric))
  except KeyError:
    return logs.get('/'.join(metric))


def _leaf(logs: Mapping[str, object], metric: Sequence[str]) -> float:
  value = value_in(logs, metric)
  if value is None:
    raise KeyError('|'.join(metric))
  return float(orbit.utils.get_value(value))


def _read_list(path: str) -> tuple[list[object] | None, str | None]:
  """(the contents of the file, its error)."""
  try:
    return json_values.load_list_file(path, _MAX_BYTES), None
  except ValueError as error:
    return None, f'it is damaged ({" ".join(str(error).split())})'
  except FileNotFoundError:
    return None, 'it is missing'
  except OSError as error:
    return None, f'it cannot be read ({error.strerror or error})'


def _checked(found: object, metric: Sequence[str]) -> Measurement | None:
  """An entry of the file, judged by `metric`; None if it is not an entry."""
  if not isinstance(found, dict) or not isinstance(found.get('logs'), dict) or not _is_step(found.get('step')):
    return None
  if found.get('is_saved') is False:
    return {**found, 'value': None}
  return _from_logs(found['step'], found['logs'], metric) or {**found, 'value': None}


def _from_logs(step: Any, logs: json_values.JsonMapping, metric: Sequence[str]) -> Measurement | None:
  try:
    return measurement(step, logs, metric)
  except (KeyError, TypeError, ValueError):
    return None


def _is_step(step: object) -> bool:
  return isinstance(step, int) and not isinstance(step, bool) and step >= 0


def _rebuilt(
  folder: str,
  metric: Sequence[str],
  records: Iterable[str],
  without: Iterable[int],
  rollbacks: listing.Rollbacks | None,
) -> dict[int, Measurement]:
  """The evaluations of the sound checkpoints in the folder, as far as known: others cannot be the best."""
  found: dict[int, Measurement] = {}
  unknown = []
  for path in manifests.complete_paths(folder, train_utils.BEST_CHECKPOINT_NAME):
    step = manifests.step_of(path)
    is_left_behind = rollbacks is not None and listing.is_rolled_back(path, rollbacks)
    if step not in without and not is_left_behind and manifests.find_damage(path) is None:
      logs = logs_of(path)
      known = None if logs is None else _from_logs(step, logs, metric)
      if known is None:
        unknown.append(step)
      else:
        found[step] = known
  for step, logs in _logs_elsewhere(folder, records) if unknown else ():
    known = _from_logs(step, logs, metric) if step in unknown else None
    if known is not None:
      found[step] = known
  return found


def logs_of(path: str) -> json_values.JsonObject | None:
  """The logs in the manifest of a best checkpoint; None if it has none."""
  try:
    logs = manifests.read(path).get('logs')
  except (ValueError, OSError, tf.errors.OpError):
    return None
  return logs if isinstance(logs, dict) else None


def _logs_elsewhere(folder: str, records: Iterable[str]) -> list[tuple[int, json_values.JsonObject]]:
  """(step, logs) of the evaluations in the run's records and in info.json."""
  found = [
    (event['step'], {name: value for name, value in event.items() if name not in _OF_EVENTS})
    for path in records
    for event in _evaluations(path)
  ]
  info = json_values.read_file(os.path.join(folder, _INFO)) or {}
  step = info.pop(_INFO_STEP, None)
  return found + ([(int(step), info)] if isinstance(step, float) and step.is_integer() else [])


def _evaluations(path: str) -> list[json_values.JsonObject]:
  try:
    events = writers.read_events(path)
  except (ValueError, KeyError, TypeError, OSError):  # That file has its own readers, which report it.
    return []
  return [event for event in events if event['event'] == 'eval' and _is_step(event.get('step'))]


def _scalars(logs: Mapping[str, object]) -> dict[str, object]:
  """The numbers in (nested) logs, as Python floats."""
  found: dict[str, object] = {}
  for name, value in logs.items():
    if isinstance(value, Mapping):
      found[name] = _scalars(value)
      continue
    array = np.asarray(orbit.utils.get_value(value))
    if array.size == 1 and array.dtype.kind in 'fiub':
      found[name] = float(array.reshape(()))
  return found


class BestCheckpointExporter(train_utils.BestCheckpointExporter):
  """Exports a checkpoint if its metric is among the `num_to_keep` best: see base class.

  A metric that is not a finite number never wins; of equal ones, the earlier does. The checkpoint is complete, with its
  manifest, before info.json names it. The measurements of all steps are kept, so that a run that continues from an
  earlier checkpoint judges as it did then.

  The folder belongs to the training. An evaluation in another process writes there only if `owns` says that the
  training does not evaluate; it then adds its measurements, in any order of the steps.
  """

  def __init__(
    self,
    export_dir: str,
    metric_name: str,
    metric_comp: str,
    num_to_keep: int = 1,
    is_chief: bool = True,
    *,
    records: Sequence[str] = (),
    owns: Callable[[], bool] | None = None,
    rollbacks: Callable[[], listing.Rollbacks | None] = lambda: None,
    from_chief: Callable[[str, Callable[[], Any]], Any] = lambda topic, make: make(),
  ):
    """Initializes the exporter; writes nothing.

    Args:
      export_dir: the folder of the best checkpoints.
      metric_name: the metric; `|` separates the levels of nested logs.
      metric_comp: 'higher' or 'lower', which is better.
      num_to_keep: how many checkpoints are kept.
      is_chief: whether this worker's files count.
      records: paths of the files of events from which a damaged history is rebuilt.
      owns: called at every evaluation of a process that does not train: whether it may write to the folder; None for
        the training itself, whose folder it is.
      rollbacks: called at every evaluation: the rollbacks of the run so far; None if it keeps no record of them.
      from_chief: makes a value on the chief and gives it to all workers.
    """
    self._export_dir = export_dir
    self._metric_name = metric_name.split('|')
    self._metric_comp = metric_comp
    self._num_to_keep = num_to_keep
    self._is_chief = is_chief
    self._records = tuple(records)
    self._owns = owns
    self._rollbacks = rollbacks
    self._from_chief = from_chief
    self._found: list[Measurement] | None = None  # Read when it is needed: a branch begins a new one.

  @property
  def _history(self) -> list[Measurement]:
    if self._found is None:
      self._found = self._read()
    return self._found

  @property
  def best_ckpt_logs(self) -> json_values.JsonMapping:
    """The scalars of the best evaluation so far; of the last one if none counts."""
    best = self._ranked()
    return (best[0] if best else self._history[-1])['logs'] if self._history else {}

  @property
  def best_ckpt_path(self) -> str | None:
    """The path of the best checkpoint, if any yet."""
    best = self._ranked()
    return self._path(best[0]['step']) if best else None

  def maybe_export_checkpoint(
    self, checkpoint: tf.train.Checkpoint, eval_logs: Mapping[str, object], global_step: int, write_logs: bool = True
  ) -> bool:
    """Notes an evaluation, and exports `checkpoint` if it is among the best.

    Args:
      checkpoint: the object to save.
      eval_logs: the logs of the evaluation.
      global_step: its step.
      write_logs: whether to write info.json.

    Returns:
      Whether the checkpoint is among the best, and this process may write to the folder.

    Raises:
      UserError: the evaluation does not report the metric.
    """
    step = int(global_step)
    try:
      new = measurement(step, eval_logs, self._metric_name)
    except (KeyError, TypeError, ValueError) as error:
      raise missing_measurements(self._metric_name, step, eval_logs) from error
    if self._owns is None:
      if self._found is None:
        self._found = self._from_chief('best checkpoints', self._end_unfinished_and_read)
      # A run that has rolled back measures these steps again.
      before = [each for each in self._history if each['step'] < step]
    else:
      is_ours, self._found = self._from_chief('best checkpoints', self._look)
      if not is_ours:
        return False
      before = [each for each in self._history if each['step'] != step]
    if new['value'] is None:
      logging.warning('%s is not finite at step %d: no best checkpoint.', '|'.join(self._metric_name), step)
    self._found = sorted([*before, new], key=lambda each: each['step'])
    kept = [each['step'] for each in self._ranked()[: self._num_to_keep]]
    if step in kept and not self._export(checkpoint, new):  # Earlier ones stay.
      new.update(value=None, is_saved=False)  # Excludes it, now and when it is read again.
      kept = [each['step'] for each in self._ranked()[: self._num_to_keep]]
    if self._is_chief:
      self._settle(kept, step, write_logs)
    return step in kept

  def _export(self, checkpoint: tf.train.Checkpoint, entry: Measurement) -> bool:
    """Writes a checkpoint. Returns whether the chief has: workers must agree on which are the best."""
    saved, path, num = True, self._path(entry['step']), 0
    try:
      if self._is_chief:  # Only its manifest counts.
        num = len(self._rollbacks() or ())
    except errors.CheckpointError as error:
      saved = False
      logging.error('%s: not saved as one of the best: %s. The best ones before it stay.', path, error)
    try:  # Without the number too: all workers read the variables together.
      is_kept = self._is_chief and saved
      exported_weights.write_export(
        checkpoint, path, is_kept, step=entry['step'], logs=entry['logs'], num_rollbacks=num
      )
    except errors.StorageError as error:
      saved = False
      logging.error(
        '%s: could not be saved as one of the best: %s. The best ones before it stay.', path, storage.reason_of(error)
      )
    return self._from_chief('best checkpoint saved', lambda: saved)

  def _settle(self, kept: Sequence[int], step: int, write_logs: bool) -> None:
    """Notes which are the best, and then deletes the others. If the former fails, the checkpoints in the files stay."""
    try:
      self._write(write_logs)
      self._delete_all_but(kept, step)
    except (errors.StorageError, *storage.FAILURES) as error:
      logging.error(
        '%s: could not be written: %s. The next evaluation retries it.', self._export_dir, storage.reason_of(error)
      )

  def _look(self) -> list[Any]:
    """[whether this process may write to the folder, the history on disk], because another process may have written."""
    assert self._owns is not None
    return [self._owns(), self._with_saved_best(self._read())]

  def _read(self) -> list[Measurement]:
    return read_history(self._export_dir, self._metric_name, self._records, self._rollbacks())

  def _end_unfinished_and_read(self) -> list[Measurement]:
    try:
      exported_weights.end_unfinished_exports(self._export_dir, train_utils.BEST_CHECKPOINT_NAME)
    except storage.FAILURES as error:
      reason = storage.reason_of(error)
      logging.error('%s: an interrupted save cannot be completed: %s. The next save retries.', self._export_dir, reason)
    return self._with_saved_best(self._read())

  def _with_saved_best(self, history: list[Measurement]) -> list[Measurement]:
    """Excludes, in place, what is better than all that was kept: it was judged by another metric or direction."""
    saved = {
      manifests.step_of(path) for path in manifests.complete_paths(self._export_dir, train_utils.BEST_CHECKPOINT_NAME)
    }
    lost = list(itertools.takewhile(lambda entry: entry['step'] not in saved, self._ranked(history)))
    if lost:
      logging.warning(
        '%s: %s was best at step %d, whose checkpoint was not kept: %d evaluations like it do not count.',
        self._export_dir,
        '|'.join(self._metric_name),
        lost[0]['step'],
        len(lost),
      )
    for entry in lost:
      entry.update(value=None, is_saved=False)
    return history

  def _ranked(self, history: Sequence[Measurement] | None = None) -> list[json_values.JsonObject]:
    """The evaluations that count, best first."""
    sign = -1 if self._metric_comp == 'higher' else 1
    counted = [entry for entry in (self._history if history is None else history) if entry['value'] is not None]
    return sorted(counted, key=lambda entry: (sign * entry['value'], entry['step']))

  def _path(self, step: int) -> str:
    return os.path.join(self._export_dir, f'{train_utils.BEST_CHECKPOINT_NAME}-{step}')

  def _write(self, write_logs: bool) -> None:
    write_history(self._export_dir, self._history)
    best = self._ranked()
    if not best:
      return
    if write_logs:
      info = {**best[0]['logs'], 'best_ckpt_global_step': float(best[0]['step'])}
      storage.write_bytes(self.best_ckpt_logs_path, json_values.encode(info))
    manifests.write_state_file(self._export_dir, self._path(best[0]['step']))

  def _delete_all_but(self, kept: Sequence[int], step: int) -> None:
    """Deletes checkpoints that are no longer among the best. Checkpoints that were never judged stay."""
    known = {entry['step'] for entry in self._history}
    for path in manifests.complete_paths(self._export_dir, train_utils.BEST_CHECKPOINT_NAME):
      number = manifests.step_of(path)
      if number in kept:
        continue
      if self._owns is not None:
        outranked = number in known
      else:  # A later one is from a future that this run has not reached again.
        outranked = number <= step and (number in known or logs_of(path) is not None)
      if outranked:
        manifests.remove(path)


def training_evaluates(model_dir: str) -> bool:
  """Whether the training in a folder evaluates by itself, according to its run.json; false without one."""
  record = run_status.read(model_dir) or {}
  return bool(record.get('evaluates', record.get('mode', 'train') != 'train'))


def ownership(mode: str, model_dir: str) -> Callable[[], bool] | None:
  """Returns whether a process may write the best checkpoints of a training; None: always, it is the training.

  `eval` never writes there, `continuous_eval` only if the training does not evaluate.

  Args:
    mode: the driver's mode of that process.
    model_dir: the run's folder.
  """
  return {'eval': lambda: False, 'continuous_eval': lambda: not training_evaluates(model_dir)}.get(mode)


def maybe_create(
  config: definitions.TrainerConfig,
  model_dir: str | None,
  mode: str,
  is_chief: bool = True,
  workers: workers_lib.Workers | None = None,
) -> BestCheckpointExporter | None:
  """Makes the exporter of the configuration; None if it keeps no best checkpoints.

  Args:
    config: names the metric, and the folder.
    model_dir: the run's folder.
    mode: the driver's: see `ownership`.
    is_chief: whether this worker's files count.
    workers: all that evaluate together.
  """
  if not (model_dir and config.best_checkpoint_export_subdir and config.best_checkpoint_eval_metric):
    return None
  owns = ownership(mode, model_dir)
  names = ['events.jsonl'] if owns is None else ['events.jsonl', 'events.continuous_eval.jsonl']
  return BestCheckpointExporter(
    os.path.join(model_dir, config.best_checkpoint_export_subdir),
    config.best_checkpoint_eval_metric,
    metric_direction.comparison(config.best_checkpoint_eval_metric, config.best_checkpoint_metric_comp),
    config.best_checkpoints_to_keep,
    is_chief,
    records=[os.path.join(model_dir, name) for name in names],
    owns=owns,
    rollbacks=lambda: listing.Rollbacks(model_dir),
    from_chief=(workers or workers_lib.Workers()).from_chief,
  )
