"""Suggestions for an unknown name: the known names nearest to it."""

from collections.abc import Callable, Iterable
import difflib


def nearest(name: object, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
  """Returns the known names most similar to a given one, the nearest first.

  Args:
    name: the given one; it need not be a string.
    known: the valid ones.
    count: how many to return at most.
    cutoff: how similar they must be, from 0 (anything) to 1 (the same): see difflib.get_close_matches.
  """
  return difflib.get_close_matches(str(name), list(known), n=count, cutoff=cutoff)


def did_you_mean(
  name: object,
  known: Iterable[str],
  otherwise: str = '',
  before: str = '',
  after: str = '',
  show: Callable[[str], str] = str,
) -> str:
  """The part of a message that names the nearest known name: `<before>did you mean dense?<after>`.

  Args:
    name: the given one.
    known: the known names.
    otherwise: the text to use if no known name is near.
    before: text to put before it.
    after: text to put after it.
    show: how a name is written, such as `repr`.
  """
  near = nearest(name, known)
  return f'{before}did you mean {show(near[0])}?{after}' if near else otherwise
