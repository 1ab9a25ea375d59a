"""Values that a task logs: numbers that float32 does not hold, and names that something else has."""

import csv

import pytest
import tensorflow as tf
import tf_keras

from official_ext.base import errors
from official_ext.base.run_folder import tracker_logs
from official_ext.training.writers import writers
from tests.training.loop import small_run

_INTEGER = 2**24 + 1  # The first that float32 does not hold.
_FLOAT = 0.1 + 2**-40


class LogsWideNumbers(small_run.SmallTask):
  def forward(self, inputs, model, training):
    loss, logs = super().forward(inputs, model, training)
    wide = {'int32': tf.constant(_INTEGER), 'int64': tf.constant(_INTEGER, tf.int64)}
    return loss, {**logs, **wide, 'float64': tf.constant(_FLOAT, tf.float64), 'python': _INTEGER}


@pytest.mark.parametrize(
  ('replicas', 'enable_xla', 'accumulation'),
  [('one', False, 1), ('two', False, 1), ('one', True, 1), ('one', False, 2)],
)
def test_integers_and_float64_are_exact_in_the_files(tmp_path, replicas, enable_xla, accumulation):
  trainer = {'gradient_accumulation_steps': accumulation, 'writers': ['csv'], 'train_steps': 6}
  params = small_run.make_params({'enable_xla': enable_xla}, **trainer)
  small_run.run(tmp_path, task_cls=LogsWideNumbers, replicas=replicas, params=params)
  expected = {'int32': _INTEGER, 'int64': _INTEGER, 'float64': pytest.approx(_FLOAT, rel=1e-15), 'python': _INTEGER}
  for event, table in (('train', 'train.csv'), ('eval', 'validation.csv')):
    logged = small_run.events(tmp_path, event)[-1]
    row = list(csv.DictReader((tmp_path / table).open()))[-1]
    # In an evaluation, a Python number is no tensor of the step.
    names = set(expected) & set(logged)
    assert names >= {'int32', 'int64', 'float64'}
    assert {name: logged[name] for name in names} == {name: expected[name] for name in names}
    assert {name: float(row[name]) for name in names} == {name: expected[name] for name in names}


def _logging(**added):
  class Task(small_run.SmallTask):
    def forward(self, inputs, model, training):
      loss, logs = super().forward(inputs, model, training)
      return loss, {**logs, **{name: tf.constant(value) for name, value in added.items()}}

  return Task


class TwoMetrics(small_run.SmallTask):
  def build_metrics(self, training=True):
    return [*super().build_metrics(training), tf_keras.metrics.Mean('accuracy')]


class MetricNamedAsALog(small_run.SmallTask):
  def build_metrics(self, training=True):
    return [tf_keras.metrics.Mean('learning_rate')]


class EndsWith(small_run.SmallTask):
  evaluation_end_names = ('accuracy',)

  def evaluation_end(self, model):
    return {'accuracy': 1.0}


class EndsUndeclared(EndsWith):
  evaluation_end_names = ()


class Aggregates(small_run.SmallTask):
  """Reduces a scalar of the step under its name, which is no other value of it."""

  reduced = 'logit_mean'

  def aggregate_logs(self, state=None, step_outputs=None):
    return [*(state or ()), step_outputs['logit_mean']]

  def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
    return {self.reduced: 7.0}


class AggregatesToAMetric(Aggregates):
  reduced = 'accuracy'


class OwnStep(small_run.SmallTask):
  def train_step(self, inputs, model, optimizer, metrics=None):
    return {**super().train_step(inputs, model, optimizer, metrics), 'epoch': tf.constant(1.0)}


class OwnValidation(small_run.SmallTask):
  def validation_step(self, inputs, model, metrics=None):
    return {**super().validation_step(inputs, model, metrics), 'validation_loss': tf.constant(1.0)}


@pytest.mark.parametrize(
  ('task_cls', 'message', 'last_step'),
  [
    (_logging(accuracy=0.5), "forward logs 'accuracy', .* a metric of build_metrics, which takes a tuple; rename", 0),
    (_logging(learning_rate=0.5), "forward logs 'learning_rate', .* a value that the loop logs; rename", 0),
    (_logging(examples_per_second=0.5), "forward logs 'examples_per_second', .*; rename", 0),
    (TwoMetrics, "^TwoMetrics: 'accuracy' is the name of two logged values", 0),
    (MetricNamedAsALog, "^MetricNamedAsALog: 'learning_rate' is the name of two logged values", 0),
    (EndsWith, "^EndsWith: 'accuracy' is the name of two logged values", 0),
    (OwnStep, "^OwnStep.train_step logs 'epoch', .*; rename", 0),
    # What only an evaluation shows ends the run there: its steps are saved.
    (EndsUndeclared, "^EndsUndeclared.evaluation_end: 'accuracy' is the name of another value that is logged", 6),
    (AggregatesToAMetric, "^AggregatesToAMetric.reduce_aggregated_logs: 'accuracy' is the name of another value", 6),
    (OwnValidation, "^OwnValidation.validation_step logs 'validation_loss', which is the name of a value", 6),
    (_logging(**{'time': 1.0, 'time_': 2.0}), "^logs of train: 'time_' is the name of two values in events.jsonl", 5),
  ],
)
def test_two_values_of_one_name_are_refused(tmp_path, task_cls, message, last_step):
  with pytest.raises((errors.UserError, ValueError), match=message):
    small_run.run(tmp_path, task_cls=task_cls)
  has_trained = [event['step'] for event in small_run.events(tmp_path)] if (tmp_path / 'events.jsonl').exists() else []
  assert max(has_trained, default=0) <= last_step


def test_the_reduced_value_of_a_scalar_has_its_name(tmp_path):
  small_run.run(tmp_path, task_cls=Aggregates)
  assert small_run.events(tmp_path, 'eval')[-1]['logit_mean'] == 7.0


def test_two_names_that_are_one_to_a_writer_are_refused():
  writers.check_names({'a': {'b': 1.0}, 'a/c': 2.0, 'step': 1.0}, 'logs')
  with pytest.raises(errors.UserError, match="^logs: 'a/b' is the name of two values in events.jsonl"):
    writers.check_names({'a': {'b': 1.0}, 'a/b': 2.0}, 'logs')
  assert [point[0] for point in tracker_logs.mlflow_points('train', 1, 0.0, {'a:b': 1.0, 'a-b': 2.0})] == ['a_b', 'a-b']
  with pytest.raises(errors.UserError, match="^MLflow: 'a_b' would be the name of 'a:b' and 'a_b'; rename one$"):
    tracker_logs.mlflow_points('train', 1, 0.0, {'a:b': 1.0, 'a_b': 2.0})
  with pytest.raises(errors.UserError, match="^W&B: 'global_step' is the axis of all logs"):
    tracker_logs.wandb_row('train', 1, {'global_step': 1.0})
