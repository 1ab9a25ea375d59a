"""Steps a second of small trainings, whose variants take turns in one process."""

from collections.abc import Callable, Mapping, Sequence
import functools
import time
from typing import Any

import official_ext as ext

# isort: split
import tensorflow as tf
import tf_keras

from benchmarks.growth import curves
from benchmarks.peers.runners import tasks
from benchmarks.peers.work import digits
from benchmarks.peers.work import training
from official_ext.training.loop import base_trainer

_LOOP = 256
_RATE, _COMPILED, _FLOPS = 'steps/s', 'seconds until the first loop is done', 'GFLOP/s'


class Training:
  """A trainer that takes whole loops.

  Attributes:
    first_seconds: of the first loop, which traces and compiles.
    rates: steps a second of each turn.
  """

  def __init__(self, work: training.Work, task_cls: type, steps_per_loop: int, **trainer_fields: Any):
    params = tasks.experiment(work, steps_per_loop=steps_per_loop, **trainer_fields)
    self._strategy, self.trainer = tasks.make_trainer(work, params, task_cls, base_trainer.Trainer)
    self._loop = steps_per_loop
    self.rates: list[float] = []
    self.first_seconds = self._take(1)

  def _take(self, num_loops: int) -> float:
    start = time.perf_counter()
    with self._strategy.scope():
      for _ in range(num_loops):
        logs = self.trainer.train(tf.constant(self._loop))
    float(logs['training_loss'])  # Waits.
    return time.perf_counter() - start

  def turn(self, seconds: float) -> None:
    """Takes about so many seconds of loops, one at least."""
    self._take(1)  # Refills the caches after another training.
    taken, loops = 0.0, 0
    while not loops or taken < seconds:
      taken, loops = taken + self._take(1), loops + 1
    self.rates.append(loops * self._loop / taken)

  @property
  def rate(self) -> float:
    """That of the fastest turn, which others on the machine have disturbed least."""
    return max(self.rates)


def take_turns(trainings: Sequence[Training], quick: bool) -> None:
  """A B C A B C, so that a machine that grows slower slows all of them."""
  for _ in range(1 if quick else 4):
    for each in trainings:
      each.turn(0.0 if quick else 0.4)


def measure_steps_per_execution(quick: bool) -> curves.Panels:
  """The perceptron of digits_mlp by programs of several lengths, and of the length that the rule picks."""
  lengths, loop = ((1, 4), 8) if quick else ((1, 4, 16, 64, 256), _LOOP)
  work = digits.perceptron()
  task_cls = tasks.task_class(work, pipeline=False)
  trainings = {length: Training(work, task_cls, loop, steps_per_execution=length) for length in lengths}
  ruled = Training(work, task_cls, loop)
  take_turns([*trainings.values(), ruled], quick)
  chosen = ruled.trainer.plan.steps_per_execution
  return {
    _RATE: {
      'as set': [(length, each.rate) for length, each in trainings.items()],
      "the library's choice": [(chosen, ruled.rate)],
    }
  }


def measure_model_size(quick: bool) -> curves.Panels:
  """Perceptrons of several widths, and the arithmetic that they do in a second."""
  widths, loop = ((16, 32), 4) if quick else ((64, 256, 512, 1024, 2048), 32)
  images, labels = _images()
  works = [digits.dense((64, width, width, 10), images, labels) for width in widths]
  trainings = [Training(work, tasks.task_class(work, pipeline=False), loop) for work in works]
  take_turns(trainings, quick)
  sizes = [work.num_parameters for work in works]
  # Each weight and example: a product and a sum forward, twice as much backward.
  flops = [6e-9 * size * work.batch_size * each.rate for size, work, each in zip(sizes, works, trainings)]
  return {
    _RATE: {'perceptron, batches of 64': list(zip(sizes, (each.rate for each in trainings)))},
    _FLOPS: {'perceptron, batches of 64': list(zip(sizes, flops))},
  }


class Parts(tf_keras.layers.Layer):
  """x @ kernel, of which the rows are in several variables."""

  def __init__(self, units: int, num_parts: int):
    super().__init__()
    self._units, self._num_parts = units, num_parts

  def build(self, input_shape: Any) -> None:
    """See base class."""
    rows = input_shape[-1] // self._num_parts
    self._parts = [
      self.add_weight(name=f'part_{number}', shape=[rows, self._units], initializer='glorot_uniform')
      for number in range(self._num_parts)
    ]

  def call(self, x: tf.Tensor) -> tf.Tensor:
    """[b, units]."""
    return tf.matmul(x, tf.concat(self._parts, 0))


def measure_variables(quick: bool) -> curves.Panels:
  """64-256-256-10, whose middle kernel is in 1 to 256 variables: the arithmetic stays the same."""
  counts, loop = ((1, 4), 4) if quick else ((1, 8, 64, 256), 64)
  work = digits.perceptron()

  def make(num_parts):
    class Task(tasks.task_class(work, pipeline=False)):
      def build_model(self):
        dense = functools.partial(tf_keras.layers.Dense, activation='relu')
        return tf_keras.Sequential([tf_keras.Input([64]), dense(256), Parts(256, num_parts), dense(10)])

    return Training(work, Task, loop)

  return _of_counts({count + 4: (lambda count=count: make(count)) for count in counts}, quick)


def measure_metrics(quick: bool) -> curves.Panels:
  """The perceptron with more metrics, and with more scalars that its step logs."""
  counts, loop = ((0, 2), 4) if quick else ((0, 8, 32), _LOOP)
  work = digits.perceptron()

  def make(num_metrics, num_logs):
    class Task(tasks.task_class(work, pipeline=False)):
      def build_metrics(self, training=True):
        return [tf_keras.metrics.SparseCategoricalAccuracy(f'metric_{number}') for number in range(num_metrics)]

      def forward(self, inputs, model, training):
        logits = model(inputs['x'], training=training)
        values = {f'metric_{number}': (inputs['label'], logits) for number in range(num_metrics)}
        values.update({f'log_{number}': tf.reduce_mean(logits[:, number % 10]) for number in range(num_logs)})
        return ext.losses.label(logits, inputs['label']), values

    return Training(work, Task, loop)

  metrics = {count: make(count, 0) for count in counts}
  logs = {count: make(0, count) for count in counts if count}
  take_turns([*metrics.values(), *logs.values()], quick)
  rates = lambda trainings: [(count, each.rate) for count, each in trainings.items()]
  return {_RATE: {'metrics (accuracy)': rates(metrics), 'logs': [(0, metrics[0].rate), *rates(logs)]}}


def _of_counts(makers: Mapping[int, Callable[[], Training]], quick: bool) -> curves.Panels:
  trainings = {count: make() for count, make in makers.items()}
  take_turns(list(trainings.values()), quick)
  return {
    _RATE: {'steps': [(count, each.rate) for count, each in trainings.items()]},
    _COMPILED: {'first loop': [(count, each.first_seconds) for count, each in trainings.items()]},
  }


def _images():
  work = digits.perceptron()
  return work.inputs, work.labels
