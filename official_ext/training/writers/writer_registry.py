"""Registers writers by name: see named_writers.py for those of this library."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from official_ext.training.writers import writers


@dataclasses.dataclass(frozen=True)
class RunInfo:
  """The facts about a run that a writer may use.

  Attributes:
    model_dir: the run's folder.
    mode: the driver's mode.
    params: the resolved configuration.
    class_names: the names of the task's classes, for images; () if it has none.
  """

  model_dir: str
  mode: str
  params: Any
  class_names: tuple[str, ...] = ()

  @property
  def trains(self) -> bool:
    """Whether the run trains. A run that does not may be active at the same time, in the same folder."""
    return 'train' in self.mode


Factory = Callable[[RunInfo], writers.Writer]
_factories: dict[str, Factory] = {}
# By writer, the packages that it needs -> their extras.
_needs: dict[str, Mapping[str, str]] = {}


def register(name: str, needs: Mapping[str, str] | None = None) -> Callable[[Factory], Factory]:
  """Registers a factory of a writer: a function of a `RunInfo`, or a class whose constructor takes one.

  Args:
    name: its name in `trainer.writers`.
    needs: packages that must be installed -> the extra of this project that installs them.

  Returns:
    A decorator.

  Raises:
    ValueError: there is a writer of that name already.
  """
  if name in _factories:
    raise ValueError(f'There is a writer {name!r} already: {_factories[name]!r}.')

  def decorator(factory: Factory) -> Factory:
    _factories[name] = factory
    _needs[name] = needs or {}
    return factory

  return decorator


def names() -> list[str]:
  """All names, sorted."""
  return sorted(_factories)


def get(name: str) -> Factory:
  """The factory that was registered under a name."""
  return _factories[name]


def needs_of(name: str) -> Mapping[str, str]:
  """The packages that the writer of a name needs -> extras."""
  return _needs[name]
