"""Values under names: registered once, found, and listed for an unknown name."""

import pytest

from official_ext.base import errors
from official_ext.base import registry

_MODULE = r'tests\.base\.registry_test'


def dense(size):
  return size


def deep(size):
  return size


@pytest.fixture(name='layers')
def _layers():
  found = registry.Registry('layer', {'flat': 0}, hint=' (see LAYERS)')
  assert found.register('dense', lambda function: function(3))(dense) is dense
  return found


def test_values_by_name(layers):
  assert dict(layers) == {'flat': 0, 'dense': 3} and 'deep' not in layers
  assert layers.find('dense', 'task.layer') == layers['dense'] == 3


@pytest.mark.parametrize(
  'name, message',
  [
    ('dens', r"task.layer: no layer 'dens'; did you mean dense\? There are dense, flat \(see LAYERS\)"),
    ('lstm', r"task.layer: no layer 'lstm'; there are dense, flat \(see LAYERS\)"),
    (['dense'], r"task.layer: no layer \['dense'\]; "),
  ],
)
def test_an_unknown_name_is_one_line_with_the_known_ones(layers, name, message):
  with pytest.raises(errors.UserError, match=f'^{message}'):
    layers.find(name, 'task.layer')


def test_a_name_is_taken_once_and_the_first_place_is_named(layers):
  line = dense.__code__.co_firstlineno
  message = (
    rf"^the layer 'dense' is registered already, by {_MODULE}\.dense \({__file__}, line {line}\), and cannot be "
  )
  with pytest.raises(errors.UserError, match=message + rf'again by {_MODULE}\.deep \(.*\); take another name$'):
    layers.register('dense', lambda function: 5)(deep)
  with pytest.raises(errors.UserError, match="^the layer 'flat' is registered already, by "):
    layers.register('flat', lambda function: 5)(deep)
  assert dict(layers) == {'flat': 0, 'dense': 3}


def test_a_module_that_is_imported_twice_registers_its_function_again(layers):
  layers.register('dense', lambda function: 7)(dense)
  assert layers['dense'] == 7


def _made(value):
  def function():
    return value

  return function


@pytest.mark.parametrize('first, second', [(lambda: 1, lambda: 2), (_made(1), _made(2))], ids=['lambda', 'made'])
def test_functions_that_share_a_name_are_not_the_same(layers, first, second):
  layers.register('one', lambda function: function())(first)
  with pytest.raises(errors.UserError, match="'one' is registered already"):
    layers.register('one', lambda function: function())(second)
