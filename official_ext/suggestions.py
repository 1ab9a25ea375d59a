"""What a name was meant to be that is not known: the nearest ones of those that are."""

from collections.abc import Callable, Iterable
import difflib
from typing import Any


def nearest(name: Any, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
  """The known names that are most like another, the nearest first.

  Args:
    name: what was given; it need not be a string.
    known: what there is.
    count: how many to return at most.
    cutoff: how like they must be, from 0 (anything) to 1 (the same): see difflib.get_close_matches.
  """
  return difflib.get_close_matches(str(name), list(known), n=count, cutoff=cutoff)


def did_you_mean(
  name: Any,
  known: Iterable[str],
  otherwise: str = '',
  before: str = '',
  after: str = '',
  show: Callable[[str], str] = str,
) -> str:
  """The part of a message that names the nearest known name: `<before>did you mean dense?<after>`.

  Args:
    name: what was given.
    known: what there is.
    otherwise: the whole part where nothing is near.
    before: what parts it from the message in front.
    after: what parts it from the message behind.
    show: how a name is written, such as `repr`.
  """
  near = nearest(name, known)
  return f'{before}did you mean {show(near[0])}?{after}' if near else otherwise
