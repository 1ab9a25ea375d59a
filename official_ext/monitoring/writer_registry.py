"""Gives names to writers: see named_writers.py for those that this library brings."""

from collections.abc import Callable, Mapping
import dataclasses
import importlib.util
from typing import Any

from official_ext import errors
from official_ext.monitoring import writers


@dataclasses.dataclass(frozen=True)
class RunInfo:
  """What a writer may know of its run.

  Attributes:
    model_dir: the run's folder.
    mode: the driver's mode.
    params: the resolved configuration.
    class_names: of the task's classes, for pictures; () if it gives none.
  """

  model_dir: str
  mode: str
  params: Any
  class_names: tuple[str, ...] = ()

  @property
  def trains(self) -> bool:
    """Whether the run trains. One that does not may go on beside it, in the same folder."""
    return 'train' in self.mode


Factory = Callable[[RunInfo], writers.Writer]
_factories: dict[str, Factory] = {}
# Package -> extra, of writers that need one.
_needs: dict[str, Mapping[str, str]] = {}


def register(name: str, needs: Mapping[str, str] | None = None) -> Callable[[Factory], Factory]:
  """Registers what makes a writer: a function of a `RunInfo`, or a class whose constructor takes one.

  Args:
    name: what `trainer.writers` calls it.
    needs: packages that have to be installed -> the extra of this project that brings them.

  Returns:
    A decorator.

  Raises:
    ValueError: there is one of that name.
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
  """What was registered under a name."""
  return _factories[name]


def needs_of(name: str) -> Mapping[str, str]:
  """Packages that the writer of a name needs -> extras."""
  return _needs[name]


def require(package: str, extra: str, who: str) -> None:
  """Makes sure that a package is installed. Does not import it.

  Raises:
    UserError: it is not; says which extra brings it.
  """
  try:
    found = importlib.util.find_spec(package) is not None
  except ValueError:  # sys.modules holds None under this name.
    found = False
  if not found:
    raise errors.UserError(f"{who}: needs the package {package}: pip install 'official-ext[{extra}]'")
