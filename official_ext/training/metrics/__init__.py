"""Metrics of a classifier by name: see classification.py, which is imported when one of its functions is first used."""

import importlib

_FUNCTIONS = ('build', 'updates')


def __getattr__(name: str) -> object:
  if name not in _FUNCTIONS:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.classification'), name)


def __dir__() -> list[str]:
  return [*globals(), *_FUNCTIONS]
