"""Tests for config_fields.py, the fields of configurations with defaults."""

import dataclasses
import types

from official.core import config_definitions as cfg

from official_ext.data import config_fields
from official_ext.training.config import definitions


def test_a_configuration_without_the_fields_has_the_defaults():
  for config in (None, types.SimpleNamespace()):
    assert config_fields.of_data(config) == config_fields.DataFields()
    assert config_fields.of_task(config) == config_fields.TaskFields()
  assert not config_fields.DataFields().names_data and not config_fields.DataFields().is_served


def test_fields_of_model_gardens_data_are_read_and_those_of_this_library_have_defaults():
  data = cfg.DataConfig(input_path='a', global_batch_size=4, is_training=True, enable_tf_data_service=True)
  found = config_fields.of_data(data)
  assert (found.input_path, found.global_batch_size, found.is_training) == ('a', 4, True)
  assert (found.on_bad_example, found.collator, found.num_parallel_calls) == ('error', 'stack', 2)
  assert found.names_data and not found.is_served
  assert config_fields.of_data(data.replace(tf_data_service_address='grpc://host:1')).is_served


def test_the_defaults_are_those_of_this_librarys_configurations():
  defaults, own = config_fields.DataFields(), definitions.DataConfig()
  for name in ('global_batch_size', 'is_training', 'deterministic', 'on_bad_example', 'collator', 'num_parallel_calls'):
    assert getattr(defaults, name) == getattr(own, name)
  defaults, own = config_fields.TaskFields(), definitions.TaskConfig()
  for name in ('model', 'init_checkpoint'):
    assert getattr(defaults, name) == getattr(own, name)
  assert list(defaults.init_checkpoint_may_miss) == list(own.init_checkpoint_may_miss)


def test_the_data_of_a_task():
  task = definitions.TaskConfig(train_data=definitions.DataConfig(global_batch_size=4))
  assert config_fields.data_of(task, 'train_data') is config_fields.of_task(task).train_data is task.train_data
  assert config_fields.data_of(types.SimpleNamespace(), 'validation_data') is None


def test_only_known_values_are_kept():
  @dataclasses.dataclass
  class Data(cfg.DataConfig):
    seq_length: int = 3

  values = {'seq_length': 5, 'decode_jpeg_only': True}
  assert config_fields.known(Data(), values) == {'seq_length': 5}
  assert config_fields.known(cfg.DataConfig(), values) == {}
