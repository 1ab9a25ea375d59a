"""Limits of gradients that an optimizer refuses, or ignores, are refused with the field's path; others pass."""

import official_ext  # noqa: F401

# isort: split
from official.modeling import optimization
from official.modeling.optimization import optimizer_factory
import pytest
import tensorflow as tf

from official_ext.base import errors
from official_ext.training.config import checks
from official_ext.training.optimization import configs
from tests.training.loop import small_run

KINDS = sorted(
  name
  for name in optimizer_factory.LEGACY_OPTIMIZERS_CLS
  if name not in ('slide', 'adafactor')  # Refused by name.
)


def config(kind, **fields):
  return {
    'optimizer': {'type': kind, kind: {'global_clipnorm': None, **fields}},
    'learning_rate': {'type': 'constant', 'constant': {'learning_rate': 1.0}},
  }


def build(kind, **fields):
  factory = optimization.OptimizerFactory(configs.OptimizationConfig(config(kind, **fields)))
  return factory.build_optimizer(factory.build_learning_rate())


def check(kind, **fields):
  checks.check(small_run.make_params(optimizer_config=config(kind, **fields)), 'train')


@pytest.mark.parametrize('kind', KINDS)
def test_both_norms_are_refused_for_every_optimizer(kind):
  with pytest.raises(ValueError, match='clipnorm'):  # As without the check.
    build(kind, clipnorm=0.5, global_clipnorm=2.0)
  with pytest.raises(errors.UserError) as info:
    check(kind, clipnorm=0.5, global_clipnorm=2.0)
  path = f'trainer.optimizer_config.optimizer.{kind}'
  assert str(info.value).startswith(
    f'{path}.clipnorm: is set beside global_clipnorm (2.0), and no optimizer takes both'
  )
  assert str(info.value).endswith(f'; set {path}.global_clipnorm=null')


def test_a_default_is_called_one():
  params = {'optimizer': {'type': 'adamw_experimental', 'adamw_experimental': {'clipnorm': 1.0}}}
  learning_rate = config('sgd')['learning_rate']
  with pytest.raises(errors.UserError, match=r'beside global_clipnorm \(1.0, by default\), and'):
    checks.check(small_run.make_params(optimizer_config={**params, 'learning_rate': learning_rate}), 'train')


@pytest.mark.parametrize('norm', ['clipnorm', 'global_clipnorm'])
@pytest.mark.parametrize('kind', ['sgd', 'sgd_experimental'])
def test_a_value_beside_a_norm_is_refused_if_the_optimizer_ignores_it(kind, norm):
  """A gradient of 8 has the norm 4 after clipping, and a value of 1 after that."""
  variable, fields = tf.Variable([10.0]), {'clipvalue': 1.0, norm: 4.0}
  build(kind, **fields).apply_gradients([(tf.constant([8.0]), variable)])
  if kind == 'sgd':
    assert variable.numpy() == pytest.approx([9.0])
    check(kind, **fields)
  else:
    assert variable.numpy() == pytest.approx([6.0])
    with pytest.raises(errors.UserError, match=f'{kind}.clipvalue: is set beside {norm} .*ignore.*{norm}=null'):
      check(kind, **fields)


@pytest.mark.parametrize('fields', [{'clipnorm': 1.0}, {'clipvalue': 1.0}, {'global_clipnorm': 1.0}, {}])
@pytest.mark.parametrize('kind', ['adamw', 'adamw_experimental', 'lion'])
def test_one_limit_passes(kind, fields):
  check(kind, **fields)
  build(kind, **fields)
