"""Values that modules register under a name, by which a configuration or a file selects them."""

from collections.abc import Callable, Iterator, Mapping
import inspect
from typing import Any, TypeVar

from official_ext.base import errors

T = TypeVar('T')
F = TypeVar('F', bound=Callable[..., Any])


class Registry(Mapping[str, T]):
  """The values of one kind by name, in the order of their registration."""

  def __init__(self, kind: str, values: Mapping[str, T] | None = None, hint: str = ''):
    """Starts with values that need no registration.

    Args:
      kind: the noun for a value in messages, such as 'reward'.
      values: by name.
      hint: text after the list of names in the message about an unknown one.
    """
    self._kind = kind
    self._hint = hint
    self._values: dict[str, T] = dict(values or {})
    self._functions: dict[str, object] = {}  # The registered ones, for messages.

  def __getitem__(self, name: str) -> T:
    return self._values[name]

  def __iter__(self) -> Iterator[str]:
    return iter(self._values)

  def __len__(self) -> int:
    return len(self._values)

  def register(self, name: str, make: Callable[[F], T]) -> Callable[[F], F]:
    """Returns a decorator for a function or class, which registers a value of it.

    Args:
      name: the value's.
      make: makes the value of the function.

    Raises:
      UserError: the name is taken. A module that is imported twice may register its function twice.
    """

    def decorate(function: F) -> F:
      known = self._functions.get(name, self._values.get(name))
      if known is not None and not is_same(known, function):
        raise taken(f'the {self._kind} {name!r}', known, function)
      self._values[name], self._functions[name] = make(function), function
      return function

    return decorate

  def find(self, name: object, where: str) -> T:
    """The value of a name.

    Args:
      name: the one requested; it need not be a string.
      where: the flag, dotted path or file that it is from, for the message.

    Raises:
      UserError: the name is unknown.
    """
    if isinstance(name, str) and name in self._values:
      return self._values[name]
    names = sorted(self._values)
    start = errors.did_you_mean(name, names, otherwise='there are', after=' There are')
    raise errors.UserError(f'{where}: no {self._kind} {name!r}; {start} {", ".join(names)}{self._hint}')


def taken(what: str, known: object, function: object) -> errors.UserError:
  """The error about a name that is registered already.

  Args:
    what: the kind and the name.
    known: the function or class that was registered before.
    function: the one that cannot be.
  """
  return errors.UserError(
    f'{what} is registered already, by {place_of(known)}, and cannot be again by {place_of(function)}; take another '
    'name'
  )


def place_of(function: Any) -> str:
  """The place of a function or class: `my_tasks.rings (/home/me/my_tasks.py, line 12)`."""
  try:
    return f'{_name(function)} ({inspect.getsourcefile(function)}, line {inspect.getsourcelines(function)[1]})'
  except (OSError, TypeError):
    return _name(function)


def is_same(known: object, function: object) -> bool:
  """Whether a function or class is another one again: of a module that is reloaded, or of a notebook's cell."""
  name = _name(function)  # Functions that one function makes share it, and may differ.
  return _name(known) == name and '<locals>' not in name and not name.endswith('<lambda>')


def _name(function: object) -> str:
  return f'{getattr(function, "__module__", "?")}.{getattr(function, "__qualname__", function)}'
