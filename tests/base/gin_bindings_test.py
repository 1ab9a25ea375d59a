"""Gin's bindings that no call has used: by class, function and scope."""

import gin
import pytest

from official_ext.base import model_garden_internals


@gin.configurable(module='bindings_test')
class Bound:
  def __init__(self, a=0, b=0):
    self.values = (a, b)


@gin.configurable(module='bindings_test')
def bound(a=0):
  return a


@pytest.fixture(autouse=True)
def _clear():
  gin.clear_config()
  yield
  gin.clear_config()


def test_a_binding_is_listed_until_a_call_uses_it():
  gin.parse_config('Bound.a = 1\nbound.a = %five\nfive = 5')
  assert model_garden_internals.unused_bindings() == ['bindings_test.Bound.a', 'bindings_test.bound.a']
  assert model_garden_internals.unused_bindings(of_classes=True) == ['bindings_test.Bound.a']
  assert model_garden_internals.unused_bindings(of_classes=False) == ['bindings_test.bound.a']
  assert Bound().values == (1, 0)
  assert model_garden_internals.unused_bindings(of_classes=True) == []
  assert model_garden_internals.unused_bindings_warning('in this run').endswith(
    'no call used bindings_test.bound.a in this run'
  )
  assert bound() == 5
  assert model_garden_internals.unused_bindings() == [] and not model_garden_internals.unused_bindings_warning(
    'in this run'
  )


def test_an_argument_of_the_call_leaves_the_binding_unused():
  gin.parse_config('Bound.a = 1\nBound.b = 2')
  assert Bound(a=3).values == (3, 2)
  assert model_garden_internals.unused_bindings() == ['bindings_test.Bound.a']


def test_scopes():
  gin.parse_config('x/bound.a = 1\ny/bound.a = 2\nbound.a = 3')
  with gin.config_scope('x/z'):
    assert bound() == 1
  assert model_garden_internals.unused_bindings() == ['y/bindings_test.bound.a']
