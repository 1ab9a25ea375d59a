"""Configurations as flat dictionaries, dotted path -> value, and the differences of two of them. No TensorFlow."""

from official_ext.base import errors
from official_ext.base import json_types
from official_ext.base import yaml_text


def flatten(values: object, prefix: str = '') -> json_types.JsonObject:
  """Flattens nested dictionaries, and lists of them, to one with dotted paths: `{'task.losses[0].weight': 1.0}`."""
  if isinstance(values, dict) and values:
    items = [(f'{prefix}.{key}' if prefix else str(key), value) for key, value in values.items()]
  elif isinstance(values, list) and any(isinstance(value, (dict, list)) for value in values):
    items = [(f'{prefix}[{i}]', value) for i, value in enumerate(values)]
  else:
    return {prefix: values}
  return {key: value for name, item in items for key, value in flatten(item, name).items()}


def text_differences(old_text: str, new_text: str) -> list[str]:
  """The fields in which two YAML documents differ, as `path: old -> new`; [] if there are none."""
  if old_text == new_text:
    return []
  try:
    old = flatten(yaml_text.load(old_text, 'the old file cannot be read'))
  except errors.UserError as e:
    return [str(e)]
  new = flatten(yaml_text.load(new_text, 'params.yaml'))
  # Compared as text: 1 is not 1.0, and nan is nan.
  shown = {
    key: (repr(old[key]) if key in old else 'unset', repr(new[key]) if key in new else 'unset')
    for key in {**old, **new}
  }
  return [f'{key}: {before} -> {after}' for key, (before, after) in shown.items() if before != after]
