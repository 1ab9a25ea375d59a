"""Keeps the checkpoints of the best evaluations."""

from collections.abc import Callable, Mapping, Sequence
import os
from typing import Any

from absl import logging
from official.core import train_utils
import tensorflow as tf

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base.files import storage
from official_ext.base.run_folder import run_status
from official_ext.training.checkpoints import best_history
from official_ext.training.checkpoints import exports
from official_ext.training.checkpoints import manifests
from official_ext.training.checkpoints import rollbacks as rollbacks_lib
from official_ext.training.checkpoints import state_file
from official_ext.training.config import definitions
from official_ext.training.devices import workers as workers_lib


class BestCheckpointExporter(train_utils.BestCheckpointExporter):
  """Exports a checkpoint if its metric is among the `num_to_keep` best: see base class.

  A metric that is not a finite number never wins; of equal ones, the earlier does. The checkpoint is complete, with its
  manifest, before info.json names it. The measurements of all steps are kept, so that a run that continues from an
  earlier checkpoint judges as it did then.

  The folder belongs to the training. An evaluation beside it or after it writes there only if `owns` says that the
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
    rollbacks: Callable[[], rollbacks_lib.Rollbacks | None] = lambda: None,
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
    self._found: list[best_history.Entry] | None = None  # Read when it is needed: a branch begins a new one.

  @property
  def _history(self) -> list[best_history.Entry]:
    if self._found is None:
      self._found = self._read()
    return self._found

  @property
  def best_ckpt_logs(self) -> json_types.JsonMapping:
    """The scalars of the best evaluation so far; those of the last one if none counts."""
    best = self._ranked()
    return (best[0] if best else self._history[-1])['logs'] if self._history else {}

  @property
  def best_ckpt_path(self) -> str | None:
    """The path of the best checkpoint; None if there is none yet."""
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
      new = best_history.entry(step, eval_logs, self._metric_name)
    except (KeyError, TypeError, ValueError) as error:
      raise best_history.missing(self._metric_name, step, eval_logs) from error
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
    if step in kept and not self._export(checkpoint, new):  # Those before it stay.
      new.update(value=None, is_saved=False)  # Excludes it, now and when it is read again.
      kept = [each['step'] for each in self._ranked()[: self._num_to_keep]]
    if self._is_chief:
      self._settle(kept, step, write_logs)
    return step in kept

  def _export(self, checkpoint: tf.train.Checkpoint, entry: best_history.Entry) -> bool:
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
      exports.write(checkpoint, path, is_kept, step=entry['step'], logs=entry['logs'], num_rollbacks=num)
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
    return [self._owns(), self._read()]

  def _read(self) -> list[best_history.Entry]:
    return best_history.read(self._export_dir, self._metric_name, self._records, self._rollbacks())

  def _end_unfinished_and_read(self) -> list[best_history.Entry]:
    try:
      exports.end_unfinished(self._export_dir, train_utils.BEST_CHECKPOINT_NAME)
    except storage.FAILURES as error:
      reason = storage.reason_of(error)
      logging.error('%s: an interrupted save cannot be completed: %s. The next save retries.', self._export_dir, reason)
    return self._read()

  def _ranked(self) -> list[json_types.JsonObject]:
    """The evaluations that count, best first."""
    sign = -1 if self._metric_comp == 'higher' else 1
    counted = [entry for entry in self._history if entry['value'] is not None]
    return sorted(counted, key=lambda entry: (sign * entry['value'], entry['step']))

  def _path(self, step: int) -> str:
    return os.path.join(self._export_dir, f'{train_utils.BEST_CHECKPOINT_NAME}-{step}')

  def _write(self, write_logs: bool) -> None:
    best_history.write(self._export_dir, self._history)
    best = self._ranked()
    if not best:
      return
    if write_logs:
      info = {**best[0]['logs'], 'best_ckpt_global_step': float(best[0]['step'])}
      best_history.write_json(self.best_ckpt_logs_path, info)
    state_file.write(self._export_dir, self._path(best[0]['step']))

  def _delete_all_but(self, kept: Sequence[int], step: int) -> None:
    """Deletes checkpoints that are no longer among the best. Those that were never judged stay."""
    known = {entry['step'] for entry in self._history}
    for path in manifests.paths(self._export_dir, train_utils.BEST_CHECKPOINT_NAME):
      number = manifests.step_of(path)
      if number in kept:
        continue
      if self._owns is not None:
        outranked = number in known
      else:  # A later one is from a future that this run has not reached again.
        outranked = number <= step and (number in known or best_history.logs_of(path) is not None)
      if outranked:
        manifests.remove(path)


def training_evaluates(model_dir: str) -> bool:
  """Whether the training in a folder evaluates by itself, according to its run.json; false if there is none."""
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
  """Makes the exporter of the configuration; None if there is none.

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
    config.best_checkpoint_metric_comp,
    config.best_checkpoints_to_keep,
    is_chief,
    records=[os.path.join(model_dir, name) for name in names],
    owns=owns,
    rollbacks=lambda: rollbacks_lib.Rollbacks(model_dir),
    from_chief=(workers or workers_lib.Workers()).from_chief,
  )
