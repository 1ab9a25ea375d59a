"""`register_experiment` and `register_task`: another function of a name is refused, the same one again is taken."""

import dataclasses

from official.core import exp_factory
from official.core import task_factory
import pytest

import official_ext as ext


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
  for owner, name in ((exp_factory, '_REGISTERED_CONFIGS'), (task_factory, '_REGISTERED_TASK_CLS')):
    monkeypatch.setattr(owner, name, dict(getattr(owner, name)))


SOURCE = """
@ext.register_experiment('{name}')
def {function}():
  return {value}
"""


def define(value, name='mine_of_a_test', function='mine', module='my_module'):
  exec(SOURCE.format(name=name, function=function, value=value), {'ext': ext, '__name__': module})


def test_an_experiment_that_is_defined_again_is_replaced():
  define(1)
  define(2)
  assert exp_factory.get_exp_config('mine_of_a_test') == 2
  define(3, name='group_of_a_test/mine')
  define(4, name='group_of_a_test/mine')
  assert exp_factory.get_exp_config('group_of_a_test/mine') == 4


@pytest.mark.parametrize('other', [{'function': 'other'}, {'module': 'other'}, {'name': 'mine_of_a_test/x'}])
def test_another_experiment_is_refused(other):
  define(1)
  with pytest.raises(ext.UserError, match='^the experiment mine_of_a_test.* is registered already, by my_module.mine'):
    define(2, **other)


def test_tasks():
  @dataclasses.dataclass
  class Config(ext.TaskConfig):
    pass

  def task(name):
    return ext.register_task(Config)(type(name, (ext.Task,), {'__module__': 'my_module'}))

  task('Mine')
  second = task('Mine')
  assert task_factory.get_task_cls(Config) is second
  with pytest.raises(ext.UserError, match='^the task of test_tasks.<locals>.Config is registered already, by my_m'):
    task('Other')
