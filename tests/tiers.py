"""Which cases of a parametrized test run in `make test`: the others are slow, and run in `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def parametrize(names: str | tuple[str, ...], values: Iterable[Any], fast: int | Collection[Any], **kwargs):
  """As `pytest.mark.parametrize`, with cases that are slow.

  Args:
    names: as there.
    values: as there. Tests marked `soak` stay so.
    fast: the values that are not slow, or how many of the first ones.
    **kwargs: as there.
  """
  values = list(values)
  kept = values[:fast] if isinstance(fast, int) else list(fast)
  is_single = len(names.split(',')) == 1 if isinstance(names, str) else len(names) == 1
  return pytest.mark.parametrize(
    names, [value if _is_any(value, kept) else _slow(value, is_single) for value in values], **kwargs
  )


def _is_any(value, kept) -> bool:
  return any(value is each or (type(value) is type(each) and value == each) for each in kept)


def _slow(value, is_single: bool):
  if isinstance(value, type(pytest.param())):
    is_long = any(mark.name == 'soak' for mark in value.marks)
    return value if is_long else value._replace(marks=[*value.marks, pytest.mark.slow])
  return pytest.param(*([value] if is_single else value), marks=pytest.mark.slow)
