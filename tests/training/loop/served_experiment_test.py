"""Inputs for a tf.data service; and Model Garden's own input with a real dispatcher and real workers."""

import contextlib
import dataclasses
import logging
import types

import numpy as np
from official.core import config_definitions
from official.core import exp_factory
from official.core import input_reader
from official.core import task_factory
import pytest
import tensorflow as tf

from experiments.digits_mlp import configs as digits_configs
from experiments.digits_mlp import task as digits_task
from official_ext.base import errors
from official_ext.training.loop import training_input
from tests import tiers

service_lib = tf.data.experimental.service
NUM_EXAMPLES, BATCH_SIZE = 64, 8


class Service:
  """A dispatcher and its workers, in this process."""

  def __init__(self, stack):
    self._stack = stack
    self._dispatcher = service_lib.DispatchServer(service_lib.DispatcherConfig(port=0))
    self.address = self._dispatcher.target
    self._workers = []

  def add_worker(self):
    config = service_lib.WorkerConfig(self.address.partition('://')[2], heartbeat_interval_ms=100)
    self._workers.append(service_lib.WorkerServer(config))
    self._stack.callback(self._workers[-1]._stop)

  def kill_worker(self):
    self._workers.pop(0)._stop()


@pytest.fixture
def service():
  with contextlib.ExitStack() as stack:
    yield Service(stack)


class _Task:
  """Model Garden's input: records of one whole number each."""

  task_config = None

  def __init__(self, path):
    self.path = path

  def build_inputs(self, params, input_context=None):
    reader = input_reader.InputReader(
      params, decoder_fn=lambda record: tf.io.decode_raw(record, tf.int64)[0], dataset_fn=tf.data.TFRecordDataset
    )
    return reader.read(input_context)


@pytest.mark.slow
def test_model_gardens_input_continues_after_its_worker_was_killed_and_reports_that_it_is_not_exact(
  service, tmp_path, caplog
):
  path = str(tmp_path / 'numbers.tfrecord')
  with tf.io.TFRecordWriter(path) as writer:
    for number in range(NUM_EXAMPLES):
      writer.write(np.int64(number).tobytes())
  service.add_worker()
  data = config_definitions.DataConfig(
    input_path=path,
    global_batch_size=BATCH_SIZE,
    is_training=True,
    shuffle_buffer_size=NUM_EXAMPLES,
    enable_tf_data_service=True,
    tf_data_service_address=service.address,
    tf_data_service_job_name='numbers',
  )
  strategy = tf.distribute.OneDeviceStrategy('CPU:0')

  def distribute(build_inputs, params):
    return strategy.distribute_datasets_from_function(lambda context: build_inputs(params, context))

  its_input = training_input.TrainingInput(_Task(path), data, batches_per_step=1, is_custom=False)
  with caplog.at_level(logging.WARNING):
    iterator = iter(its_input.after(1000, distribute))
  assert 'comes from a tf.data service' in caplog.text and 'from batch 1000 on' in caplog.text
  assert 'is read again' not in caplog.text
  for attempt in range(2):
    for _ in range(4 * NUM_EXAMPLES // BATCH_SIZE):  # More than could have been on its way.
      assert set(next(iterator).numpy().tolist()) <= set(range(NUM_EXAMPLES))
    if attempt == 0:
      service.kill_worker()
      service.add_worker()


def test_a_data_configuration_without_a_service_is_read_again(caplog):
  data = types.SimpleNamespace(enable_tf_data_service=True, tf_data_service_address=None)
  task = types.SimpleNamespace(build_inputs=lambda params, input_context=None: tf.data.Dataset.range(10))
  its_input = training_input.TrainingInput(task, data, batches_per_step=1, is_custom=False)
  with caplog.at_level(logging.WARNING):
    dataset = its_input.after(3, lambda build_inputs, params: build_inputs(params, None))
  assert 'is read again up to batch 3' in caplog.text
  assert next(dataset.as_numpy_iterator()) == 3


@tiers.parametrize('changes', [{}, {'num_parallel_calls': 7, 'enable_tf_data_service': True}], fast=1)
def test_inputs_are_known_by_distinct_keys(changes):
  params = exp_factory.get_exp_config('digits_mlp')
  plain = training_input.build_served_inputs(params)
  assert [served.path for served in plain.values()] == ['task.train_data', 'task.validation_data']
  params.task.train_data.override({**changes, 'tf_data_service_address': 'grpc://localhost:1'})
  assert list(training_input.build_served_inputs(params)) == list(plain)
  params.task.train_data.seed = 5
  changed = list(training_input.build_served_inputs(params))
  assert changed[0] != list(plain)[0] and changed[1] == list(plain)[1]


def test_input_that_is_not_indexed_by_step_is_refused():
  params = exp_factory.get_exp_config('digits_mlp')

  class Other(digits_task.DigitsMlpTask):
    def build_inputs(self, params, input_context=None):
      return tf.data.Dataset.range(3)

  @dataclasses.dataclass
  class OtherConfig(digits_configs.DigitsMlpTaskConfig):
    pass

  task_factory.register_task_cls(OtherConfig)(Other)
  params.task = OtherConfig()
  with pytest.raises(errors.UserError, match='^Other: its input is not indexed by step; '):
    training_input.build_served_inputs(params)
