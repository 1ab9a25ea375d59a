"""Names of variables, for patterns and for people: 'dense/kernel', and in containers 'encoder/dense/kernel'.

A model that is a container of networks, as manual optimization has it, calls none of them in a `call` of its own: the
variables of two of them may have one name, and none tells whose it is. So the attribute that a network is kept under
goes before the names of its variables.
"""

from collections.abc import Iterator
import re
from typing import Any

import tensorflow as tf
import tf_keras

from official_ext import tf_internals


def name_of(variable: Any) -> str:
  """A variable's own name, 'dense/kernel': the same for a variable and its copy on a replica."""
  return re.sub(r'(/replica_\d+)?(:\d+)?$', '', tf_internals.whole_variable(variable).name)


def key_of(variable: Any) -> Any:
  """What tells a variable from others of its name; the same for its copy on a replica."""
  return tf_internals.unique_id(tf_internals.whole_variable(variable))


def by_attribute(model: Any) -> dict[Any, str]:
  """The names of a model's variables, by `key_of`, with the attributes of containers in front.

  Args:
    model: a tf_keras model, whose variables exist, or any tf.Module.

  Returns:
    'encoder/dense/kernel' for what a container keeps in its attribute `encoder`, `heads/0/...` for the first of a list;
    a variable's own name if that has the attribute in it, and in functional and sequential models.
  """
  names: dict[Any, str] = {key_of(variable): name_of(variable) for variable in getattr(model, 'variables', ())}

  def walk(module, path):
    for attribute, part in _parts(module) if _is_container(module) else ():
      for variable in part.variables:
        own = name_of(variable)
        if attribute.split('/')[0] not in own.split('/') and names.get(key_of(variable), own) == own:
          names[key_of(variable)] = f'{path}{attribute}/{own}'
      walk(part, f'{path}{attribute}/')

  walk(model, '')
  return names


def _is_container(module: Any) -> bool:
  """Whether it keeps networks as attributes, and is no network made of layers by Keras itself."""
  if isinstance(module, tf_keras.Model):
    return not (isinstance(module, tf_keras.Sequential) or tf_internals.is_functional(module))
  return isinstance(module, tf.Module) and not isinstance(module, tf_keras.layers.Layer)


def _parts(module: Any) -> Iterator[tuple[str, Any]]:
  for attribute, value in vars(module).items():
    if attribute.startswith('_') or isinstance(value, tf_keras.metrics.Metric):
      continue
    if isinstance(value, tf.Module):
      yield attribute, value
    elif isinstance(value, (list, tuple, dict)):
      items = value.items() if isinstance(value, dict) else enumerate(value)
      for key, part in items:
        if isinstance(part, tf.Module):
          yield f'{attribute}/{key}', part
