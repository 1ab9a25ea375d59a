"""Refuses objects of Keras 3 (`import keras`): models, optimizers and metrics must be tf_keras'."""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
from typing import Any

import tensorflow as tf

from official_ext.base import errors
from official_ext.base import protocols
from official_ext.base import tf_internals
from official_ext.base import tracebacks

_HINT = 'use tf_keras'


def is_of_keras_3(value: object) -> bool:
  """Whether an object's class is one of Keras 3, or derives from one."""
  return any(cls.__module__.partition('.')[0] == 'keras' for cls in type(value).__mro__)


def check_model(task: protocols.Task, model: object) -> None:
  """Refuses a model of Keras 3, and a tf_keras model with layers of it, which would not be trained or saved.

  It looks at the layers that are attributes of layers, alone or in lists and dictionaries, and at the variables that a
  functional model calls its layers with.

  Raises:
    UserError: names the task's method and the object.
  """
  if is_of_keras_3(model):
    raise errors.UserError(f'{_place(task, "build_model")}: returned a Keras 3 model{_named(model)}; {_HINT}')
  for path, value in _layers(model):
    if is_of_keras_3(value):
      raise errors.UserError(
        f'{_place(task, "build_model")}: the model has a Keras 3 layer, {path}{_named(value)}; {_HINT}'
      )


def check_optimizer(task: protocols.Task, optimizer: object) -> None:
  """Refuses an optimizer of Keras 3.

  Raises:
    UserError: names the task's method.
  """
  if is_of_keras_3(optimizer):
    raise errors.UserError(
      f'{_place(task, "create_optimizer")}: returned a Keras 3 optimizer{_named(optimizer)}; {_HINT}'
    )


def check_metrics(task: protocols.Task, metrics: Iterable[object] | None) -> None:
  """Refuses metrics of Keras 3.

  Raises:
    UserError: names the task's method and the metric.
  """
  for metric in metrics or ():
    if is_of_keras_3(metric):
      name = getattr(metric, 'name', '')
      raise errors.UserError(
        f'{_place(task, "build_metrics")}: returned a Keras 3 metric, {name}{_named(metric)}; {_HINT}'
      )


@contextlib.contextmanager
def building(task: protocols.Task) -> Iterator[None]:
  """A context for `build_model`, which turns an error from a mixture of Keras 3 and tf_keras into one line.

  Raises:
    UserError: instead of that error.
  """
  try:
    yield
  except (AttributeError, TypeError, ValueError) as error:
    if isinstance(error, errors.UserError) or not tf_internals.names_keras_3(str(error)):
      raise
    place = tracebacks.place_of(error)
    raise errors.UserError(
      f'{place or _place(task, "build_model")}: {type(task).__name__}.build_model: mixes Keras 3 and tf_keras; {_HINT} '
      f'({tracebacks.message_of(error)})'
    ) from error


def _layers(model: object) -> Iterator[tuple[str, object]]:
  """(path, object) of everything that a model holds, as far as tf_keras' layers and tf.Modules lead."""
  waiting: list[tuple[str, Any]] = [(type(model).__name__, model)]
  seen: set[int] = set()
  while waiting:
    path, value = waiting.pop()
    if id(value) in seen:
      continue
    seen.add(id(value))
    if isinstance(value, tf.Module):
      for name, each in vars(value).items():
        waiting.append((f'{path}.{name}', each))
      waiting += [(f'a variable of {value.name}', each) for each in tf_internals.call_values(value)]
    elif isinstance(value, Mapping):
      waiting += [(f'{path}[{key!r}]', each) for key, each in value.items()]
    elif isinstance(value, (list, tuple)):
      waiting += [(f'{path}[{number}]', each) for number, each in enumerate(value)]
    elif hasattr(type(value), 'trainable') and is_of_keras_3(value):  # Layers and variables; not initializers, ...
      yield path, value


def _named(value: object) -> str:
  return f' ({type(value).__name__})'


def _place(task: protocols.Task, method: str) -> str:
  """`file:line: Task.method`."""
  place = tracebacks.of_function(getattr(task, method), with_name=False)
  return f'{place}: {type(task).__name__}.{method}'
