"""Keeps the checkpoints of the best evaluations."""

import json
import os
import shutil
import tempfile
from typing import Any, Dict, List, Mapping, Optional

from absl import logging
import numpy as np
import orbit
import tensorflow as tf

from official.core import train_utils
from official_ext.core import averaged_weights
from official_ext.core import config_definitions
from official_ext.core import errors
from official_ext.core import files
from official_ext.core import manifests

_HISTORY = 'history.json'


class BestCheckpointExporter(train_utils.BestCheckpointExporter):
  """Exports a checkpoint where its metric is among the `num_to_keep` best: see base class.

  A metric that is not a finite number never wins; of equal ones the earlier does. The checkpoint is complete, with its
  manifest, before info.json names it. What was measured is kept for every step, so that a run that goes on from an
  earlier checkpoint judges as it did then.
  """

  def __init__(
      self, export_dir: str, metric_name: str, metric_comp: str, num_to_keep: int = 1, is_chief: bool = True
  ):
    """Makes an exporter. Writes nothing.

    Args:
      export_dir: the folder of the best checkpoints.
      metric_name: the metric; `|` separates the levels of nested logs.
      metric_comp: 'higher' or 'lower': what is better.
      num_to_keep: how many checkpoints are kept.
      is_chief: whether this worker's files count.
    """
    self._export_dir = export_dir
    self._metric_name = metric_name.split('|')
    self._metric_comp = metric_comp
    self._num_to_keep = num_to_keep
    self._is_chief = is_chief
    self._history: List[Dict[str, Any]] = self._read_history()

  @property
  def best_ckpt_logs(self) -> Mapping[str, Any]:
    """The scalars of the best evaluation so far; those of the last one where none counts."""
    best = self._ranked()
    return (best[0] if best else self._history[-1])['logs'] if self._history else {}

  @property
  def best_ckpt_path(self) -> Optional[str]:
    """Path of the best checkpoint; None where there is none yet."""
    best = self._ranked()
    return self._prefix(best[0]['step']) if best else None

  def maybe_export_checkpoint(
      self, checkpoint: tf.train.Checkpoint, eval_logs: Mapping[str, Any], global_step: int, write_logs: bool = True
  ) -> bool:
    """Notes an evaluation, and exports `checkpoint` where it is among the best.

    Args:
      checkpoint: what to save.
      eval_logs: the logs of the evaluation.
      global_step: its step.
      write_logs: whether to write info.json.

    Returns:
      Whether the checkpoint is among the best.
    """
    step = int(global_step)
    value = float(orbit.utils.get_value(train_utils.get_leaf_nested_dict(dict(eval_logs), self._metric_name)))
    if not np.isfinite(value):
      logging.warning('%s is %s at step %d: no best checkpoint.', '|'.join(self._metric_name), value, step)
    # A run that went back measures these steps again.
    self._history = [entry for entry in self._history if entry['step'] < step]
    self._history.append({'step': step, 'value': value if np.isfinite(value) else None, 'logs': _scalars(eval_logs)})
    kept = [entry['step'] for entry in self._ranked()[:self._num_to_keep]]
    if step in kept:
      try:
        self._export(checkpoint, step)
      except files.FAILURES as error:
        kept = self._without(step, error)
    if self._is_chief:
      self._try_to_write(write_logs)
      for prefix in manifests.prefixes(self._export_dir, train_utils.BEST_CHECKPOINT_NAME):
        # A later one belongs to a future that this run has not reached again.
        if manifests.step_of(prefix) <= step and manifests.step_of(prefix) not in kept:
          manifests.remove(prefix)
    return step in kept

  def _without(self, step: int, error: BaseException) -> List[int]:
    """Lets an evaluation not count whose checkpoint could not be written: those before it stay. Returns their steps."""
    logging.error('%s: could not be saved as one of the best: %s. The best ones before it stay.',
                  self._prefix(step), files.reason_of(error))
    if self._is_chief:
      manifests.remove_partial(self._prefix(step))
    self._history[-1]['value'] = None
    return [entry['step'] for entry in self._ranked()[:self._num_to_keep]]

  def _try_to_write(self, write_logs: bool) -> None:
    try:
      self._write(write_logs)
    except (errors.StorageError, *files.FAILURES) as error:
      logging.error('%s: could not be written: %s. The next evaluation tries again.', self._export_dir,
                    files.reason_of(error))

  def _ranked(self) -> List[Dict[str, Any]]:
    """The evaluations that count, best first."""
    sign = -1 if self._metric_comp == 'higher' else 1
    counted = [entry for entry in self._history if entry['value'] is not None]
    return sorted(counted, key=lambda entry: (sign * entry['value'], entry['step']))

  def _prefix(self, step: int) -> str:
    return os.path.join(self._export_dir, f'{train_utils.BEST_CHECKPOINT_NAME}-{step}')

  def _export(self, checkpoint: tf.train.Checkpoint, step: int) -> None:
    if not self._is_chief:  # All workers take part in reading the variables.
      folder = tempfile.mkdtemp()
      checkpoint.write(os.path.join(folder, 'ckpt'))
      shutil.rmtree(folder, ignore_errors=True)
      return
    tf.io.gfile.makedirs(self._export_dir)
    manifests.remove_unfinished(self._export_dir, train_utils.BEST_CHECKPOINT_NAME)
    manifests.write(checkpoint.write(self._prefix(step)), step=step, **averaged_weights.note(checkpoint))

  def _write(self, write_logs: bool) -> None:
    tf.io.gfile.makedirs(self._export_dir)
    _write_json(os.path.join(self._export_dir, _HISTORY), self._history)
    best = self._ranked()
    if not best:
      return
    if write_logs:
      info = {**best[0]['logs'], 'best_ckpt_global_step': float(best[0]['step'])}
      _write_json(self.best_ckpt_logs_path, info)
    tf.__internal__.train.update_checkpoint_state(self._export_dir, self._prefix(best[0]['step']))

  def _read_history(self) -> List[Dict[str, Any]]:
    path = os.path.join(self._export_dir, _HISTORY)
    if not tf.io.gfile.exists(path):
      return []
    with tf.io.gfile.GFile(path) as f:
      try:
        history = json.loads(f.read())
      except json.JSONDecodeError:
        logging.error('%s is damaged: the best checkpoint is looked for among the evaluations to come.', path)
        return []
    return [entry for entry in history if isinstance(entry, dict) and {'step', 'value', 'logs'} <= set(entry)]


def maybe_create(
    params: config_definitions.ExperimentConfig, model_dir: Optional[str], is_chief: bool = True
) -> Optional[BestCheckpointExporter]:
  """The exporter that the configuration asks for; None where it asks for none."""
  trainer = params.trainer
  if not (model_dir and trainer.best_checkpoint_export_subdir and trainer.best_checkpoint_eval_metric):
    return None
  return BestCheckpointExporter(
      os.path.join(model_dir, trainer.best_checkpoint_export_subdir),
      trainer.best_checkpoint_eval_metric,
      trainer.best_checkpoint_metric_comp,
      trainer.best_checkpoints_to_keep,
      is_chief,
  )


def _scalars(logs: Mapping[str, Any]) -> Dict[str, Any]:
  """The numbers in (nested) logs, as Python floats."""
  found: Dict[str, Any] = {}
  for name, value in logs.items():
    if isinstance(value, Mapping):
      found[name] = _scalars(value)
      continue
    array = np.asarray(orbit.utils.get_value(value))
    if array.size == 1 and array.dtype.kind in 'fiub':
      found[name] = float(array.reshape(()))
  return found


def _write_json(path: str, content: Any) -> None:
  files.write(path, json.dumps(content, indent=2) + '\n')
