"""Ranges of numbers: meaningless values are refused, Model Garden's are not."""

import official_ext  # noqa: F401

# isort: split
import dataclasses
import math

from official.core import config_definitions as stock
from official.modeling import optimization
from official.modeling.hyperparams import base_config
import pytest

from official_ext.base import errors
from official_ext.training.config import definitions
from official_ext.training.config import ranges as ranges_lib
from official_ext.training.optimization import configs
from official_ext.training.writers import notifications

# Numbers of which any that is finite, or any at all, has a meaning, or that have a separate rule.
FREE = {
  'offset',
  'step_offset',
  'seed',
  'validation_steps',
  'factor',
  'window',
  'task_index',
  'default_shard_dim',
  'num_cores_per_replica',
  'per_gpu_thread_count',
  'dataset_num_private_threads',
}


def refusals(params):
  try:
    ranges_lib.check(params)
  except errors.UserError as error:
    return list(errors.lines_of(error))
  return []


@pytest.mark.parametrize(
  'text, inside, outside, words',
  [
    ('[1, inf)', [1, 1e300], [0.999, math.inf, math.nan], 'at least 1'),
    ('(0, inf)', [1e-300], [0, -1, math.nan], 'more than 0'),
    ('[0, inf]', [0, math.inf], [-1e-9, math.nan], 'at least 0'),
    ('[0, 1]', [0, 1], [-0.1, 1.1, math.nan], '0 to 1'),
    ('(0, 1)', [0.5], [0, 1], 'between 0 and 1'),
    ('[0, 1)', [0, 0.99], [1], 'at least 0 and less than 1'),
    ('(0, 1]', [1], [0], 'more than 0 and at most 1'),
    ('(-inf, 2147483647]', [-5, 2**31 - 1], [2**31, 2**62], 'at most 2147483647'),
    ('(-inf, inf)', [-5.5], [math.inf, -math.inf, math.nan], 'a finite number'),
  ],
)
def test_an_interval_holds_what_mathematics_states(text, inside, outside, words):
  interval = ranges_lib.interval(text)
  assert all(number in interval for number in inside) and not any(number in interval for number in outside)
  assert interval.describe() == words


def test_what_is_no_interval_is_a_mistake_of_the_class():
  for text in ('1..', '[1,inf)', '[a, b]', ''):
    with pytest.raises(ValueError):
      ranges_lib.interval(text)


def every_class():
  """All configuration classes of trainer, runtime, data, optimizers and schedules."""
  found = [
    definitions.TrainerConfig,
    definitions.RuntimeConfig,
    definitions.DataConfig,
    definitions.NonfiniteConfig,
    definitions.LossSpikeConfig,
    definitions.EarlyStoppingConfig,
    notifications.NotificationsConfig,
    definitions.InspectConfig,
    configs.ParameterGroupConfig,
    stock.DataConfig,
    optimization.EMAConfig,
  ]
  for choice in (configs.OptimizerConfig(), configs.LrConfig(), optimization.WarmupConfig()):
    found += [type(value) for value in vars(choice).values() if isinstance(value, base_config.Config)]
  assert len(found) > 40
  return found


@pytest.mark.parametrize('config_class', every_class(), ids=lambda cls: cls.__name__)
def test_every_number_has_a_range_or_a_reason_to_have_none(config_class):
  ranges = ranges_lib.of_class(config_class)
  hints = {field.name: str(field.type) for field in dataclasses.fields(config_class)}
  numbers = {name for name, hint in hints.items() if ('int' in hint or 'float' in hint) and 'Union' not in hint}
  unread = set(getattr(config_class, 'UNREAD_FIELDS', ()))
  assert not numbers - set(ranges) - FREE - unread
  default = config_class()
  for name in numbers & set(ranges):
    # The defaults of a class are in range, and no range holds NaN.
    value = getattr(default, name)
    assert value is None or value in ranges_lib.interval(ranges[name]), name
    assert math.nan not in ranges_lib.interval(ranges[name]), name


def test_each_wrong_number_is_named_also_in_lists_and_only_where_it_is_selected():
  config = definitions.OptimizationConfig(
    {
      'optimizer': {'type': 'adamw', 'adamw': {'beta_1': 1.0, 'weight_decay_rate': -0.1}, 'sgd': {'momentum': 7.0}},
      'learning_rate': {'type': 'stepwise', 'stepwise': {'boundaries': [5], 'values': [0.1, -0.1]}},
    }
  )
  params = definitions.ExperimentConfig(
    trainer=definitions.TrainerConfig(
      optimizer_config=config, keep_every=-5, best_checkpoints_to_keep=0, recovery_max_trials=-1
    )
  )
  params.task.train_data.global_batch_size = 2**62
  assert refusals(params) == [
    'task.train_data.global_batch_size: expected at most 2147483647, got 4611686018427387904',
    'trainer.optimizer_config.optimizer.adamw.beta_1: expected at least 0 and less than 1, got 1.0',
    'trainer.optimizer_config.optimizer.adamw.weight_decay_rate: expected at least 0, got -0.1',
    'trainer.optimizer_config.learning_rate.stepwise.values: expected at least 0, got -0.1',
    'trainer.keep_every: expected at least 0, got -5',
    'trainer.best_checkpoints_to_keep: expected at least 1, got 0',
  ]


def test_a_class_that_extends_another_keeps_its_ranges_and_may_add_its_own():

  @dataclasses.dataclass
  class Mine(stock.DataConfig):
    RANGES = {'crop': '[1, inf)'}
    crop: int = 8
    block_length: int = 1

  params = definitions.ExperimentConfig()
  params.task.__dict__['train_data'] = Mine(crop=0, block_length=0)
  assert refusals(params) == [
    'task.train_data.block_length: expected at least 1, got 0',
    'task.train_data.crop: expected at least 1, got 0',
  ]


def test_every_number_of_every_experiment_here_has_a_range():
  from official_ext.training.config import overrides
  from official_ext.training.config import parser
  import registry_imports  # noqa: F401

  for name in parser.experiment_names():
    factory = parser.factory_of(name)
    params = (
      definitions.upgrade(factory())
      if factory.__module__.startswith('experiments.')
      else definitions.ExperimentConfig()
    )
    for field in overrides.leaves(params):
      values = field.value if isinstance(field.value, (list, tuple)) else (field.value,)
      if any(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        owner = type(field.owner)
        known = {*ranges_lib.of_class(owner), *FREE, *getattr(owner, 'UNREAD_FIELDS', ())}
        assert field.path.rpartition('.')[2] in known, (name, field.path)
