"""Any experiment can name the optimizers and schedules; mistakes in them; the text of docs/how_to/optimization.md."""

import pathlib
import re
import types

from official.common import registry_imports  # noqa: F401
from official.core import base_task
from official.core import config_definitions as cfg
from official.modeling import optimization
import pytest
import tensorflow as tf
import yaml

from official_ext.base import errors
from official_ext.training.config import checks
from official_ext.training.config import definitions
from official_ext.training.config import parser
from official_ext.training.optimization import configs
from tests.training.loop import harness

DOCS = (pathlib.Path(__file__).resolve().parents[3] / 'docs/how_to/optimization.md').read_text()
SNIPPETS = re.findall(r'```yaml\n(.*?)```', DOCS, re.DOTALL)
EXPERIMENTS = {'model_garden': 'resnet_imagenet', 'ours': 'digits_mlp'}


def parse(experiment='resnet_imagenet', mode='train', **flags):
  """As `train.py --experiment=... --set=...` does."""
  import registry_imports as ours  # noqa: F401

  return parser.parse_configuration(
    types.SimpleNamespace(experiment=experiment, mode=mode, **flags), print_return=False
  )


@pytest.mark.parametrize('experiment', EXPERIMENTS.values(), ids=EXPERIMENTS)
@pytest.mark.parametrize('number', range(len(SNIPPETS)))
def test_every_snippet_of_the_docs_is_a_file_for_any_experiment(number, experiment, tmp_path):
  (tmp_path / 'snippet.yaml').write_text(SNIPPETS[number])
  overrides = ['train_steps=10000']
  if 'optimizer:' not in SNIPPETS[number]:
    overrides.append('optimizer=sgd')
  params = parse(experiment, config_file=[str(tmp_path / 'snippet.yaml')], set=overrides)
  config = params.trainer.optimizer_config
  given = yaml.safe_load(SNIPPETS[number])['trainer']['optimizer_config']
  for part, values in given.items():
    if part == 'parameter_groups':
      assert [list(group.patterns) for group in config.parameter_groups] == [group['patterns'] for group in values]
    elif part == 'ema':
      assert config.ema.average_decay == values['average_decay']
    else:
      assert getattr(config, part).type == values['type']
  optimizer = base_task.Task.create_optimizer(config, params.runtime)
  variable = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name='encoder/kernel')
  inner = optimizer._optimizer if config.ema else optimizer
  inner.apply_gradients([(tf.ones([2, 2]), variable)])
  inner.apply_gradients([(tf.ones([2, 2]), variable)])
  assert variable.numpy()[0, 0] < 1.0


def test_the_snippets_show_every_kind():
  text = ''.join(SNIPPETS)
  assert all(f'type: {kind}\n' in text for kind in [*configs.SCHEDULES, *configs.OPTIMIZERS])
  assert all(f'| `{kind}` |' in DOCS for kind in [*configs.SCHEDULES, *configs.OPTIMIZERS])


def test_the_docs_name_every_field_with_its_default():
  for cls in (
    configs.CyclicalLrConfig,
    configs.OneCycleLrConfig,
    configs.WarmupStableDecayLrConfig,
    configs.CosineRestartsLrConfig,
    configs.AdamWTorchConfig,
    configs.LionConfig,
    configs.MuonConfig,
    configs.StableAdamWConfig,
    configs.ParameterGroupConfig,
  ):
    for name, value in vars(cls()).items():
      if name not in ('name', *cls.RESERVED_ATTR):
        assert f'`{name}`' in DOCS, (cls.__name__, name)
        if (
          isinstance(value, (int, float))
          and not isinstance(value, bool)
          and name not in ('offset', 'clipnorm', 'clipvalue', 'global_clipnorm')
        ):
          stated = [float(number) for number in re.findall(rf'`{name}` \(([0-9.e-]+)', DOCS)]
          assert value in stated, (cls.__name__, name, value, stated)


def test_the_optimizer_of_the_docs_logs():
  (code,) = (code for code in re.findall(r'```python\n(.*?)```', DOCS, re.DOTALL) if 'class AdamThatLogs' in code)
  namespace = {}
  exec(code, namespace)  # pylint: disable=exec-used
  trainer = harness.make_trainer(optimizer=lambda: namespace['AdamThatLogs'](0.1), enable_xla=False)
  assert harness.train(trainer, 2)['optimizer/largest_velocity'] > 0


OPTIMIZER, RATE, GROUPS = (
  f'trainer.optimizer_config.{part}' for part in ('optimizer', 'learning_rate', 'parameter_groups')
)


def test_short_names_reach_them():
  params = parse(
    set=[
      'train_steps=10',
      f'{RATE}.type=cyclical',
      'learning_rate=0.5',
      f'{OPTIMIZER}.type=lion',
      'weight_decay=0.1',
      'trainer.optimizer_config.learning_rate.cyclical.initial_learning_rate=0.1',
      'trainer.optimizer_config.learning_rate.cyclical.step_size=3',
    ]
  )
  config = params.trainer.optimizer_config
  assert config.learning_rate.cyclical.maximal_learning_rate == 0.5 and config.optimizer.lion.weight_decay == 0.1
  params = parse(set=['train_steps=10', f'{RATE}.type=one_cycle', 'learning_rate=0.5', 'decay_steps=10'])
  assert params.trainer.optimizer_config.learning_rate.one_cycle.total_decay_steps == 10


@pytest.mark.parametrize(
  ('overrides', 'message'),
  [
    ([f'{RATE}.type=cyclical'], f'{RATE}.cyclical.initial_learning_rate: must be set'),
    ([f'{RATE}.type=one_cycle', 'decay_steps=9'], f'{RATE}.one_cycle.maximal_learning_rate: must be set'),
    ([f'{RATE}.type=cosine_restarts', 'learning_rate=1'], f'{RATE}.cosine_restarts.first_decay_steps: must be set'),
    (
      [f'{RATE}.type=cosine_restarts', 'learning_rate=1', 'decay_steps=0'],
      f'{RATE}.cosine_restarts.first_decay_steps: expected more than 0, got 0',
    ),
    (
      [
        f'{RATE}.type=warmup_stable_decay',
        'learning_rate=1',
        'decay_steps=9',
        f'{RATE}.warmup_stable_decay.decay_shape=square',
      ],
      f"{RATE}.warmup_stable_decay.decay_shape: 'square' is not one of linear, cosine, sqrt",
    ),
    (
      [
        f'{RATE}.type=warmup_stable_decay',
        'learning_rate=1',
        'decay_steps=9',
        f'{RATE}.warmup_stable_decay.decay_fraction=1.5',
      ],
      f'{RATE}.warmup_stable_decay.decay_fraction: expected 0 to 1, got 1.5',
    ),
    (
      [f'{RATE}.type=one_cycle', 'learning_rate=1', 'decay_steps=9', f'{RATE}.one_cycle.pct_start=1'],
      f'{RATE}.one_cycle.pct_start: expected between 0 and 1, got 1.0',
    ),
    (
      [f'{OPTIMIZER}.type=stable_adamw', f'{OPTIMIZER}.stable_adamw.slot_dtype=float16'],
      f"{OPTIMIZER}.stable_adamw.slot_dtype: 'float16' is not one of bfloat16, float32",
    ),
    (
      [f'{OPTIMIZER}.type=muon', f"{OPTIMIZER}.muon.adamw_patterns=['(']"],
      f"{OPTIMIZER}.muon.adamw_patterns.0: '(' is not a regular expression: missing )",
    ),
    ([f'{GROUPS}=[{{frozen: true}}]'], f'{GROUPS}.0.patterns: is empty'),
    (
      [f'{GROUPS}=[{{patterns: [a]}}, {{patterns: [b, "*"]}}]'],
      f"{GROUPS}.1.patterns.1: '*' is not a regular expression: nothing to repeat",
    ),
    (
      [f'{GROUPS}=[{{patterns: [a], learning_rate_scale: 0}}]'],
      f'{GROUPS}.0.learning_rate_scale: expected more than 0, got 0.0; set frozen',
    ),
    ([f'{GROUPS}=[{{patterns: [a], frozen: true, weight_decay: false}}]'], f'{GROUPS}.0.frozen: is true, and so'),
    ([f'{GROUPS}=[{{pattern: a}}]'], f'{GROUPS}.0.pattern: no such field; did you mean {GROUPS}.0.patterns?'),
  ],
)
def test_a_mistake_is_named(overrides, message):
  with pytest.raises(errors.UserError) as error:
    parse(set=['train_steps=10', *overrides])
  assert str(error.value).startswith(message)


def test_upgrade_keeps_what_a_configuration_of_model_gardens_states():
  theirs = cfg.ExperimentConfig(
    trainer=cfg.TrainerConfig(
      optimizer_config=optimization.OptimizationConfig(
        {
          'optimizer': {'type': 'adamw', 'adamw': {'weight_decay_rate': 0.25}},
          'learning_rate': {'type': 'polynomial', 'polynomial': {'initial_learning_rate': 0.5}},
          'warmup': {'type': 'polynomial', 'polynomial': {'warmup_steps': 7}},
        }
      )
    )
  )
  before = theirs.trainer.optimizer_config.as_dict()
  upgraded = definitions.upgrade(theirs)
  assert isinstance(upgraded.trainer.optimizer_config, definitions.OptimizationConfig)
  assert upgraded.trainer.optimizer_config.as_dict() == {**before, 'parameter_groups': (), 'ema_zero_start': False}
  assert type(theirs.trainer.optimizer_config) is optimization.OptimizationConfig  # It is not changed.
  assert definitions.upgrade(upgraded) is upgraded
  # Ours around theirs.
  mixed = definitions.ExperimentConfig()
  mixed.trainer.__dict__['optimizer_config'] = theirs.trainer.optimizer_config
  config = definitions.upgrade(mixed).trainer.optimizer_config
  config.override({'optimizer': {'type': 'lion', 'lion': {'weight_decay': 0.1}}})
  assert config.optimizer.get().weight_decay == 0.1 and config.warmup.polynomial.warmup_steps == 7


def test_an_optimizer_config_that_an_experiment_has_extended_keeps_its_own():
  import dataclasses

  @dataclasses.dataclass
  class Extended(optimization.OptimizationConfig):
    extra: int = 3

  theirs = cfg.ExperimentConfig(trainer=cfg.TrainerConfig(optimizer_config=Extended(extra=4)))
  config = definitions.upgrade(theirs).trainer.optimizer_config
  assert isinstance(config, Extended) and config.extra == 4 and config.parameter_groups == ()


def test_a_configuration_of_another_class_is_passed_over():
  checks.check_values(optimization.OptimizationConfig(), 'trainer.optimizer_config')


@pytest.mark.parametrize('name', ['slide', 'adafactor'])
def test_an_optimizer_that_model_garden_only_names_is_refused(name):
  params = definitions.ExperimentConfig()
  params.trainer.train_steps = 1
  params.trainer.optimizer_config.override(
    {'optimizer': {'type': name}, 'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 0.1}}}
  )
  with pytest.raises(errors.UserError, match=f"^trainer.optimizer_config.optimizer.type: Model Garden has '{name}' by"):
    checks.check(params, 'train')
