"""Registers experiments and tasks by name, in Model Garden's registries."""

from collections.abc import Callable
import inspect
from typing import Any, TypeVar

from official.core import exp_factory
from official.core import task_factory

from official_ext.base import errors

T = TypeVar('T')


def register_experiment(name: str) -> Callable[[T], T]:
  """Registers a function without arguments that returns an ExperimentConfig, as `--experiment=name`.

      @ext.register_experiment('rings')
      def rings() -> ext.ExperimentConfig:

  Args:
    name: lower-case words joined by `_`; `/` groups several.

  Raises:
    UserError: an experiment of this name is registered already.
  """
  return _registering(
    exp_factory.register_config_factory(name),
    f'the experiment {name}',
    lambda: exp_factory.get_exp_config_creater(name),
  )


def register_task(config_class: type) -> Callable[[T], T]:
  """Registers the task that is made from a configuration of this class.

      @ext.register_task(RingsConfig)
      class Rings(ext.Task):

  Args:
    config_class: a TaskConfig, which no other task has.

  Raises:
    UserError: a task is registered for it already.
  """
  return _registering(
    task_factory.register_task_cls(config_class),
    f'the task of {config_class.__qualname__}',
    lambda: task_factory.get_task_cls(config_class),
  )


def _registering(register: Callable[[Any], Any], what: str, known: Callable[[], object]) -> Callable[[T], T]:
  def decorate(registered: T) -> T:
    try:
      return register(registered)
    except KeyError as error:  # Model Garden's registry.
      raise errors.UserError(
        f'{what} is registered already, by {_place(known())}, and cannot be again by {_place(registered)}; '
        'take another name'
      ) from error

  return decorate


def _place(registered: Any) -> str:
  """The place of a function or class: `my_tasks.rings (/home/me/my_tasks.py, line 12)`."""
  try:
    line = inspect.getsourcelines(registered)[1]
    return f'{registered.__module__}.{registered.__qualname__} ({inspect.getsourcefile(registered)}, line {line})'
  except (OSError, TypeError):
    return f'{getattr(registered, "__module__", "?")}.{getattr(registered, "__qualname__", registered)}'
