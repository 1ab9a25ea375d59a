"""Saves the result of a run of fine-tuning as folders, loads them, and compares them with the model.

`task` is a `FineTuningTask`. The signature of an export has inputs with the names of the data, so that these verify it.
"""

from collections.abc import Callable, Mapping, Sequence
import os
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.base.files import paths
from official_ext.base.files import whole_folders
from official_ext.base.run_folder import model_folders
from official_ext.language.modeling import peft_folders
from official_ext.language.modeling import pretrained
from official_ext.training.actions import triggers
from official_ext.training.checkpoints import manifests
from official_ext.training.optimization import ema_optimizer
from official_ext.training.record import run_record


def signature_of(model: tf_keras.Model) -> Any | None:
  """The function that an exported model computes, for `Task.serving_function`.

  It takes `input_ids` and `segment_ids`, int32 [b, t]: see `Decoder.call`. It returns `logits`, float32: of a
  `LanguageModel` [b, t, vocab_size], of a `SequenceClassifier` [b, num_labels].

  Args:
    model: of a fine-tuning.

  Returns:
    A tf.function. None for a model with other classes than this library's: it may take other inputs.
  """
  try:
    pretrained.check_representable(model, model.name)
  except errors.UserError:
    return None
  specs = [tf.TensorSpec([None, None], tf.int32, name) for name in ('input_ids', 'segment_ids')]

  @tf.function(input_signature=specs, autograph=False)
  def serve(input_ids, segment_ids):
    return {'logits': model(input_ids, segments=segment_ids, training=False)}

  return serve


ADAPTER, MODEL = model_folders.RESULTS
_NUM_LOOKED_AT = 64
Writer = Callable[[str], None]


def writers(task: Any, model: tf_keras.Model) -> Mapping[str, Writer]:
  """Name of a folder of the result -> its writer: the adapters, if they are trained; the whole model otherwise, or
  if `save_merged` requests it too.

  Raises:
    UserError: the folders would represent another model: see pretrained.py.
  """
  config = task.config
  pretrained.check_representable(model, 'the result')

  def write_adapter(folder):
    peft_folders.save(model, folder)
    tokenizer = task.result_tokenizer
    tokenizer.save(folder)
    if tokenizer.stop_token_ids != task.tokenizer.stop_token_ids:
      pretrained.write_stops(folder, tokenizer.declared_stops)

  def write_model(folder):
    pretrained.save(task.merged_language_model(model), folder, tokenizer=task.result_tokenizer)
    if config.trains_adapters:
      model_folders.write_base(peft_folders.base_record_of(model), folder)

  found: dict[str, Writer] = {}
  if config.trains_adapters:
    found[ADAPTER] = write_adapter
  if config.save_merged or not config.trains_adapters:
    found[MODEL] = write_model
  return found


def classifier_writers(task: Any, model: tf_keras.Model) -> Mapping[str, Writer]:
  """Like `writers`, for a classifier: always the whole model. Warns if texts end with the padding token."""
  pretrained.check_representable(model, 'the result')
  tokenizer = task.result_tokenizer
  _report_last_tokens(task, pretrained.padding_token(model, tokenizer))
  return {MODEL: lambda folder: pretrained.save(task.merged_classifier(model), folder, tokenizer=tokenizer)}


def _report_last_tokens(task: Any, padding: object) -> None:
  """Warns if texts end with the padding token. In a folder transformers scores the last token that is another."""
  source = task.source(task.config.train_data)
  for row in source.fetch(range(min(_NUM_LOOKED_AT, len(source)))):
    for name in (name for name in row if name.endswith('segment_ids')):
      ids = row[f'{name.removesuffix("segment_ids")}input_ids'][row[name] > 0]
      if len(ids) and int(ids[-1]) == padding:
        logging.warning(
          'the result: texts end with %r, which is the padding token too: transformers scores the last token that is '
          'not padding, so another one than this model; name another pad_token in tokenizer_config.json, and its '
          'number in config.json (pad_token_id)',
          task.tokenizer.decode([padding]),
        )
        return


def save(writers_of_model: Mapping[str, Writer], folder: str) -> Mapping[str, str]:
  """Writes a result below a folder; returns name -> folder of each part saved."""
  folders = {name: os.path.join(folder, name) for name in writers_of_model}
  for name, write in writers_of_model.items():
    whole_folders.write(folders[name], write)
    logging.info('saved: %s', folders[name])
  return folders


def load(task: Any, name: str, folder: str) -> Any:
  """The model of one of the folders of `writers`."""
  if name == MODEL:
    return pretrained.load(folder)
  model = task.load_base()
  peft_folders.load(model, folder)
  return model


def check(task: Any, model: tf_keras.Model, folder: str) -> Sequence[str]:
  """Saves the result below a folder, and compares it, loaded again, with the original: see `Task.check_result`."""
  row = task.source(task.config.train_data).fetch([0])[0]
  prefix = next(name for name in row if name.endswith('input_ids')).removesuffix('input_ids')
  inputs = [tf.constant(row[f'{prefix}{name}'])[tf.newaxis] for name in ('input_ids', 'position_ids', 'segment_ids')]
  call = lambda model: np.asarray(model(*inputs))
  expected, lines = call(model), []
  # By how much of the largest one logits may differ, if they are computed once more in the run's precision.
  tolerance = 1e-3 if tf_keras.mixed_precision.global_policy().compute_dtype == 'float32' else 5e-2
  for name, place in task.save_result(model, folder).items():
    difference = float(np.abs(call(task.load_result(name, place)) - expected).max())
    if not difference <= tolerance * np.abs(expected).max():
      raise errors.UserError(f'{name}: saved and loaded again, its logits differ by {difference:.3g}')
    size = paths.folder_size(place) / 2**20
    lines.append(f'{name}: {size:,.1f} MiB, saved and loaded, logits differ by at most {difference:.2g}')
  return lines


class SaveAtEnd(triggers.AtEnd):
  """Saves the result. That it can be written is looked at before there is anything to be lost."""

  def __init__(self, task: Any, trainer: protocols.Trainer):
    super().__init__(lambda logs: self._save())
    self._task, self._trainer = task, trainer
    self._is_chief = trainer.strategy.extended.should_checkpoint

  def prepare(self, mode: str) -> None:
    """Checks that a folder can represent the result and can be written. Prints the base of adapters, and new ends."""
    task = self._task
    if task.output_dir and self._is_chief:
      task.result_writers(self._trainer.model)
      if task.config.trains_adapters:
        print(f'base: {peft_folders.base_record_of(self._trainer.model, has_digest=False).describe()}', flush=True)
      note = task.end_note() if 'train' in mode else ''
      if note:
        print(note, flush=True)
    if not (task.config.output_dir and self._is_chief):
      return
    field = f'task.output_dir: {task.config.output_dir}'
    run_record.check_writable(task.output_dir, field)
    inputs = {paths.real(path) for path in task.base_model or () if path}
    is_new = not manifests.complete_paths(task.logging_dir)
    for name in (ADAPTER, MODEL):
      folder = os.path.join(task.output_dir, name)
      if paths.real(folder) in inputs:
        raise errors.UserError(f'{field}: {folder} is the model that training begins with; name another folder')
      if is_new and paths.names(folder):
        raise errors.UserError(f'{field}: {folder} exists already; name another folder, or move it away')

  def _save(self) -> None:
    """Saves the averages of the weights, if the optimizer has some."""
    if not self._task.output_dir:
      logging.warning('task.output_dir: is empty, and the task was made without logging_dir: the result is not saved')
      return
    self._swap_averages()
    try:
      if self._is_chief:
        self._task.save_result(self._trainer.model)
    finally:
      self._swap_averages()

  def _swap_averages(self) -> None:
    ema = ema_optimizer.find(self._trainer.optimizer)
    if ema is not None:
      with self._trainer.strategy.scope():
        ema.swap_weights()
