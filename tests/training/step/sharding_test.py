"""Patterns of `trainer.sharding`: which axis of a mesh splits which dimension, and refusals."""

import pytest

from official_ext.base import errors
from official_ext.training.config import mesh_config
from official_ext.training.step import mesh_execution

SIZES = {'data': 2, 'tensor': 4}
SHAPES = {
  'decoder/blocks/0/self_attn/q_proj/kernel': (16, 32),
  'decoder/blocks/0/self_attn/o_proj/kernel': (32, 16),
  'decoder/blocks/10/mlp/up_proj/kernel': (16, 24),
  'decoder/norm/scale': (16,),
}


def rules(*pairs):
  return [mesh_config.ShardingRuleConfig({'pattern': pattern, 'axes': axes}) for pattern, axes in pairs]


def axes(*pairs):
  return mesh_execution.parameter_axes(rules(*pairs), SHAPES, SIZES)


def test_the_first_pattern_that_matches_counts_and_missing_axes_split_nothing():
  found = axes(('self_attn/o_proj', ('tensor',)), ('_proj/kernel$', ('', 'tensor')))
  assert found == {
    'decoder/blocks/0/self_attn/q_proj/kernel': ('', 'tensor'),
    'decoder/blocks/0/self_attn/o_proj/kernel': ('tensor', ''),
    'decoder/blocks/10/mlp/up_proj/kernel': ('', 'tensor'),
  }


@pytest.mark.parametrize(
  'pairs, message',
  [
    (
      [('q_prj/kernel$', ('', 'tensor'))],
      "0.pattern: 'q_prj/kernel\\$' matches no parameter; near are decoder/blocks/0/self_attn/q_proj/kernel",
    ),
    ([('zzz', ())], "0.pattern: 'zzz' matches no parameter; there are decoder/blocks/0/self_attn/o_proj/kernel, "),
    ([('kernel', ()), ('q_proj', ())], "1.pattern: 'q_proj' matches only names that patterns before it match"),
    ([('norm', ('', 'tensor'))], r'0: decoder/norm/scale has the shape \[16\], and axes for 2 dimensions are given: '),
  ],
)
def test_what_does_not_fit_the_model_is_refused(pairs, message):
  with pytest.raises(errors.UserError, match=f'^trainer.sharding.parameters.{message}'):
    axes(*pairs)


def test_a_dimension_that_cannot_be_split_evenly_is_refused():
  with pytest.raises(errors.UserError, match=r'parameters.0: x has the shape \[6, 8\]: dimension 0 .* tensor=4'):
    mesh_execution.parameter_axes(rules(('x', ('tensor',))), {'x': (6, 8)}, SIZES)


@pytest.mark.parametrize(
  'name, shape, expected',
  [
    ('Adam/m/dense/kernel', (4, 8), ('', 'tensor')),
    ('dense/kernel/momentum', (4, 8), ('', 'tensor')),
    ('dense/kernel/row_mean', (4,), ('',)),
    ('Adam/v/other_dense/kernel', (4, 8), ('', '')),
    ('Adam/v/dense/kernel/inner', (8, 4), ('tensor', '')),
    ('iterations', (), ()),
  ],
)
def test_a_slot_is_split_as_its_parameter(name, shape, expected):
  split = {'dense/kernel': ((4, 8), ('', 'tensor')), 'dense/kernel/inner': ((8, 4), ('tensor', ''))}
  assert mesh_execution.slot_axes(name, shape, split) == expected
