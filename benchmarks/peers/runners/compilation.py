"""Tracing and compiling our step of a decoder, anew at each turn."""

from collections.abc import Mapping
import gc
import time
from typing import Any

import official_ext as ext  # noqa: F401  Before tensorflow.

# isort: split
import tensorflow as tf
import tf_keras

from benchmarks.peers import protocol
from benchmarks.peers.runners import tasks
from benchmarks.peers.work import decoder
from official_ext.training.loop import base_trainer


def measurement(work: None, layers: int, model_options: Mapping[str, Any]) -> protocol.Measurement:
  """Compilations, one at a time.

  Args:
    work: nothing; it is the decoder of so many layers.
    layers: of it.
    model_options: see `tasks.task_class`.
  """
  del work
  _compile(1, model_options)  # TensorFlow's one-time work is done.

  def run(num_compilations: int) -> Mapping[str, float]:
    assert num_compilations == 1, num_compilations
    return _compile(layers, model_options)

  return protocol.Measurement(run)


def _compile(layers: int, model_options: Mapping[str, Any]) -> Mapping[str, float]:
  """The seconds that it took, in all and in parts."""
  tf_keras.backend.clear_session()
  gc.collect()
  work = decoder.decoder(layers)
  params = tasks.experiment(work, steps_per_loop=1)
  task_cls = tasks.task_class(work, pipeline=False, **model_options)
  strategy, trainer = tasks.make_trainer(work, params, task_cls, base_trainer.Trainer)
  one = tf.constant(1, tf.int32)
  with strategy.scope():
    start = time.perf_counter()
    trainer.prepare_training()
    planned = time.perf_counter()
    trainer.train_loop_fn.get_concrete_function(trainer.train_iterator, one)
    traced = time.perf_counter()
    trainer.train(one)
    compiled = time.perf_counter()
    trainer.train(one)
    step = time.perf_counter() - compiled
  times = {'planned': planned - start, 'traced': traced - planned, 'compiled': compiled - traced - step}
  return {'seconds': sum(times.values()), **{f'{name}_in': value for name, value in times.items()}}
