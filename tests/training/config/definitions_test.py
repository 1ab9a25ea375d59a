"""Configurations: upgrading Model Garden's, locking."""

import official_ext  # noqa: F401

# isort: split
import collections
import copy
import dataclasses
import pickle

from official.core import config_definitions as cfg
from official.modeling.multitask import configs as multitask
import pytest

from official_ext.base import model_garden_internals
from official_ext.training.config import checks
from official_ext.training.config import definitions


@dataclasses.dataclass
class ForeignTrainerConfig(cfg.TrainerConfig):
  """A trainer of a project that is independent of this library, with one of our names for something else."""

  max_to_keep: int = 77
  progress_bar: bool = False
  note: str = 'hello'


def stock_experiment():
  return cfg.ExperimentConfig(
    trainer=cfg.TrainerConfig(train_steps=7, max_to_keep=2),
    runtime=cfg.RuntimeConfig(num_gpus=3, mixed_precision_dtype='bfloat16'),
    restrictions=['trainer.train_steps > 0'],
  )


def test_upgrade_keeps_every_value_and_adds_our_defaults():
  stock = stock_experiment()
  before = stock.as_dict()
  params = definitions.upgrade(stock)

  assert type(params) is definitions.ExperimentConfig
  assert type(params.trainer) is definitions.TrainerConfig
  assert type(params.runtime) is definitions.RuntimeConfig
  assert stock.as_dict() == before
  changed = {'distribution_strategy', 'enable_xla', 'best_checkpoint_metric_comp'}
  for section in ('task', 'trainer', 'runtime'):
    upgraded = params.as_dict()[section]
    for name, value in before[section].items():
      if name == 'optimizer_config':
        value = {**value, 'parameter_groups': (), 'ema_zero_start': False}
      assert upgraded[name] == ('auto' if name in changed else value), name
  assert params.trainer.gradient_accumulation_steps == 1
  assert params.trainer.nonfinite.max_skips == 10
  with pytest.raises(KeyError):
    params.override({'trainer': {'train_steps': 0}})
    params.validate()


def test_upgrade_shares_nothing_with_what_it_is_given():
  stock = stock_experiment()
  params = definitions.upgrade(stock)
  params.task.train_data.global_batch_size = 99
  params.trainer.optimizer_config.optimizer.sgd.momentum = 0.5
  assert stock.task.train_data.global_batch_size == 0
  assert stock.trainer.optimizer_config.optimizer.sgd.momentum == 0.0


def test_upgrade_keeps_a_choice_that_is_not_model_gardens_default():
  stock = cfg.ExperimentConfig(runtime=cfg.RuntimeConfig(distribution_strategy='tpu', num_gpus=2))
  runtime = definitions.upgrade(stock).runtime
  assert (runtime.distribution_strategy, runtime.num_gpus) == ('tpu', 2)


def test_upgrade_keeps_model_gardens_true_of_xla_to_gpus():
  from official.vision.configs import image_classification

  # Its Trainer.train_step asks for `enable_xla and num_gpus > 0`; ours would compile convolutions on a CPU.
  resnet = image_classification.image_classification_imagenet()
  assert resnet.runtime.enable_xla is True and definitions.upgrade(resnet).runtime.enable_xla == 'auto'
  ours = definitions.ExperimentConfig(runtime=definitions.RuntimeConfig(enable_xla=True))
  assert definitions.upgrade(ours).runtime.enable_xla is True


def test_upgrade_is_idempotent():
  params = definitions.upgrade(stock_experiment())
  assert definitions.upgrade(params) is params
  # With our classes, Model Garden's defaults were chosen.
  params = definitions.ExperimentConfig(
    runtime=definitions.RuntimeConfig(distribution_strategy='mirrored', enable_xla=False)
  )
  assert definitions.upgrade(params) is params
  assert (params.runtime.distribution_strategy, params.runtime.enable_xla) == ('mirrored', False)


def test_a_foreign_trainer_config_stays_what_it_is_and_gets_our_fields():
  stock = cfg.ExperimentConfig(trainer=ForeignTrainerConfig(train_steps=5))
  params = definitions.upgrade(stock)
  trainer = params.trainer
  assert isinstance(trainer, ForeignTrainerConfig) and isinstance(trainer, definitions.TrainerConfig)
  assert (trainer.max_to_keep, trainer.progress_bar, trainer.note, trainer.train_steps) == (77, False, 'hello', 5)
  assert trainer.gradient_accumulation_steps == 1
  assert type(definitions.upgrade(stock).trainer) is type(trainer)
  assert copy.deepcopy(trainer).as_dict() == trainer.as_dict()
  # As the type of a new instance too, and by name.
  assert type(trainer)().max_to_keep == 77
  assert type(trainer).__name__ == 'ForeignTrainerConfig'


@pytest.mark.parametrize('experiment_class', [multitask.MultiTaskExperimentConfig, multitask.MultiEvalExperimentConfig])
def test_an_experiment_of_several_tasks_keeps_its_fields(experiment_class):
  stock = experiment_class()
  params = definitions.upgrade(stock)
  assert isinstance(params, type(stock)) and isinstance(params, definitions.ExperimentConfig)
  assert isinstance(params.trainer, definitions.TrainerConfig)
  assert set(stock.as_dict()) == set(params.as_dict())
  assert type(params.task) is type(stock.task)


def test_what_only_has_the_attributes_of_an_experiment_gives_its_fields():
  """Model Garden's trainer takes named tuples too."""
  trainer = collections.namedtuple('T', ('train_steps', 'note'))(7, 'unknown')
  task, runtime = cfg.TaskConfig(init_checkpoint='/x'), cfg.RuntimeConfig(num_gpus=2)
  params = definitions.upgrade(collections.namedtuple('E', ('task', 'trainer', 'runtime'))(task, trainer, runtime))
  assert params.task.init_checkpoint == '/x' and params.trainer.train_steps == 7 and params.runtime.num_gpus == 2
  assert (params.trainer.gradient_accumulation_steps, params.runtime.seed) == (1, 0)
  assert definitions.upgrade(params) is params
  with pytest.raises(AttributeError, match='trainer'):
    definitions.upgrade(collections.namedtuple('E', ('task', 'runtime'))(task, runtime))


def test_lock_reaches_every_depth():
  # Stock: lock() stops at the first level.
  params = definitions.upgrade(
    multitask.MultiEvalExperimentConfig(eval_tasks=(multitask.TaskRoutine(task_config=cfg.TaskConfig()),))
  )
  params.lock()
  for config in (
    params,
    params.trainer,
    params.trainer.optimizer_config.optimizer.sgd,
    params.task.train_data,
    params.eval_tasks[0],
    params.eval_tasks[0].task_config.train_data,
  ):
    name = next(iter(config.as_dict()))
    with pytest.raises(ValueError, match='locked'):
      setattr(config, name, getattr(config, name))
  # Tasks make variants of a locked configuration.
  replaced = params.task.train_data.replace(global_batch_size=3, is_training=True)
  assert replaced.global_batch_size == 3


def test_a_locked_vision_transformer_can_still_resolve_its_model_name():
  from official.vision.configs import image_classification

  params = definitions.upgrade(image_classification.image_classification_imagenet_vit_pretrain())
  params.lock()
  with pytest.raises(ValueError, match='locked'):
    params.task.model = params.task.model.replace(num_classes=3)
  params.task.model.backbone.vit.override({'hidden_size': 768})
  assert params.task.model.backbone.vit.hidden_size == 768


def test_upgrade_of_a_locked_experiment_is_locked():
  stock = stock_experiment()
  stock.lock()
  params = definitions.upgrade(stock)
  with pytest.raises(ValueError, match='locked'):
    params.runtime.seed = 1


def _configs(config):
  """A configuration and all that are inside it."""
  return [part for _, part in checks.configs(config, 'params')]


@pytest.mark.parametrize('part', ['experiment', 'trainer', 'runtime', 'optimizer_config'])
@pytest.mark.parametrize('lock', [lambda config: None, cfg.ExperimentConfig.lock, definitions.lock])
def test_upgrade_writes_past_no_lock_and_shares_nothing(lock, part):
  """For Model Garden's classes and ours, and with locks at any place."""
  stock = stock_experiment()
  params = {
    'experiment': lambda: cfg.ExperimentConfig(trainer=definitions.TrainerConfig(), runtime=stock.runtime),
    'trainer': lambda: definitions.ExperimentConfig(),
    'runtime': lambda: definitions.ExperimentConfig(),
    'optimizer_config': lambda: definitions.ExperimentConfig(),
  }[part]()
  if part == 'optimizer_config':
    vars(params.trainer)['optimizer_config'] = stock.trainer.optimizer_config
  elif part != 'experiment':
    vars(params)[part] = getattr(stock, part)
  lock(params)
  before = [(id(config), model_garden_internals.is_locked(config), config.as_dict()) for config in _configs(params)]

  upgraded = definitions.upgrade(params)

  assert upgraded is not params
  after = [(id(config), model_garden_internals.is_locked(config), config.as_dict()) for config in _configs(params)]
  assert after == before
  assert not {id(config) for config in _configs(upgraded)} & {identity for identity, _, _ in before}
  is_locked = model_garden_internals.is_locked(params)
  assert [model_garden_internals.is_locked(config) for config in _configs(upgraded)] == (
    [is_locked] * len(_configs(upgraded))
  )
  assert upgraded.runtime.enable_xla == 'auto' and upgraded.trainer.nonfinite.max_skips == 10


def test_unread_fields_are_fields():
  for config_class in (definitions.DataConfig, definitions.InMemoryDataConfig, definitions.RuntimeConfig):
    assert set(config_class.UNREAD_FIELDS) <= set(config_class().as_dict())
    assert 'UNREAD_FIELDS' not in config_class().as_dict()


def test_our_classes_can_be_pickled():
  params = definitions.upgrade(stock_experiment())
  assert pickle.loads(pickle.dumps(params)).as_dict() == params.as_dict()
