"""Names of variables, for patterns and for people: 'dense/kernel', and in containers 'encoder/dense/kernel'.

A model that is a container of networks, as in manual optimization, has no `call` that calls them: variables
of two networks may have the same name, which does not say whose they are. So the name of the attribute that holds a
network precedes the names of its variables.
"""

from collections.abc import Hashable, Iterator, Mapping
import re

import tensorflow as tf
import tf_keras

from official_ext.base import tf_internals


def name_of(variable: tf.Variable) -> str:
  """A variable's own name, 'dense/kernel': the same for a variable and its copy on a replica."""
  return re.sub(r'(/replica_\d+)?(:\d+)?$', '', tf_internals.whole_variable(variable).name)


def key_of(variable: tf.Variable) -> Hashable:
  """A key that differs between variables of the same name; the same for a variable and its copy on a replica."""
  return tf_internals.unique_id(tf_internals.whole_variable(variable))


def by_attribute(model: tf.Module) -> dict[Hashable, str]:
  """The names of a model's variables, by `key_of`, preceded by the attributes of containers.

  Args:
    model: a tf_keras model whose variables exist, or any tf.Module.

  Returns:
    'encoder/dense/kernel' for a variable in a container's attribute `encoder`, `heads/0/...` for one in the first
    element of a list; a variable's own name if it contains the attribute, and in functional and sequential models.
  """
  names: dict[Hashable, str] = {key_of(variable): name_of(variable) for variable in getattr(model, 'variables', ())}

  def walk(module, path):
    for attribute, part in _parts(module) if _is_container(module) else ():
      for variable in part.variables:
        own = name_of(variable)
        if attribute.split('/')[0] not in own.split('/') and names.get(key_of(variable), own) == own:
          names[key_of(variable)] = f'{path}{attribute}/{own}'
      walk(part, f'{path}{attribute}/')

  walk(model, '')
  return names


def by_part(model: tf.Module | None) -> dict[Hashable, str]:
  """The names of the variables in a model's `checkpoint_items`, by `key_of`, preceded by the item: 'backbone/...'.

  Model Garden's models list their parts there: `backbone`, `decoder` and `head`, or `encoder`.

  Args:
    model: any model; without such items there are no names.
  """
  items = getattr(model, 'checkpoint_items', None)
  found: dict[Hashable, str] = {}
  for part, item in items.items() if isinstance(items, Mapping) else ():
    for variable in getattr(item, 'variables', ()):
      found.setdefault(key_of(variable), f'{part}/{name_of(variable)}')
  return found


def _is_container(module: tf.Module) -> bool:
  """Whether a module keeps networks as attributes, and is not a network that Keras itself makes of layers."""
  if isinstance(module, tf_keras.Model):
    return not (isinstance(module, tf_keras.Sequential) or tf_internals.is_functional(module))
  return isinstance(module, tf.Module) and not isinstance(module, tf_keras.layers.Layer)


def _parts(module: tf.Module) -> Iterator[tuple[str, tf.Module]]:
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
