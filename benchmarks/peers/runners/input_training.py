"""Steps on data from files: how long they wait for input, by this library's trainer and by Model Garden's."""

from collections.abc import Mapping
import pathlib
import shutil
import tempfile
from typing import Any

import official_ext as ext  # Before tensorflow.

# isort: split
from official.core import base_trainer as garden_trainer
import tensorflow as tf
import tf_keras

from benchmarks.peers import protocol
from benchmarks.peers.runners import inputs
from benchmarks.peers.runners import tasks
from benchmarks.peers.work import decoder as decoder_work
from official_ext.training.loop import base_trainer

_STEPS = 10


def measurement(work: None, data: str, kind: str) -> protocol.Measurement:
  """Steps, in whole loops.

  Args:
    work: nothing; the data are made here, the same for all.
    data: see `inputs.dataset`.
    kind: see `inputs.dataset`; Model Garden's trainer has 'input_reader'.
  """
  del work
  folder = pathlib.Path(tempfile.mkdtemp(prefix='bench-input-'))
  settings = tasks.experiment(decoder_work.decoder(1), steps_per_loop=_STEPS)  # Optimizer, length of a loop.
  settings.task.train_data.global_batch_size = inputs.batch_size(data)
  is_stock = kind == 'input_reader'
  if is_stock:
    settings.runtime.enable_xla = False
  trainer_cls = garden_trainer.Trainer if is_stock else base_trainer.Trainer
  strategy, trainer = tasks.make_trainer(None, settings, _task_class(data, kind, folder), trainer_cls)

  def run(num_steps: int) -> Mapping[str, float]:
    waited = seconds = 0.0
    with strategy.scope():
      for _ in range(num_steps // _STEPS):
        logs = trainer.train(tf.constant(_STEPS))
        if not is_stock:
          waited, seconds = waited + trainer.speed.data_wait_seconds, seconds + trainer.speed.seconds
    waits = {} if is_stock else {'data_wait': waited / max(seconds, 1e-9)}
    return {'loss': float(logs['training_loss']), **waits}

  parameters = lambda: sum(variable.shape.num_elements() for variable in trainer.model.trainable_variables)
  note = lambda: 'InputReader' if is_stock else str(trainer.plan)
  close = lambda: shutil.rmtree(folder, ignore_errors=True)
  return protocol.Measurement(run, _STEPS, parameters(), note=note, close=close)


def _task_class(data: str, kind: str, folder: pathlib.Path) -> type[ext.Task]:
  """A task that learns the data."""

  class InputTask(ext.Task):
    """See `_task_class`."""

    def build_model(self):
      return _MODELS[data]()

    def build_inputs(self, params, input_context=None):
      return inputs.dataset(data, kind, folder)

    def build_metrics(self, training=True):
      return []

    def forward(self, inputs, model, training):
      if data == 'images':
        return ext.losses.label(model(inputs['x'], training=training), inputs['label']), {}
      segments, positions = inputs['segment_ids'], inputs['position_ids']
      logits = model(inputs['input_ids'], positions=positions, segments=segments, training=training)
      return ext.losses.label(logits[:, :-1], inputs['labels'][:, 1:]), {}

  return InputTask


def _convolutional() -> tf_keras.Model:
  layers = tf_keras.layers
  shape = (inputs.IMAGE_SIZE, inputs.IMAGE_SIZE, 3)
  convolution = lambda filters: layers.Conv2D(filters, 3, 2, 'same', activation='relu')
  parts = [*(convolution(filters) for filters in (64, 128, 256)), layers.GlobalAveragePooling2D(), layers.Dense(10)]
  return tf_keras.Sequential([tf_keras.Input(shape), *parts])


def _decoder() -> tf_keras.Model:
  work: Any = decoder_work.decoder()
  return tasks.build_model(work)


_MODELS = {'images': _convolutional, 'texts': _decoder}
